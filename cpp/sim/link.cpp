#include "sim/link.h"

namespace optireduce::sim {

std::optional<Time> Link::serialise(Time now, std::size_t bytes, const LinkOptions& options) {
  if (options.bits_per_second <= 0) return std::max(now, stalled_until_);
  const auto passed =
      serialiser_.pass(now, bytes + kWireOverheadBytes, {options.bits_per_second, options.queue_bytes});
  if (!passed) return std::nullopt;
  return std::max(*passed, stalled_until_);
}

std::optional<Duration> travel(const LinkOptions& options, Random& random, Counters& counters) {
  if (random.chance(options.loss)) {
    ++counters.lost;
    return std::nullopt;
  }
  Duration time = options.delay;
  if (random.chance(options.reorder)) {
    ++counters.reordered;
    time = time + random.duration_up_to(options.reorder_delay);
  }
  return time;
}

}  // namespace optireduce::sim
