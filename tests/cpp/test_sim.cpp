// The simulator itself: a seed repeats everything, links do what their options say, and no run is endless.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "sim/clock.h"
#include "sim/ingress_port.h"
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
  options.seal = seed % 2 == 0 ? Seal::Kind::Token : Seal::Kind::Tag;
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

/// Everything at once that can go wrong without harm to the result.
sim::SimOptions troubled(std::uint64_t seed) {
  sim::SimOptions options = lossy(seed);
  options.link.spike = 0.02;
  options.egress.bits_per_second = 1e9;
  options.ingress = {1e9, 15'000};
  options.backgrounds = {{1, {}, Time{} + Duration::millis(5), 5e8}};
  options.clock_offset = {{2, Duration::millis(700)}};
  options.clock_drift = {{3, -50}};
  return options;
}

constexpr std::size_t kPacket = 958;  // bytes: 1,000 on the wire
constexpr double kByteEachMicrosecond = 8e6;
constexpr std::int64_t kPacketTime = 1'000'000;  // ns, at that rate

/// With windows that fill fast links from the start.
constexpr std::uint32_t kLargePayload = 32'768;

/// How long `bytes` of gradient take at a rate, in full packets.
double seconds_for(double bytes, double bits_per_second) {
  const double payload = kLargePayload;
  return bytes / payload * (payload + kHeaderBytes + sim::kWireOverheadBytes) * 8 / bits_per_second;
}

constexpr std::uint32_t kElements = 1'200'000;

/// An exact all-reduce of so many floats: its virtual time.
double seconds_of_allreduce(sim::SimOptions options) {
  options.protocol.payload_bytes = kLargePayload;
  Case test(options);
  test.add(floats(kElements));
  test.run();
  CHECK_EXACT(test);
  return test.result().elapsed.seconds();
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
  const Time first = link.serialise(Time{}, 958, options).value();
  CHECK_EQ(first.ns, 1'000'000);  // 958 bytes and 42 of Ethernet, IP and UDP
  CHECK_EQ(link.serialise(Time{}, 958, options)->ns, 2'000'000);
  CHECK_EQ(link.serialise(Time{10'000'000}, 958, options)->ns, 11'000'000);
}

TEST(a_full_queue_drops) {
  sim::Link link;
  sim::LinkOptions options;
  options.bits_per_second = 8e6;
  options.queue_bytes = 2'500;
  CHECK(link.serialise(Time{}, 958, options).has_value());
  CHECK(link.serialise(Time{}, 958, options).has_value());
  CHECK(!link.serialise(Time{}, 958, options).has_value());
  CHECK(link.serialise(Time{1'000'000}, 958, options).has_value());  // one has left meanwhile
}

TEST(a_port_serves_packets_in_the_order_of_their_arrival) {
  sim::IngressPort port({kByteEachMicrosecond, 0}, {}, 0);
  sim::Counters counters;
  for (std::uint32_t i = 0; i < 4; ++i) port.expect(Time{i * kPacketTime}, kPacket, 0, i);
  for (std::uint32_t i = 0; i < 4; ++i) port.expect(Time{i * kPacketTime + 1}, kPacket, 1, i);
  CHECK(port.next(Time{0}, counters).has_value());
  CHECK(!port.next(Time{0}, counters).has_value());  // the others have not come yet
  for (std::uint32_t i = 1; i < 8; ++i) {
    const auto passage = port.next(Time{4 * kPacketTime}, counters);
    CHECK_EQ(passage->slot, i % 2);
    CHECK_EQ(passage->packet, i / 2);
    CHECK_EQ(passage->left->ns, (i + 1) * kPacketTime);
  }
}

TEST(two_senders_share_a_port_and_overflow_its_queue) {
  constexpr std::uint32_t kPackets = 1'000;
  sim::IngressPort port({kByteEachMicrosecond, 10'000}, {}, 0);
  sim::Counters counters;
  sim::Random random(1);
  for (const std::uint32_t sender : {0u, 1u}) {  // each of them alone would fill the port
    for (std::uint32_t i = 0; i < kPackets; ++i) {
      port.expect(Time{i * kPacketTime} + random.duration_up_to({kPacketTime}), kPacket, sender, i);
    }
  }
  double passed[2] = {};
  while (const auto passage = port.next(Time{kPackets * kPacketTime}, counters)) {
    if (passage->left) passed[passage->slot] += 1;
  }
  CHECK_EQ(passed[0] + passed[1] + static_cast<double>(counters.queue_dropped), 2.0 * kPackets);
  CHECK(std::abs(passed[0] + passed[1] - kPackets) <= 10);  // what was served, and what is in the queue
  CHECK(std::abs(passed[0] - passed[1]) < 0.1 * kPackets);
}

TEST(background_takes_its_share_of_a_port) {
  constexpr std::uint32_t kPackets = 10'000;
  constexpr std::size_t kAsLongAsTheirs = 1'400;
  const Time end{kPackets * 1'442'000L};  // they alone fill the port
  sim::IngressPort port({kByteEachMicrosecond, 20'000}, {{0, {}, end, kByteEachMicrosecond / 2}}, 0);
  sim::Counters counters;
  sim::Random random(1);
  for (std::uint32_t i = 0; i < kPackets; ++i)
    port.expect(Time{} + random.duration_up_to({end.ns}), kAsLongAsTheirs, 0, i);
  while (port.next(end, counters)) {
  }
  CHECK(std::abs(static_cast<double>(counters.foreign) - kPackets / 2) < 2);
  // Three come for every two that can pass: each loses a third, who comes in bursts a little more.
  const auto ours = static_cast<double>(counters.queue_dropped);
  const auto theirs = static_cast<double>(counters.foreign_dropped);
  CHECK(std::abs((ours + theirs) / (1.5 * kPackets) - 1. / 3) < 0.01);
  CHECK(std::abs(ours / kPackets - 1. / 3) < 0.08);
  CHECK(std::abs(theirs / (0.5 * kPackets) - 1. / 3) < 0.08);
}

TEST(background_lasts_from_its_beginning_to_its_end) {
  const Time begin{100 * kPacketTime}, end{200 * kPacketTime};
  sim::IngressPort port({kByteEachMicrosecond, 0}, {{0, begin, end, kByteEachMicrosecond}}, 0);
  sim::Counters counters;
  const auto wait_of_packet_at = [&](std::int64_t packet_times) {
    const Time at{packet_times * kPacketTime};
    port.expect(at, kPacket, 0, 0);
    return (*port.next(at, counters)->left - at).ns;
  };
  CHECK_EQ(wait_of_packet_at(99), kPacketTime);
  CHECK(wait_of_packet_at(150) > kPacketTime);
  CHECK_EQ(wait_of_packet_at(300), kPacketTime);
  CHECK(std::abs(static_cast<double>(counters.foreign) - 100e3 / 1'442) < 2);
}

// Two thirds of the bucket, from or to each of two peers, pass the port, whatever the links could carry.
TEST(a_rank_shares_its_ports_over_all_peers) {
  sim::SimOptions in, out;
  in.ranks = out.ranks = 3;
  in.other_ingress[1] = out.other_egress[1] = {1e10, 0};
  const double least = seconds_for(4. * kElements * 4 / 3, 1e10);
  for (const sim::SimOptions& options : {in, out}) {
    const double seconds = seconds_of_allreduce(options);
    CHECK(seconds > 0.99 * least);
    CHECK(seconds < 1.1 * least);
  }
}

TEST(a_full_port_drops_and_nothing_is_wrong) {
  sim::SimOptions in;
  in.ranks = 4;
  in.ingress = {1e9, 30'000};
  sim::SimOptions out = in;
  std::swap(out.ingress, out.egress);
  for (const sim::SimOptions& options : {in, out}) {
    Case test(options);
    test.add(floats(300'000));
    test.run();
    CHECK_EXACT(test);
    const sim::Counters& counters = test.network().counters();
    CHECK(counters.queue_dropped > 0);
    CHECK(test.network().settle(Duration::millis(1'000)));
    CHECK_EQ(counters.sent, counters.delivered + counters.queue_dropped);
  }
}

TEST(background_slows_an_operation_down) {
  sim::SimOptions options;
  options.ranks = 3;
  options.ingress = {1e10, 0};
  const double alone = seconds_of_allreduce(options);
  options.backgrounds = {{1, {}, Time{} + Duration::millis(1'000), 5e9}};
  const double half = seconds_of_allreduce(options) / alone;
  CHECK(half > 1.7);  // not quite 2: what comes after the last packet does not delay it any more
  CHECK(half < 2.1);
  options.backgrounds[0].end = Time{} + Duration::from_seconds(alone);
  const double half_at_first = seconds_of_allreduce(options) / alone;
  CHECK(half_at_first > 1.4);
  CHECK(half_at_first < 1.6);
}

TEST(a_crashed_rank_is_not_waited_for_and_others_time_out) {
  sim::SimOptions options;
  options.ranks = 3;
  options.link.bits_per_second = 1e8;
  options.crashes = {{2, Time{} + Duration::millis(12)}};
  Time last_sign_of_life;
  options.observer = [&](const sim::TraceEntry& entry) {
    const bool by_network = entry.kind == sim::EventKind::Arrive || entry.kind == sim::EventKind::Crash;
    if (entry.rank == 2 && !by_network) last_sign_of_life = entry.at;
  };
  Case test(options);
  test.add(floats(400'000), {}, Duration::millis(100));
  test.add(floats(10), std::vector<Duration>(3, Duration::millis(50)), Duration::millis(100));
  CHECK(test.run().finished);
  CHECK(test.result().elapsed < Duration::millis(200));
  for (const std::size_t operation : {0, 1}) {
    for (Rank rank = 0; rank < 2; ++rank) {
      CHECK(test.report(operation, rank).error == ErrorCode::Timeout);
      CHECK(test.report(operation, rank).ranks == std::vector<Rank>{2});
    }
    CHECK(!test.result().reports[operation][2].has_value());
  }
  CHECK(test.network().counters().crash_dropped > 0);
  CHECK(test.network().settle(Duration::millis(10'000)));
  test.add(floats(10), {}, Duration::millis(100));
  CHECK(test.run().finished);  // also a run that begins after the crash
  CHECK(!test.result().reports[0][2].has_value());
  CHECK(last_sign_of_life > Time{});
  CHECK(last_sign_of_life < options.crashes[0].at);
}

TEST(a_crash_to_come_keeps_nobody_waiting) {
  sim::SimOptions options;
  options.crashes = {{1, Time{} + Duration::millis(60'000)}};
  Case test(options);
  test.add(floats(10));
  test.run();
  CHECK_EXACT(test);
  CHECK(test.network().settle(Duration::millis(1'000)));
}

TEST(a_clock_finds_the_time_when_it_shows_something) {
  const Time begin{5'000'000'000};
  for (const double drift : {0., 0.3, -0.3, 70., -70., 250'000., -250'000.}) {
    const sim::Clock clock(begin, Duration::millis(-3'000), drift);
    CHECK_EQ(clock.at(begin).ns, 2'000'000'000);
    const double shown =
        static_cast<double>((clock.at(begin + Duration::millis(1'000)) - clock.at(begin)).ns);
    CHECK(std::abs(shown - 1e9 * (1 + drift * 1e-6)) < 2);
    for (const std::int64_t shows : {2'000'000'001L, 2'000'123'457L, 9'876'543'211L}) {
      const Time when = clock.when(Time{shows});
      CHECK(clock.at(when).ns >= shows);
      CHECK(clock.at(Time{when.ns - 1}).ns < shows);
    }
    CHECK(clock.when(Time::never()) == Time::never());
  }
}

TEST(clocks_may_differ_and_reports_are_in_their_own) {
  sim::SimOptions options = lossy(5);
  options.begin = Time{} + Duration::millis(2'000);
  options.clock_offset = {{0, Duration::millis(-2'000)}, {1, Duration::millis(3'600'000)}};
  options.clock_drift = {{1, 200'000}, {2, -200'000}};
  Time completed[4];
  options.observer = [&](const sim::TraceEntry& entry) {
    if (entry.kind == sim::EventKind::Complete) completed[entry.rank] = entry.at;
  };
  Case test(options);
  test.add(floats(100'003));
  test.run();
  CHECK_EXACT(test);
  const double factors[4] = {1, 1.2, 0.8, 1};
  for (Rank rank = 0; rank < 4; ++rank) {
    const double took = static_cast<double>((completed[rank] - options.begin).ns) * factors[rank];
    CHECK(std::abs(static_cast<double>(test.report(0, rank).elapsed.ns) - took) <= 2);
  }
}

TEST(a_fast_clock_times_out_early) {
  sim::SimOptions options;
  options.clock_drift = {{0, 250'000}};
  Case test(options);
  test.add(floats(10), {Duration{}, sim::Call::kNever}, Duration::millis(100));
  CHECK(test.run().finished);
  CHECK(test.report(0, 0).error == ErrorCode::Timeout);
  CHECK_EQ(test.report(0, 0).elapsed.ns, 100'000'000);
  CHECK_EQ(test.result().elapsed.ns, 80'000'000);
}

TEST(a_stalled_link_keeps_its_order) {
  sim::Link link;
  sim::LinkOptions options;
  CHECK_EQ(link.serialise(Time{10}, kPacket, options)->ns, 10);
  link.stall(Time{500});
  CHECK_EQ(link.serialise(Time{20}, kPacket, options)->ns, 500);
  link.stall(Time{400});  // over before the first one
  CHECK_EQ(link.serialise(Time{499}, kPacket, options)->ns, 500);
  CHECK_EQ(link.serialise(Time{501}, kPacket, options)->ns, 501);
}

TEST(spikes_delay_a_link_and_no_other) {
  sim::SimOptions options;
  options.ranks = 3;
  options.other_links[{0, 1}].spike = 1;
  options.other_links[{0, 1}].spike_delay = Duration::millis(2);
  Time first[3] = {Time::never(), Time::never(), Time::never()};  // from rank 0, by receiver
  options.observer = [&](const sim::TraceEntry& entry) {
    if (entry.kind == sim::EventKind::Arrive && entry.from == 0)
      first[entry.rank] = std::min(first[entry.rank], entry.at);
  };
  Case test(options);
  test.add(floats(1'000));
  test.run();
  CHECK_EXACT(test);
  CHECK_EQ(first[1].ns, 2'050'000);
  CHECK_EQ(first[2].ns, 50'000);
}

TEST(a_seed_repeats_every_trouble) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    CHECK_EQ(trace_of(troubled(seed)), trace_of(troubled(seed)));
    CHECK(trace_of(troubled(seed)) != trace_of(troubled(seed + 1)));
  }
}

// Each of them changes what happens, and so the hash.
TEST(every_trouble_shows_in_the_trace) {
  const std::uint64_t reference = trace_of(troubled(0));
  const auto differs_without = [&](const auto& change) {
    sim::SimOptions options = troubled(0);
    change(options);
    return trace_of(options) != reference;
  };
  CHECK(differs_without([](auto& o) { o.link.spike = 0; }));
  CHECK(differs_without([](auto& o) { o.egress = {}; }));
  CHECK(differs_without([](auto& o) { o.ingress.queue_bytes = 0; }));
  CHECK(differs_without([](auto& o) { o.backgrounds.clear(); }));
  CHECK(!differs_without([](auto&) {}));
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
