// The simulator's links and ports do what their options say: rates, queues, other traffic, stalls, loss.
#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/ingress_port.h"
#include "sim/wire.h"
#include "sim_case.h"

using namespace simcase;

namespace {

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
  options.protocol.path.payload_bytes = kLargePayload;
  Case test(options);
  test.add(floats(kElements));
  test.run();
  CHECK_EXACT(test);
  return test.result().elapsed.seconds();
}

}  // namespace

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

TEST(a_token_bucket_is_ahead_of_its_rate_by_its_burst) {
  sim::Serialiser port;
  const sim::PortOptions options{.bits_per_second = 8e6, .burst_bytes = 10'000};  // 1 byte in 1 us
  const Time now = Time{} + Duration::millis(100);
  CHECK(port.pass(now, 10'000, options) == now);
  CHECK(port.pass(now, 1'000, options) == now + Duration::micros(1'000));
  const Time later = now + Duration::micros(6'000);  // 5,000 tokens
  CHECK(port.pass(later, 6'000, options) == later + Duration::micros(1'000));
}

TEST(a_policer_drops_what_cannot_pass_at_once) {
  sim::Serialiser port;
  const sim::PortOptions options{.bits_per_second = 8e6, .burst_bytes = 10'000, .policer = true};
  const Time now = Time{} + Duration::millis(100);
  CHECK(port.pass(now, 9'000, options) == now);
  CHECK(!port.pass(now, 1'001, options));
  CHECK(port.pass(now, 1'000, options) == now);
}

TEST(a_batch_that_does_not_fit_is_dropped_whole_where_a_port_takes_whole_batches) {
  sim::SimOptions in;
  in.ranks = 2;
  in.ingress = {.bits_per_second = 1e9, .queue_bytes = 6'000, .whole_batches = true};
  sim::SimOptions out = in;
  std::swap(out.ingress, out.egress);
  for (const sim::SimOptions& options : {in, out}) {
    Case test(options);
    test.add(floats(30'000));
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

// GRO joins equally long packets and ends with a shorter one; the group must see exactly that.
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

RUN_TESTS()
