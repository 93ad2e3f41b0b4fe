#include "wire/packet.h"

#include <bit>
#include <cstring>
#include <type_traits>

namespace optireduce {

static_assert(std::endian::native == std::endian::little,
              "the wire is little-endian; a big-endian host needs byte swaps");
static_assert(std::is_trivially_copyable_v<Header> && std::has_unique_object_representations_v<Header> &&
                  sizeof(Header) == kSealAt,
              "a header is copied to the wire as it is: its fields fill it");

void encode_fields(const Header& header, std::byte* out) {
  std::memcpy(out, &header, sizeof header);
}

std::optional<Header> decode(std::span<const std::byte> packet, Rank size) {
  constexpr std::size_t kBoundedAt = offsetof(Header, descriptor) + offsetof(Descriptor, bounded);
  // A bool must not be read before it is known to be one.
  if (packet.size() < kHeaderBytes || packet[kBoundedAt] > std::byte{1}) return std::nullopt;
  Header header;
  std::memcpy(&header, packet.data(), sizeof header);
  const bool known = header.version == kProtocolVersion && header.type >= PacketType::First &&
                     header.type <= PacketType::Last && header.zero == 0 && header.descriptor.is_known();
  const bool placed = header.sender < size && header.shard < size &&
                      (is_data(header.type) || header.offset == 0) &&
                      kHeaderBytes + header.length == packet.size();
  if (!known || !placed) return std::nullopt;
  return header;
}

bool continues(const Header& first, std::span<const std::byte> next, std::uint32_t offset) {
  if (next.size() < kHeaderBytes) return false;
  Header expected = first;
  expected.offset = offset;
  expected.length = static_cast<std::uint16_t>(next.size() - kHeaderBytes);
  return std::memcmp(&expected, next.data(), sizeof expected) == 0;
}

std::uint32_t payload_for_mtu(std::size_t mtu, bool ipv6) {
  constexpr std::size_t kAlign = 64;  // whole cache lines, so that packets can be placed past the cache
  constexpr std::size_t kMaxDatagram = 65'507;  // the largest UDP payload over IPv4
  const std::size_t ip_and_udp = ipv6 ? 48 : 28;
  if (mtu < ip_and_udp + kHeaderBytes + kAlign) return 0;
  const std::size_t datagram = mtu - ip_and_udp < kMaxDatagram ? mtu - ip_and_udp : kMaxDatagram;
  return static_cast<std::uint32_t>((datagram - kHeaderBytes) / kAlign * kAlign);
}

}  // namespace optireduce
