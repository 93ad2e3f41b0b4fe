// Who may be believed: seals of both kinds, and a group that gets packets whose seal is wrong.
#include <initializer_list>
#include <utility>

#include "base/codec.h"
#include "check.h"
#include "member.h"
#include "sim/random.h"

using namespace membercase;

namespace {

Bytes flipped(Bytes bytes, std::size_t bit) {
  bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
  return bytes;
}

/// A packet of rank 1 to rank 0 that has an effect.
Header header_of(PacketType type) {
  const Schedule schedule(kDescriptor, 0, kRanks, kPayload, 0);
  Header header;
  header.type = type;
  header.sender = 1;
  header.descriptor = kDescriptor;
  header.timestamp = 1;
  header.completed = 1;
  const bool contribution = type == PacketType::Contribution;
  header.shard = schedule.shard_of(contribution ? 0 : 1);
  if (contribution || type == PacketType::Decision) header.length = kPayload;
  if (type == PacketType::Request) header.length = RequestBody::kFixedBytes;
  if (type == PacketType::Reject) header.length = static_cast<std::uint16_t>(to_bytes(RejectBody{}).size());
  return header;
}

/// The first batch of rank 1, one behind the other as GRO hands them over, and the length of a packet.
std::pair<Bytes, std::size_t> batch_of_rank_1() {
  Member sender(1);
  Transmit transmit;
  CHECK(sender.group.poll_transmit(kNow, transmit));
  Bytes bytes;
  for (const Segment& segment : transmit.segments) {
    bytes.insert(bytes.end(), segment.header.begin(), segment.header.end());
    bytes.insert(bytes.end(), segment.payload.begin(), segment.payload.end());
  }
  return {bytes, transmit.segments[0].bytes()};
}

}  // namespace

TEST(a_tag_covers_every_bit_of_the_packet) {
  const Seal sender(kKey, 1), receiver(kKey, 0);
  for (const std::uint16_t length : std::initializer_list<std::uint16_t>{0, 1, 7, 8, 20, 61}) {
    Header header = header_of(PacketType::Status);
    header.length = length;
    const Bytes packet = packet_of(header, sender, 0);
    CHECK(opens(receiver, packet));
    for (std::size_t bit = 0; bit < packet.size() * 8; ++bit) CHECK(!opens(receiver, flipped(packet, bit)));
    for (std::size_t bytes = 0; bytes < packet.size(); ++bytes)
      CHECK(!opens(receiver, std::span(packet).first(bytes)));
  }
}

TEST(a_token_is_compared_in_every_bit) {
  const Seal seal(42);
  const Bytes packet = packet_of(header_of(PacketType::Status), seal, 0);
  CHECK(opens(seal, packet));
  CHECK(!opens(Seal(43), packet));
  for (std::size_t bit = kSealAt * 8; bit < kHeaderBytes * 8; ++bit)
    CHECK(!opens(seal, flipped(packet, bit)));
}

// Else somebody could hand rank 2 what rank 1 has said to rank 0: an echo of another clock, for instance.
TEST(a_packet_to_one_rank_is_no_packet_to_another) {
  const Seal sender(kKey, 1);
  for (std::uint8_t type = 1; type <= 9; ++type) {
    for (const std::uint8_t flags : {std::uint8_t{0}, kFlagEcho}) {
      Header header = header_of(static_cast<PacketType>(type));
      header.flags = flags;
      const Bytes packet = packet_of(header, sender, 0);
      const bool for_all = header.type == PacketType::Decision && flags == 0;  // the same bytes go to several
      CHECK(opens(Seal(kKey, 0), packet));
      CHECK_EQ(opens(Seal(kKey, 2), packet), for_all);
      CHECK_EQ(opens(Seal(kKey, 256), packet), for_all);
      CHECK(!opens(Seal({kKey.low, kKey.high ^ 1}, 0), packet));
      CHECK(!opens(Seal({kKey.low ^ 1, kKey.high}, 0), packet));
    }
  }
}

