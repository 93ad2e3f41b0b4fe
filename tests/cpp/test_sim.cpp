// The simulator itself: a seed repeats everything, links do what their options say, and no run is endless.
#include <cmath>
#include <stdexcept>

#include "sim/wire.h"
#include "sim_case.h"

using namespace simcase;

namespace {

sim::SimOptions lossy(std::uint64_t seed) {
  sim::SimOptions options;
  options.ranks = 4;
  options.seed = seed;
  options.link.loss = 0.05;
  options.link.jitter = Duration::micros(100);
  options.link.duplicate = 0.05;
  options.link.reorder = 0.05;
  options.hostile.replay = 0.01;
  return options;
}

std::uint64_t trace_of(const sim::SimOptions& options) {
  Case test(options);
  test.add(floats(20'011));
  test.add(floats(3));
  test.run();
  CHECK_EXACT(test);
  return test.network().trace_hash();
}

template <typename Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

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

TEST(a_seed_repeats_every_event) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    CHECK_EQ(trace_of(lossy(seed)), trace_of(lossy(seed)));
    CHECK(trace_of(lossy(seed)) != trace_of(lossy(seed + 1)));
  }
}

TEST(a_rate_takes_its_time) {
  sim::Link link;
  sim::LinkOptions options;
  options.bits_per_second = 8e6;  // a byte each microsecond
  const Time first = link.serialise(Time{}, 972, options).value();
  CHECK_EQ(first.ns, 1'000'000);  // 972 bytes and 28 of UDP and IP
  CHECK_EQ(link.serialise(Time{}, 972, options)->ns, 2'000'000);
  CHECK_EQ(link.serialise(Time{10'000'000}, 972, options)->ns, 11'000'000);
}

TEST(a_full_queue_drops) {
  sim::Link link;
  sim::LinkOptions options;
  options.bits_per_second = 8e6;
  options.queue_bytes = 2'500;
  CHECK(link.serialise(Time{}, 972, options).has_value());
  CHECK(link.serialise(Time{}, 972, options).has_value());
  CHECK(!link.serialise(Time{}, 972, options).has_value());
  CHECK(link.serialise(Time{1'000'000}, 972, options).has_value());  // one has left meanwhile
}

TEST(packets_get_lost_as_often_as_they_should) {
  sim::Random random(7);
  sim::Counters counters;
  sim::LinkOptions options;
  options.loss = 0.2;
  constexpr int kPackets = 100'000;
  for (int i = 0; i < kPackets; ++i) sim::travel(options, random, counters);
  const double deviation = std::sqrt(kPackets * 0.2 * 0.8);
  CHECK(std::abs(static_cast<double>(counters.lost) - kPackets * 0.2) < 5 * deviation);
}

TEST(faults_are_counted) {
  sim::SimOptions options = lossy(3);
  options.link.bits_per_second = 1e9;
  options.link.queue_bytes = 30'000;
  Case test(options);
  test.add(floats(100'003));
  test.run();
  CHECK_EXACT(test);
  const sim::Counters& counters = test.network().counters();
  CHECK(counters.lost > 0);
  CHECK(counters.duplicated > 0);
  CHECK(counters.reordered > 0);
  CHECK(counters.queue_dropped > 0);
  CHECK_EQ(counters.sent, test.total(&Stats::packets_sent));
  CHECK_EQ(counters.delivered, test.total(&Stats::packets_received) + test.total(&Stats::invalid_packets));
}

// GRO joins equally long packets and ends with a shorter one; the endpoint must see exactly that.
TEST(datagrams_are_filled_as_gro_fills_them) {
  BufferPool pool;
  const Bytes data(BufferPool::kLarge, std::byte{7});
  sim::DatagramBuilder builder(pool, 3, 1'000);
  CHECK(builder.empty());
  builder.add(std::span(data).first(100));
  CHECK(builder.fits(100));
  CHECK(!builder.fits(101));
  builder.add(std::span(data).first(100));
  CHECK(builder.fits(60));
  builder.add(std::span(data).first(60));
  CHECK(!builder.fits(60));
  CHECK(!builder.fits(100));
  const Datagram datagram = builder.take();
  CHECK_EQ(datagram.from, 3);
  CHECK_EQ(datagram.bytes, 260u);
  CHECK_EQ(datagram.segment_bytes, 100u);
  CHECK(builder.empty());
}

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
  CHECK(contains(error_with([](auto& o) { o.protocol.payload_bytes = 1'400; }), "payload_bytes"));
  CHECK_EQ(error_with([](auto&) {}), std::string("no error"));
}

TEST(calls_out_of_order_are_errors) {
  Case test(lossy(0));
  test.add(floats(5), {Duration::millis(2), Duration{}, Duration{}, Duration{}});
  test.add(floats(5));
  CHECK(contains(error_of([&] { test.run(); }), "rank 0 starts operation 1 before"));
}

TEST(a_run_ends_at_its_bound) {
  sim::SimOptions options = lossy(0);
  options.link.loss = 1;
  Case test(options);
  test.add(floats(5));
  CHECK(!test.run(Duration::millis(100)).finished);
  CHECK(test.network().now() <= Time{} + Duration::millis(100));
  CHECK(contains(error_of([&] { test.network().settle({}); }), "did not finish"));
}

TEST(a_run_ends_after_too_many_events) {
  sim::SimOptions options = lossy(0);
  options.max_events = 1'000;
  Case test(options);
  test.add(floats(1'000'000));
  const std::string error = error_of([&] { test.run(); });
  CHECK(contains(error, "max_events"));
  CHECK(contains(error, "seed 0"));
}

RUN_TESTS()
