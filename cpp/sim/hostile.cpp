#include "sim/hostile.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "wire/packet.h"

namespace optireduce::sim {
namespace {

using Bytes = std::vector<std::byte>;

std::byte random_byte(Random& random) {
  return static_cast<std::byte>(random.next() & 0xff);
}

/// Changes a byte to another value.
void spoil(Bytes& packet, std::size_t at, Random& random) {
  packet[at] ^= static_cast<std::byte>(1 + random.below(255));
}

Bytes forged(Bytes packet, Random& random) {
  spoil(packet, kSealAt + random.below(kHeaderBytes - kSealAt), random);
  for (std::uint64_t changes = random.below(16); changes > 0; --changes) {
    const std::size_t at = random.below(packet.size());
    const bool in_seal = at >= kSealAt && at < kHeaderBytes;
    if (!in_seal) packet[at] = random_byte(random);
  }
  return packet;
}

Bytes tampered(Bytes packet, Random& random) {
  const std::uint64_t bit = random.below(packet.size() * 8);
  packet[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
  return packet;
}

Bytes truncated(Bytes packet, Random& random) {
  packet.resize(random.below(packet.size()));
  return packet;
}

/// One field that cannot be right. Fields that another genuine packet could carry stay as they are: whoever
/// can seal packets is believed.
Bytes mangled(Bytes packet, Rank ranks, Random& random) {
  constexpr std::size_t kSenderAt = offsetof(Header, sender);
  switch (random.below(6)) {
    case 0:
      spoil(packet, offsetof(Header, version), random);
      break;
    case 1:
      if (random.chance(0.5)) {
        packet[offsetof(Header, type)] = std::byte{0};  // no type is 0 ...
      } else {
        packet[offsetof(Header, zero)] |= std::byte{0x80};  // ... not zero
      }
      break;
    case 2:
      packet[kSenderAt] =
          static_cast<std::byte>(static_cast<unsigned>(packet[kSenderAt]) + 1 + random.below(ranks - 1u));
      break;
    case 3:
      spoil(packet, offsetof(Header, length) + random.below(2), random);
      break;
    case 4:
      packet[offsetof(Header, offset)] ^= std::byte{1};  // no packet begins there
      if (packet.size() > kHeaderBytes) spoil(packet, kHeaderBytes, random);
      break;
    default:
      packet[offsetof(Header, shard) + 1] = std::byte{0xff};  // no group has that many shards
  }
  return packet;
}

/// As a member of the session would send it.
Bytes sealed(Bytes packet, Rank to, const SimOptions& options) {
  if (packet.size() < kHeaderBytes) return packet;
  Segment segment{{}, std::span(packet).subspan(kHeaderBytes)};
  std::copy_n(packet.begin(), kHeaderBytes, segment.header.begin());
  seal_of(options, to).close(std::span(&segment, 1), to);
  std::copy(segment.header.begin(), segment.header.end(), packet.begin());
  return packet;
}

}  // namespace

std::vector<HostilePacket> sabotage(std::span<const std::byte> genuine, Rank to, const SimOptions& options,
                                    Random& random) {
  const HostileOptions& hostile = options.hostile;
  std::vector<HostilePacket> packets;
  const Bytes bytes(genuine.begin(), genuine.end());
  if (random.chance(hostile.forge)) packets.push_back({forged(bytes, random), {}});
  if (random.chance(hostile.truncate)) packets.push_back({sealed(truncated(bytes, random), to, options), {}});
  if (random.chance(hostile.mangle))
    packets.push_back({sealed(mangled(bytes, options.ranks, random), to, options), {}});
  if (random.chance(hostile.replay)) packets.push_back({bytes, random.duration_up_to(hostile.replay_delay)});
  if (random.chance(hostile.tamper)) packets.push_back({tampered(bytes, random), {}});
  return packets;
}

}  // namespace optireduce::sim