TEST(a_batch_is_sealed_as_its_packets_are) {
  sim::Random random(1);
  const Seal sender(kKey, 1);
  for (int round = 0; round < 200; ++round) {
    Bytes payload(1 + random.below(40'000));
    for (std::byte& byte : payload) byte = static_cast<std::byte>(random.next() & 0xff);
    const std::size_t each = 1 + random.below(2'000);
    std::vector<Segment> batch;
    for (std::size_t at = 0; at < payload.size() && batch.size() < 64; at += each) {
      Segment& segment = batch.emplace_back();
      segment.payload = std::span(payload).subspan(at).first(std::min(each, payload.size() - at));
      Header header = header_of(PacketType::Contribution);
      header.offset = static_cast<std::uint32_t>(at);
      encode_fields(header, segment.header.data());
    }
    std::vector<Segment> single = batch;
    sender.close(batch, 0);
    for (Segment& segment : single) sender.close(std::span(&segment, 1), 0);
    for (std::size_t i = 0; i < batch.size(); ++i) CHECK(batch[i].header == single[i].header);
  }
}

// More packets than are hashed at once, of any length, some of them for everybody.
TEST(many_packets_are_opened_as_each_of_them_is) {
  sim::Random random(2);
  const Seal sender(kKey, 1), receiver(kKey, 0);
  for (int round = 0; round < 300; ++round) {
    const std::size_t stride = kHeaderBytes + random.below(300), packets = 1 + random.below(50);
    Bytes bytes;
    for (std::size_t i = 0; i < packets; ++i) {
      Header header = header_of(random.chance(0.5) ? PacketType::Decision : PacketType::Contribution);
      const bool last = i + 1 == packets;
      header.length =
          static_cast<std::uint16_t>(last ? random.below(stride - kHeaderBytes + 1) : stride - kHeaderBytes);
      const Bytes packet = packet_of(header, sender, random.chance(0.9) ? 0 : 2);
      bytes.insert(bytes.end(), packet.begin(), packet.end());
    }
    for (std::uint64_t bad = random.below(4); bad > 0; --bad)
      bytes = flipped(bytes, random.below(bytes.size() * 8));
    std::vector<bool> genuine;
    receiver.open_all(bytes, stride, genuine);
    CHECK_EQ(genuine.size(), packets);
    for (std::size_t i = 0; i < genuine.size(); ++i) {
      const auto rest = std::span(bytes).subspan(i * stride);
      CHECK_EQ(bool{genuine[i]}, opens(receiver, rest.first(std::min(stride, rest.size()))));
    }
  }
}

TEST(the_shared_number_is_shared_and_tells_nothing) {
  CHECK_EQ(Seal(kKey, 0).shared_number(), Seal(kKey, 7).shared_number());
  CHECK(Seal(kKey, 0).shared_number() != kKey.low);
  CHECK(Seal(kKey, 0).shared_number() != kKey.high);
  CHECK(Seal({kKey.high, kKey.low}, 0).shared_number() != Seal(kKey, 0).shared_number());
}

// Every field is right: only the tag is not. With the right one each of them changes something.
TEST(a_forged_packet_of_any_type_is_counted_and_changes_nothing) {
  for (std::uint8_t type = 1; type <= 9; ++type) {
    const Bytes genuine = packet_of(header_of(static_cast<PacketType>(type)), Seal(kKey, 1), 0);
    for (std::size_t bit = 0; bit < 64; ++bit) {
      Member member(0);
      const std::string before = member.observed();
      member.receive(1, flipped(genuine, kSealAt * 8 + bit), genuine.size());
      CHECK_EQ(member.group.stats().forged_packets, 1u);
      CHECK(member.observed() == before);
      member.receive(1, genuine, genuine.size());
      CHECK_EQ(member.group.stats().forged_packets, 1u);
      CHECK(member.observed() != before);
    }
  }
}

// The bad one ends the run before it; those behind it are still looked at.
TEST(a_bad_packet_among_good_ones_is_the_only_one_dropped) {
  const auto [batch, stride] = batch_of_rank_1();
  const std::size_t packets = (batch.size() + stride - 1) / stride;
  CHECK(packets > 5);
  for (std::size_t bad = 0; bad < packets; ++bad) {
    for (const std::size_t byte : {std::size_t{17}, kSealAt + 3, kHeaderBytes + 100}) {
      Member member(0);
      member.receive(1, flipped(batch, (bad * stride + byte) * 8 + 5), stride);
      CHECK_EQ(member.group.stats().forged_packets, 1u);
      CHECK_EQ(member.group.stats().packets_received, packets - 1);
      CHECK_EQ(member.group.stats().duplicate_packets, 0u);
      member.receive(1, batch, stride);  // brings the missing one
      CHECK_EQ(member.group.stats().packets_received, 2 * packets - 1);
      CHECK_EQ(member.group.stats().forged_packets, 1u);
    }
  }
}

TEST(a_batch_that_is_cut_anywhere_is_read_safely) {
  const auto [batch, stride] = batch_of_rank_1();
  for (std::size_t bytes = 0; bytes <= batch.size(); bytes += 13) {
    Member member(0);
    member.receive(1, Bytes(batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(bytes)), stride);
    const std::size_t rest = bytes % stride;
    CHECK_EQ(member.group.stats().packets_received, bytes / stride);
    CHECK_EQ(member.group.stats().forged_packets, rest >= kHeaderBytes ? 1u : 0u);
    CHECK_EQ(member.group.stats().invalid_packets, rest > 0 && rest < kHeaderBytes ? 1u : 0u);
  }
  for (const std::size_t tiny : {1u, 55u, 56u, 57u}) {  // no such packets exist, but sockets are not asked
    Member member(0);
    member.receive(1, Bytes(batch.begin(), batch.begin() + 3'000), tiny);
    CHECK_EQ(member.group.stats().packets_received, 0u);
  }
}

RUN_TESTS()
