// Packets as a member of the session would send them, and as a stranger would: the only place of the fuzzers
// that knows what makes a packet genuine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "../cpp/sealed.h"
#include "wire/packet.h"

namespace fuzz {

using Bytes = std::vector<std::byte>;
using Secret = optireduce::SipKey;

constexpr optireduce::Rank kSubject = 0;  // to whom all packets go
constexpr Secret kSecret{0x5eed'0123'4567'89ab, 0xcdef'0123'4567'89ab};
constexpr Secret kWrongSecret{0x5eed'0123'4567'88ab, 0xcdef'0123'4567'89ab};

inline Bytes sealed(const optireduce::Header& header, std::span<const std::byte> payload,
                    const Secret& secret) {
  Bytes packet(optireduce::kHeaderBytes + payload.size());
  std::copy(payload.begin(), payload.end(), packet.begin() + optireduce::kHeaderBytes);
  optireduce::encode(header, {secret, kSubject}, payload, kSubject, packet.data());
  return packet;
}

/// As the subject reads a packet.
inline std::optional<optireduce::Header> received(std::span<const std::byte> packet, optireduce::Rank size) {
  const optireduce::Seal seal(kSecret, kSubject);
  return optireduce::opens(seal, packet) ? optireduce::decode(packet, size) : std::nullopt;
}

/// Any bytes at all, with a seal that holds: what only a broken or hostile member can send.
inline void seal_raw(std::span<std::byte> packet, const Secret& secret) {
  if (packet.size() < optireduce::kHeaderBytes) return;
  const optireduce::Seal seal(secret, kSubject);
  optireduce::seal_packet(seal, packet.data(), packet.subspan(optireduce::kHeaderBytes), kSubject);
}

}  // namespace fuzz
