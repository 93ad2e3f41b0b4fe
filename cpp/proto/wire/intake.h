// Datagrams in: checks seals and headers, and joins packets that continue each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "wire/received_run.h"
#include "wire/seal.h"

namespace optireduce {

/// What a socket delivered: one packet, or several of equal length (the last may be shorter) in one buffer
/// (GRO).
struct Datagram {
  Rank from = 0;
  BufferRef buffer;
  std::uint32_t bytes = 0;  // where the last packet ends in the buffer
  std::uint32_t segment_bytes = 0;
  std::uint32_t begin = 0;  // where the first one begins
  bool group = false;       // came by multicast

  /// From one packet to the next.
  std::uint32_t stride() const { return std::max<std::uint32_t>(1, std::min(segment_bytes, bytes)); }
};

class Intake {
 public:
  Intake(const Seal& seal, Rank self, Rank size) : seal_(seal), self_(self), size_(size) {}

  /// No byte of a packet is believed before its seal has been checked.
  void open(const Datagram& datagram);
  /// Decodes the packet at `at` of that datagram and those behind it that continue it, and moves `at` past
  /// them. Nothing if the packet is bad, and whether it is forged.
  std::optional<ReceivedRun> next(const Datagram& datagram, std::uint32_t& at, bool& forged) const;

 private:
  const Seal& seal_;
  Rank self_, size_;
  std::vector<bool> genuine_;  // by packet
};

}  // namespace optireduce
