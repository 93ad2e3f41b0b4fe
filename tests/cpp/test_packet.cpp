// The packet format: what is written is read again, and nothing else is believed.
#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/codec.h"
#include "check.h"
#include "sealed.h"
#include "sim/random.h"
#include "wire/packet.h"

using namespace optireduce;

namespace {

constexpr std::uint64_t kToken = 0x0123'4567'89ab'cdefu;
constexpr Rank kSize = 8;
constexpr Rank kMe = 3;

Header sample_header() {
  Header header;
  header.type = PacketType::Decision;
  header.sender = 5;
  header.operation = 0xdead'beefu;
  header.descriptor = {123'457, DType::BFloat16, ReduceOp::Mean, true};
  header.flags = 3;
  header.length = 32;
  header.offset = 1'424'000;
  header.shard = 7;
  header.view = 65'000;
  header.timestamp = 0xffff'fff0u;
  header.completed = 0xdead'bee0u;
  header.oldest = 2;
  header.incast = 4;
  header.echo = 0x8765'4321u;
  header.hold = 12'345;
  header.stream = 0x1122'3344u;
  header.detail = 0x8000'0000'0000'0021u;
  return header;
}

Header sample_header(PacketType type) {
  Header header = sample_header();
  header.type = type;
  if (!is_data(type)) header.offset = 0;
  return header;
}

std::vector<std::byte> packet_of(const Header& header) {
  std::vector<std::byte> packet(kHeaderBytes + header.length, std::byte{0x5a});
  encode(header, kToken, std::span(packet).subspan(kHeaderBytes), kMe, packet.data());
  return packet;
}

/// As rank kMe of `size` reads a packet.
std::optional<Header> received(const std::vector<std::byte>& packet, Rank size = kSize) {
  return opens(Seal(kToken), packet) ? decode(packet, size) : std::nullopt;
}

template <typename T>
void put(std::vector<std::byte>& packet, std::size_t at, T value) {
  std::memcpy(packet.data() + at, &value, sizeof(T));
}

}  // namespace

TEST(every_field_of_every_type_survives_the_wire) {
  for (std::uint8_t type = 1; type <= 9; ++type) {
    const Header header = sample_header(static_cast<PacketType>(type));
    CHECK(received(packet_of(header)) == header);
  }
}

TEST(every_type_dtype_and_reduction_survives_the_wire) {
  for (std::uint8_t type = 1; type <= 9; ++type) {
    for (const DType dtype :
         {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16, DType::Int8Block}) {
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Gather}) {
        Header header = sample_header(static_cast<PacketType>(type));
        for (const bool bounded : {false, true}) {
          header.descriptor = {1, dtype, op, bounded};
          if (bounded && op == ReduceOp::Gather) {
            CHECK(!received(packet_of(header)));
          } else {
            CHECK(received(packet_of(header)) == header);
          }
        }
      }
    }
  }
}

// A change of the layout must be a decision (with a new protocol version), not an accident.
TEST(the_layout_is_the_documented_one) {
  const auto packet = packet_of(sample_header());
  const std::array<unsigned, kHeaderBytes> expected = {
      5,    2,    5,    0,    0xef, 0xbe, 0xad, 0xde, 0x41, 0xe2, 0x01, 0x00, 2,    1,    1,    0,
      0x80, 0xba, 0x15, 0x00, 32,   0,    7,    0,    0xf0, 0xff, 0xff, 0xff, 0xe0, 0xbe, 0xad, 0xde,
      0x44, 0x33, 0x22, 0x11, 0x21, 0x43, 0x65, 0x87, 0x39, 0x30, 0xe8, 0xfd, 0,    3,    2,    4,
      0x21, 0,    0,    0,    0,    0,    0,    0x80, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01};
  for (std::size_t i = 0; i < kHeaderBytes; ++i) CHECK_EQ(std::to_integer<unsigned>(packet[i]), expected[i]);
}

