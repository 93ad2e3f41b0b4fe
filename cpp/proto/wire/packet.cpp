#include "wire/packet.h"

#include <bit>
#include <cstring>
#include <type_traits>

namespace optireduce {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the wire is little-endian; a big-endian host needs byte swaps");

template <typename T>
void put(std::byte* out, std::size_t at, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(out + at, &value, sizeof(T));
}

template <typename T>
T get(const std::byte* in, std::size_t at) {
  T value;
  std::memcpy(&value, in + at, sizeof(T));
  return value;
}

// Byte offsets of the header's fields.
constexpr std::size_t kVersionAt = 0, kTypeAt = 1, kSenderAt = 2, kOperationAt = 4, kElementsAt = 8,
                      kKindAt = 12, kFlagsAt = 13, kLengthAt = 14, kOffsetAt = 16, kShardAt = 20,
                      kViewAt = 22, kTimestampAt = 24, kCompletedAt = 28, kStreamAt = 32, kOldestAt = 37,
                      kIncastAt = 38, kEchoAt = 40, kHoldAt = 44, kDetailAt = 48;
static_assert(kDetailAt + sizeof(std::uint64_t) == kSealAt &&
              kSealAt + sizeof(std::uint64_t) == kHeaderBytes);

/// The lower half of the type's byte is the type, the upper half the scope.
constexpr unsigned kScopeShift = 4;
constexpr unsigned kBoundedKind = 0x80;
constexpr std::uint8_t kTypeMask = (1u << kScopeShift) - 1;

std::uint8_t encode_kind(const Descriptor& d) {
  return static_cast<std::uint8_t>(static_cast<unsigned>(d.dtype) | static_cast<unsigned>(d.op) << 4 |
                                   (d.bounded ? kBoundedKind : 0u));
}

std::optional<Descriptor> decode_descriptor(std::uint32_t elements, std::uint8_t kind) {
  const unsigned dtype = kind & 0xfu;
  const unsigned op = kind >> 4 & 0x7u;
  if (dtype > static_cast<unsigned>(kLastDType) || op > static_cast<unsigned>(ReduceOp::Gather))
    return std::nullopt;
  return Descriptor{elements, static_cast<DType>(dtype), static_cast<ReduceOp>(op),
                    (kind & kBoundedKind) != 0};
}

bool known(std::uint8_t type) {
  return type >= static_cast<std::uint8_t>(PacketType::Contribution) &&
         type <= static_cast<std::uint8_t>(PacketType::View);
}

}  // namespace

void encode_fields(const Header& header, std::byte* out) {
  std::memset(out, 0, kSealAt);
  put(out, kVersionAt, kProtocolVersion);
  put(out, kTypeAt,
      static_cast<std::uint8_t>(static_cast<unsigned>(header.type) | static_cast<unsigned>(header.scope)
                                                                         << kScopeShift));
  put(out, kSenderAt, header.sender);
  put(out, kOperationAt, header.operation);
  put(out, kElementsAt, header.descriptor.elements);
  put(out, kKindAt, encode_kind(header.descriptor));
  put(out, kFlagsAt, header.flags);
  put(out, kLengthAt, header.length);
  put(out, kOffsetAt, header.offset);
  put(out, kShardAt, header.shard);
  put(out, kViewAt, header.view);
  put(out, kTimestampAt, header.timestamp);
  put(out, kCompletedAt, header.completed);
  put(out, kStreamAt, header.stream);
  put(out, kOldestAt, header.oldest);
  put(out, kIncastAt, header.incast);
  put(out, kEchoAt, header.echo);
  put(out, kHoldAt, header.hold);
  put(out, kDetailAt, header.detail);
}

void encode(const Header& header, const Seal& seal, std::span<const std::byte> payload, Rank to,
            std::byte* out) {
  encode_fields(header, out);
  seal.close(out, payload, to);
}

PacketType type_of(const std::byte* header) {
  return static_cast<PacketType>(get<std::uint8_t>(header, kTypeAt) & kTypeMask);
}

std::uint8_t flags_of(const std::byte* header) {
  return get<std::uint8_t>(header, kFlagsAt);
}

std::optional<Header> decode(std::span<const std::byte> packet, Rank size) {
  if (packet.size() < kHeaderBytes) return std::nullopt;
  const std::byte* in = packet.data();
  if (get<std::uint8_t>(in, kVersionAt) != kProtocolVersion) return std::nullopt;
  const std::uint8_t type = get<std::uint8_t>(in, kTypeAt) & kTypeMask;
  const std::uint8_t scope = get<std::uint8_t>(in, kTypeAt) >> kScopeShift;
  if (!known(type) || scope >= kScopes) return std::nullopt;

  Header header;
  header.type = static_cast<PacketType>(type);
  header.scope = static_cast<Scope>(scope);
  header.sender = get<Rank>(in, kSenderAt);
  header.operation = get<std::uint32_t>(in, kOperationAt);
  header.flags = get<std::uint8_t>(in, kFlagsAt);
  header.length = get<std::uint16_t>(in, kLengthAt);
  header.offset = get<std::uint32_t>(in, kOffsetAt);
  header.shard = get<std::uint16_t>(in, kShardAt);
  header.view = get<std::uint16_t>(in, kViewAt);
  header.timestamp = get<std::uint32_t>(in, kTimestampAt);
  header.completed = get<std::uint32_t>(in, kCompletedAt);
  header.oldest = get<std::uint8_t>(in, kOldestAt);
  header.incast = get<std::uint8_t>(in, kIncastAt);
  header.echo = get<std::uint32_t>(in, kEchoAt);
  header.hold = get<std::uint16_t>(in, kHoldAt);
  header.stream = get<std::uint32_t>(in, kStreamAt);
  header.detail = get<std::uint64_t>(in, kDetailAt);

  if (header.sender >= size || header.shard >= size) return std::nullopt;
  if (!is_data(header.type) && header.offset != 0) return std::nullopt;
  if (kHeaderBytes + header.length != packet.size()) return std::nullopt;
  const auto descriptor =
      decode_descriptor(get<std::uint32_t>(in, kElementsAt), get<std::uint8_t>(in, kKindAt));
  if (!descriptor) return std::nullopt;
  header.descriptor = *descriptor;
  return header;
}

