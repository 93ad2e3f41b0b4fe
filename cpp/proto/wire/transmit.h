// What the protocol wants sent: a batch of packets for one or several peers, or for the whole group.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "base/rank.h"
#include "wire/packet.h"

namespace optireduce {

struct Segment {
  std::array<std::byte, kHeaderBytes> header;
  std::span<const std::byte> payload;  // valid until the group is called again

  std::size_t bytes() const { return kHeaderBytes + payload.size(); }
};

/// All segments but the last are equally long, so that one GSO send can carry them. The same bytes go to
/// every destination. Reused from call to call: clear() keeps the memory.
struct Transmit {
  std::vector<Rank> to;
  bool group = false;  // multicast: sent once, for all of them
  std::vector<Segment> segments;
  std::vector<std::byte> control;  // backs the payload of control packets

  void clear() {
    to.clear();
    group = false;
    segments.clear();
    control.clear();
  }
};

}  // namespace optireduce
