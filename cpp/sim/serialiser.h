// A transmitter with a queue before it: what every link and port with a rate is made of.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>

#include "base/time.h"

namespace optireduce::sim {

/// What Ethernet, IPv4 and UDP add to every packet, on links and ports alike: what a shaper (tc tbf) counts.
constexpr std::size_t kWireOverheadBytes = 14 + 20 + 8;

/// Sends packets one after the other at a rate; drops those that find no room in the queue (drop-tail).
class Serialiser {
 public:
  /// When a packet of `wire_bytes` that comes now has left; nothing if the queue has no room for it. Packets
  /// must be given in the order in which they come. A queue of 0 bytes has no limit.
  std::optional<Time> pass(Time now, std::size_t wire_bytes, double bits_per_second,
                           std::size_t queue_bytes) {
    const Time begin = std::max(now, busy_until_);
    const auto bytes = static_cast<double>(wire_bytes);
    const double waiting = (begin - now).seconds() * bits_per_second / 8;
    if (queue_bytes > 0 && waiting + bytes > static_cast<double>(queue_bytes)) return std::nullopt;
    busy_until_ = begin + Duration{std::llround(bytes * 8e9 / bits_per_second)};
    return busy_until_;
  }

 private:
  Time busy_until_;
};

}  // namespace optireduce::sim
