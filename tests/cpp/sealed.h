// Single packets, sealed and opened as batches of one.
#pragma once

#include <algorithm>

#include "wire/packet.h"

namespace optireduce {

/// Writes the seal of a packet whose header is complete but for it.
inline void seal_packet(const Seal& seal, std::byte* header, std::span<const std::byte> payload, Rank to) {
  Segment segment{{}, payload};
  std::copy_n(header, kHeaderBytes, segment.header.begin());
  seal.close(std::span(&segment, 1), to);
  std::copy(segment.header.begin(), segment.header.end(), header);
}

/// Writes kHeaderBytes bytes: the header of a packet to `to` with this payload.
inline void encode(const Header& header, const Seal& seal, std::span<const std::byte> payload, Rank to,
                   std::byte* out) {
  encode_fields(header, out);
  seal_packet(seal, out, payload, to);
}

/// Whether one packet is genuine.
inline bool opens(const Seal& seal, std::span<const std::byte> packet) {
  std::vector<bool> genuine;
  seal.open_all(packet, std::max<std::size_t>(packet.size(), 1), genuine);
  return !genuine.empty() && genuine[0];
}

}  // namespace optireduce
