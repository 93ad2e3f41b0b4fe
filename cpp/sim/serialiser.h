// A transmitter with a queue before it: what every link and port with a rate is made of.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>

#include "base/time.h"
#include "sim/options.h"

namespace optireduce::sim {

/// What Ethernet, IPv4 and UDP add to every packet, on links and ports alike: what a shaper (tc tbf) counts.
constexpr std::size_t kWireOverheadBytes = 14 + 20 + 8;

/// Sends packets one after the other at a rate; drops those that find no room in the queue (drop-tail). A
/// token bucket may be ahead of its rate by the bucket.
class Serialiser {
 public:
  /// When a packet of `wire_bytes` that comes now has left; nothing if it is dropped. Packets must be given
  /// in the order in which they come.
  std::optional<Time> pass(Time now, std::size_t wire_bytes, const PortOptions& port) {
    const auto time_of = [&](std::size_t bytes) {
      return Duration{std::llround(static_cast<double>(bytes) * 8e9 / port.bits_per_second)};
    };
    const Time paid = std::max(now - time_of(port.burst_bytes), paid_until_) + time_of(wire_bytes);
    if (port.policer && paid > now) return std::nullopt;
    const std::size_t room = port.queue_bytes;
    if (room > 0 && paid > now + time_of(room)) return std::nullopt;
    paid_until_ = paid;
    return std::max(paid, now);
  }

 private:
  Time paid_until_;  // its tokens are spent until then
};

}  // namespace optireduce::sim
