#include "sim/link.h"

#include <algorithm>

namespace optireduce::sim {
namespace {

constexpr std::size_t kUdpIpBytes = 28;  // what UDP and IPv4 add to a packet on a link

double bytes_waiting(Duration backlog, double bits_per_second) {
  return backlog.seconds() * bits_per_second / 8;
}

}  // namespace

std::optional<Time> Link::serialise(Time now, std::size_t bytes, const LinkOptions& options) {
  if (options.bits_per_second <= 0) return now;
  const std::size_t on_link = bytes + kUdpIpBytes;
  const Time begin = std::max(now, busy_until_);
  const double waiting = bytes_waiting(begin - now, options.bits_per_second);
  if (options.queue_bytes > 0 &&
      waiting + static_cast<double>(on_link) > static_cast<double>(options.queue_bytes)) {
    return std::nullopt;
  }
  busy_until_ = begin + Duration::from_seconds(static_cast<double>(on_link) * 8 / options.bits_per_second);
  return busy_until_;
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