bool continues(std::span<const std::byte> first, std::span<const std::byte> next, std::uint32_t offset) {
  if (next.size() < kHeaderBytes) return false;
  const std::byte* a = first.data();
  const std::byte* b = next.data();
  return get<std::uint32_t>(b, kOffsetAt) == offset &&
         get<std::uint16_t>(b, kLengthAt) == next.size() - kHeaderBytes &&
         std::memcmp(a, b, kLengthAt) == 0 &&
         std::memcmp(a + kShardAt, b + kShardAt, kSealAt - kShardAt) == 0;
}

std::uint32_t payload_for_mtu(std::size_t mtu, bool ipv6) {
  constexpr std::size_t kAlign = 64;  // whole cache lines, so that packets can be placed past the cache
  constexpr std::size_t kMaxDatagram = 65'507;  // the largest UDP payload over IPv4
  const std::size_t ip_and_udp = ipv6 ? 48 : 28;
  if (mtu < ip_and_udp + kHeaderBytes + kAlign) return 0;
  const std::size_t datagram = mtu - ip_and_udp < kMaxDatagram ? mtu - ip_and_udp : kMaxDatagram;
  return static_cast<std::uint32_t>((datagram - kHeaderBytes) / kAlign * kAlign);
}

void encode_request(const RequestBody& body, std::byte* out) {
  put(out, 0, body.newest);
  put(out, 4, body.wanted);
  std::memset(out + 5, 0, RequestBody::kFixedBytes - 5);
}

void encode_entry(const RequestEntry& entry, std::byte* out) {
  put(out, 0, entry.chunk);
  put(out, 4, entry.missing);
}

std::optional<RequestBody> decode_request(std::span<const std::byte> payload) {
  if (payload.size() < RequestBody::kFixedBytes) return std::nullopt;
  const std::size_t rest = payload.size() - RequestBody::kFixedBytes;
  if (rest % RequestBody::kEntryBytes != 0) return std::nullopt;
  const auto wanted = get<std::uint8_t>(payload.data(), 4);
  if (wanted != static_cast<std::uint8_t>(PacketType::Contribution) &&
      wanted != static_cast<std::uint8_t>(PacketType::Decision)) {
    return std::nullopt;
  }
  return RequestBody{get<std::uint32_t>(payload.data(), 0), static_cast<PacketType>(wanted),
                     rest / RequestBody::kEntryBytes};
}

RequestEntry decode_entry(std::span<const std::byte> payload, std::size_t index) {
  const std::byte* in = payload.data() + RequestBody::kFixedBytes + index * RequestBody::kEntryBytes;
  return {get<std::uint32_t>(in, 0), get<std::uint64_t>(in, 4)};
}

void encode_reject(const RejectBody& body, std::byte* out) {
  put(out, 0, body.reason);
  put(out, 1, std::uint8_t{0});
  put(out, 2, body.culprit);
  put(out, 4, body.reporter);
  put(out, 6, encode_kind(body.expected));
  put(out, 7, encode_kind(body.found));
  put(out, 8, body.expected.elements);
  put(out, 12, body.found.elements);
  put(out, 16, std::uint32_t{0});
}

std::optional<RejectBody> decode_reject(std::span<const std::byte> payload, Rank size) {
  if (payload.size() != RejectBody::kBytes) return std::nullopt;
  const std::byte* in = payload.data();
  const auto reason = get<std::uint8_t>(in, 0);
  if (reason < static_cast<std::uint8_t>(RejectReason::Mismatch) ||
      reason > static_cast<std::uint8_t>(RejectReason::Left)) {
    return std::nullopt;
  }
  const Rank culprit = get<Rank>(in, 2);
  const Rank reporter = get<Rank>(in, 4);
  const auto expected = decode_descriptor(get<std::uint32_t>(in, 8), get<std::uint8_t>(in, 6));
  const auto found = decode_descriptor(get<std::uint32_t>(in, 12), get<std::uint8_t>(in, 7));
  if (culprit >= size || reporter >= size || !expected || !found) return std::nullopt;
  return RejectBody{static_cast<RejectReason>(reason), culprit, reporter, *expected, *found};
}

}  // namespace optireduce