TEST(a_packet_of_another_length_is_rejected) {
  const auto packet = packet_of(sample_header());
  for (std::size_t length = 0; length < packet.size(); ++length) {
    const std::vector<std::byte> cut(packet.begin(), packet.begin() + static_cast<std::ptrdiff_t>(length));
    CHECK(!received(cut));
  }
  auto longer = packet;
  longer.push_back(std::byte{0});
  CHECK(!received(longer));
}

TEST(every_wrong_bit_of_the_seal_is_seen) {
  for (std::size_t bit = 0; bit < 64; ++bit) {
    auto packet = packet_of(sample_header());
    packet[kHeaderBytes - 8 + bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    CHECK(!received(packet));
  }
}

TEST(fields_that_cannot_be_right_are_rejected) {
  auto packet = packet_of(sample_header());
  put(packet, 0, std::uint8_t{1});
  CHECK(!received(packet));

  // Types, element type, reduction, bounded, and the bytes that are always zero.
  const std::initializer_list<std::pair<std::size_t, std::uint8_t>> unknown = {
      {1, 0},    {1, 12}, {1, 255}, {44, 1},   {44, 255}, {12, 5},
      {12, 255}, {13, 4}, {14, 2},  {14, 255}, {15, 1}};
  for (const auto& [at, value] : unknown) {
    packet = packet_of(sample_header(PacketType::Status));  // has no place that could be wrong
    put(packet, at, value);
    CHECK(!received(packet));
  }

  Header misplaced = sample_header(PacketType::Request);
  misplaced.offset = 64;  // only data has a place
  CHECK(!received(packet_of(misplaced)));

  packet = packet_of(sample_header());
  CHECK(!received(packet, 5));  // the sender is rank 5
  CHECK(!received(packet, 7));  // the shard is 7
}

// Whatever a stranger who knows the token sends, decoding reads only the packet (the sanitizers watch) and
// what it accepts is in range.
TEST(random_bytes_are_decoded_safely) {
  sim::Random random(1);
  for (int i = 0; i < 100'000; ++i) {
    std::vector<std::byte> packet(random.below(104));
    for (std::byte& byte : packet) byte = static_cast<std::byte>(random.below(16));
    if (packet.size() >= kHeaderBytes) put(packet, kSealAt, kToken);
    const std::optional<Header> header = received(packet);
    if (!header) continue;
    CHECK(header->sender < kSize);
    CHECK(header->shard < kSize);
    CHECK_EQ(kHeaderBytes + header->length, packet.size());
  }
}

// A run of packets is recognised by comparing headers: nothing but offset, length and seal may differ.
TEST(a_packet_continues_a_run_only_if_all_else_is_equal) {
  const Header first = sample_header();
  Header header = sample_header();
  header.offset += header.length;
  const std::uint32_t offset = header.offset;
  CHECK(continues(first, packet_of(header), offset));
  header.length = 16;
  const auto shorter = packet_of(header);
  CHECK(continues(first, shorter, offset));
  CHECK(!continues(first, shorter, offset + 1));
  for (std::size_t length = 0; length < shorter.size(); ++length) {
    CHECK(!continues(first, std::span(shorter).first(length), offset));
  }
  for (std::size_t bit = 0; bit < kHeaderBytes * 8; ++bit) {
    auto other = shorter;
    other[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    CHECK_EQ(continues(first, other, offset), bit / 8 >= kSealAt);
  }
}

TEST(payloads_fit_their_path) {
  CHECK_EQ(payload_for_mtu(1500, false), 1408u);
  CHECK_EQ(payload_for_mtu(1500, true), 1344u);
  CHECK_EQ(payload_for_mtu(65'536, false), 65'408u);
  CHECK_EQ(payload_for_mtu(28 + kHeaderBytes + 63, false), 0u);
  CHECK_EQ(payload_for_mtu(28 + kHeaderBytes + 64, false), 64u);
  for (std::size_t mtu = 0; mtu < 70'000; mtu += 7) {
    for (const bool ipv6 : {false, true}) {
      const std::size_t payload = payload_for_mtu(mtu, ipv6);
      CHECK_EQ(payload % 64, 0u);
      CHECK(payload == 0 || payload + kHeaderBytes + (ipv6 ? 48 : 28) <= mtu);
      CHECK(payload + kHeaderBytes <= 65'507);
    }
  }
}

TEST(requests_survive_the_wire) {
  const RequestBody body{
      0xfedc'ba98u, PacketType::Decision, {{3, 0x8000'0000'0000'0001u}, {0xffff'ffffu, 5}}};
  const std::vector<std::byte> payload = to_bytes(body);
  CHECK_EQ(payload.size(), RequestBody::kFixedBytes + 2 * RequestBody::kEntryBytes);
  const auto back = from_bytes<RequestBody>(payload, kSize);
  CHECK(back.has_value());
  CHECK_EQ(back->newest, body.newest);
  CHECK(back->wanted == body.wanted);
  CHECK_EQ(back->entries.size(), 2u);
  CHECK_EQ(back->entries[0].chunk, 3u);
  CHECK_EQ(back->entries[0].missing, 0x8000'0000'0000'0001u);
  CHECK_EQ(back->entries[1].chunk, 0xffff'ffffu);
  CHECK_EQ(back->entries[1].missing, 5u);
}

TEST(broken_requests_are_rejected) {
  std::vector<std::byte> payload = to_bytes(RequestBody{1, PacketType::Contribution, {{0, 1}}});
  CHECK(from_bytes<RequestBody>(payload, kSize).has_value());
  for (std::size_t length = 0; length < payload.size(); ++length)
    CHECK(!from_bytes<RequestBody>(std::span(payload).first(length), kSize));
  std::vector<std::byte> longer = payload;
  longer.push_back(std::byte{0});
  CHECK(!from_bytes<RequestBody>(longer, kSize));
  for (const std::uint8_t wanted : {std::uint8_t{0}, std::uint8_t{3}, std::uint8_t{255}}) {
    put(payload, 4, wanted);  // only data can be asked for
    CHECK(!from_bytes<RequestBody>(payload, kSize));
  }
}

// A change of the layout must be a decision, as with headers.
TEST(the_layout_of_bodies_is_the_documented_one) {
  const auto is = [](const std::vector<std::byte>& found, const std::vector<unsigned>& expected) {
    return std::ranges::equal(found, expected, {},
                              [](std::byte each) { return std::to_integer<unsigned>(each); });
  };
  CHECK(is(to_bytes(RequestBody{0x0403'0201u, PacketType::Decision, {{7, 8}}}),
           {1, 2, 3, 4, 2, 1, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0}));
  CHECK(is(to_bytes(RejectBody{RejectReason::Left,
                               6,
                               2,
                               {10, DType::Float64, ReduceOp::Sum, true},
                               {11, DType::Float16, ReduceOp::Mean}}),
           {2, 6, 0, 2, 0, 10, 0, 0, 0, 1, 0, 1, 11, 0, 0, 0, 3, 1, 0}));
}

TEST(rejections_survive_the_wire) {
  const RejectBody body{RejectReason::Mismatch,
                        6,
                        2,
                        {10, DType::Float64, ReduceOp::Sum},
                        {11, DType::Float16, ReduceOp::Mean}};
  CHECK(from_bytes<RejectBody>(to_bytes(body), kSize) == body);
}

TEST(broken_rejections_are_rejected) {
  const std::vector<std::byte> payload = to_bytes(RejectBody{RejectReason::Timeout, 6, 2, {}, {}});
  CHECK(from_bytes<RejectBody>(payload, kSize).has_value());
  CHECK(!from_bytes<RejectBody>(payload, 6));  // no such culprit
  CHECK(!from_bytes<RejectBody>(std::span(payload).first(payload.size() - 1), kSize));
  // Reason, element type, reduction, bounded.
  const std::initializer_list<std::pair<std::size_t, std::uint8_t>> unknown = {
      {0, 4}, {16, 5}, {17, 4}, {18, 2}};
  for (const auto& [at, value] : unknown) {
    std::vector<std::byte> broken = payload;
    put(broken, at, value);
    CHECK(!from_bytes<RejectBody>(broken, kSize));
  }
}

RUN_TESTS()
