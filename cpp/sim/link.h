// One direction between two ranks: when does a packet arrive, if ever?
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>

#include "base/time.h"
#include "sim/counters.h"
#include "sim/options.h"
#include "sim/random.h"
#include "sim/serialiser.h"

namespace optireduce::sim {

/// What links remember: what has not left yet. Everything else is options and chance.
class Link {
 public:
  /// When a packet of `bytes` that comes now has passed the link, without chance and delay; nothing if the
  /// queue has no room for it.
  std::optional<Time> serialise(Time now, std::size_t bytes, const LinkOptions& options);

  /// Nothing that comes from now on has passed before `until`.
  void stall(Time until) { stalled_until_ = std::max(stalled_until_, until); }

 private:
  Serialiser serialiser_;
  Time stalled_until_;
};

/// How long a packet is under way after it has passed the link; nothing if it is lost.
std::optional<Duration> travel(const LinkOptions& options, Random& random, Counters& counters);

}  // namespace optireduce::sim
