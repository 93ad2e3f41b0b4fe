// Packets as a member of the session would send them, and as a stranger would: the only place of the fuzzers
// that knows what makes a packet genuine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "proto/packet.h"

namespace fuzz {

using Bytes = std::vector<std::byte>;
using Secret = std::uint64_t;

constexpr Secret kSecret = 0x5eed'0123'4567'89ab;
constexpr Secret kWrongSecret = kSecret ^ 0x100;

inline Bytes sealed(const optireduce::Header& header, std::span<const std::byte> payload, Secret secret) {
  Bytes packet(optireduce::kHeaderBytes + payload.size());
  std::copy(payload.begin(), payload.end(), packet.begin() + optireduce::kHeaderBytes);
  optireduce::encode(header, secret, packet.data());
  return packet;
}

/// Any bytes at all, with a seal that holds: what only a broken or hostile member can send.
inline void seal_raw(std::span<std::byte> packet, Secret secret) {
  constexpr std::size_t kSealAt = optireduce::kHeaderBytes - sizeof(Secret);
  if (packet.size() >= optireduce::kHeaderBytes)
    std::memcpy(packet.data() + kSealAt, &secret, sizeof(Secret));
}

}  // namespace fuzz
