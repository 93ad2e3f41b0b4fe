// What the simulator refuses, and says why: options, calls and batches that no real network would take.
#include <cmath>
#include <initializer_list>

#include "sim/wire.h"
#include "sim_trouble.h"

using namespace simtrouble;

namespace {

Transmit transmit_of(std::initializer_list<std::size_t> payloads, const Bytes& data) {
  Transmit transmit;
  transmit.to = {1};
  for (const std::size_t bytes : payloads) {
    Segment segment{};
    segment.payload = std::span(data).first(bytes);
    transmit.segments.push_back(segment);
  }
  return transmit;
}

}  // namespace

// What no socket could send must not work in the simulator either.
TEST(impossible_batches_are_errors) {
  const Bytes data(70'000);
  CHECK_EQ(sim::assemble(transmit_of({100, 100, 60}, data), 0, 2)->packets, 3u);
  CHECK(contains(error_of([&] { sim::assemble(transmit_of({100, 60, 100}, data), 0, 2); }), "unequal"));
  CHECK(contains(error_of([&] { sim::assemble(transmit_of({60, 100}, data), 0, 2); }), "unequal"));
  CHECK(contains(error_of([&] { sim::assemble(transmit_of({40'000, 40'000}, data), 0, 2); }), "65507"));
  CHECK(contains(error_of([&] { sim::assemble(transmit_of({}, data), 0, 2); }), "0 packets"));
  CHECK(contains(error_of([&] { sim::assemble(transmit_of({100}, data), 1, 2); }), "to rank 1"));
  CHECK(contains(error_of([&] { sim::assemble(transmit_of({100}, data), 0, 1); }), "to rank 1"));
}

TEST(bad_options_are_named) {
  const auto error_with = [](const auto& change) {
    sim::SimOptions options;
    change(options);
    return error_of([&] { sim::Network network(options); });
  };
  CHECK(contains(error_with([](auto& o) { o.ranks = 0; }), "ranks"));
  CHECK(contains(error_with([](auto& o) { o.link.loss = 1.5; }), "loss"));
  CHECK(contains(error_with([](auto& o) { o.link.duplicate = -1; }), "duplicate"));
  CHECK(contains(error_with([](auto& o) { o.link.jitter = Duration{-1}; }), "jitter"));
  CHECK(contains(error_with([](auto& o) { o.link.bits_per_second = std::nan(""); }), "bits_per_second"));
  CHECK(contains(error_with([](auto& o) { o.pauses = {{2, {}, {}}}; }), "pause"));
  CHECK(contains(error_with([](auto& o) { o.cuts = {{0, 2, {}, {}}}; }), "cut"));
  CHECK(contains(error_with([](auto& o) { o.protocol.path.payload_bytes = 1'400; }), "payload_bytes"));
  CHECK(contains(error_with([](auto& o) { o.link.spike = 2; }), "spike is 2"));
  CHECK(contains(error_with([](auto& o) { o.link.spike_delay = Duration{-1}; }), "spike_delay"));
  CHECK(
      contains(error_with([](auto& o) { o.egress.bits_per_second = -1; }), "egress's bits_per_second is -1"));
  CHECK(
      contains(error_with([](auto& o) { o.ingress.bits_per_second = std::nan(""); }), "ingress's bits_per"));
  CHECK(contains(error_with([](auto& o) { o.ingress.queue_bytes = 99; }), "ingress's queue_bytes is 99"));
  CHECK(
      contains(error_with([](auto& o) { o.other_egress[1].queue_bytes = 99; }), "egress of rank 1's queue"));
  CHECK(contains(error_with([](auto& o) { o.other_egress[2] = {}; }), "egress port is rank 2"));
  CHECK(contains(error_with([](auto& o) { o.other_ingress[2] = {}; }), "ingress port is rank 2"));
  CHECK(contains(error_with([](auto& o) { o.backgrounds = {{2, {}, {}, 1e6}}; }), "background is rank 2"));
  CHECK(contains(error_with([](auto& o) { o.backgrounds = {{1, {}, {}, 1e6}}; }), "needs an ingress port"));
  CHECK(contains(error_with([](auto& o) { o.backgrounds = {{1, {}, {}, 0}}; }), "bits_per_second 0"));
  CHECK(contains(error_with([](auto& o) { o.backgrounds = {{1, Time{1}, {}, 1e6}}; }), "must not be before"));
  CHECK(contains(error_with([](auto& o) { o.crashes = {{2, {}}}; }), "crash is rank 2"));
  CHECK(contains(error_with([](auto& o) { o.crashes = {{1, Time{-1}}}; }), "crash is at"));
  CHECK(contains(error_with([](auto& o) { o.clock_offset[2] = {}; }), "clock_offset is rank 2"));
  CHECK(contains(error_with([](auto& o) { o.clock_offset[1] = Duration{-1}; }), "clock_offset of rank 1"));
  CHECK(contains(error_with([](auto& o) { o.clock_drift[2] = 0; }), "clock_drift is rank 2"));
  CHECK(contains(error_with([](auto& o) { o.clock_drift[1] = -1e6; }), "clock_drift of rank 1"));
  CHECK(contains(error_with([](auto& o) { o.hostile.tamper = 0.1; }), "tamper needs packets with tags"));
  CHECK_EQ(error_with([](auto&) {}), std::string("no error"));
}

TEST(calls_out_of_order_are_errors) {
  Case test(lossy(0));
  test.add(floats(5), {Duration::millis(2), Duration{}, Duration{}, Duration{}});
  test.add(floats(5));
  CHECK(contains(error_of([&] { test.run(); }), "rank 0 starts operation 1 before"));
}

RUN_TESTS()
