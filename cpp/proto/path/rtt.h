// How long to wait for an answer before asking again: smoothed mean plus four deviations (RFC 6298) of the
// round trips that packets took.
#pragma once

#include <algorithm>

#include "base/time.h"
#include "path/options.h"

namespace optireduce {

/// When a receiver asks for what it misses.
struct RepairTimers {
  Duration silence;  // after the last packet: the sender may have lost all that followed
  Duration retry;    // after a request, while later packets come: its answer is lost. The sender knows better
  Duration reorder;  // after a gap appeared: it may close by itself
};

class RttEstimator {
 public:
  RttEstimator() = default;
  explicit RttEstimator(const PathOptions& options)
      : min_(options.repair_min), max_(options.repair_max), timeout_(options.repair_initial) {}

  void sample(Duration rtt) {
    if (!measured_) {
      measured_ = true;
      smoothed_ = rtt;
      deviation_ = rtt / 2;
    } else {
      const Duration error{std::abs(rtt.ns - smoothed_.ns)};
      deviation_ = (deviation_ * 3 + error) / 4;
      smoothed_ = (smoothed_ * 7 + rtt) / 8;
    }
    timeout_ = std::clamp(smoothed_ + deviation_ * 4, min_, max_);
  }

  Duration repair_timeout() const { return timeout_; }
  RepairTimers timers(Duration reorder_delay) const {
    const Duration retry = measured_ ? std::clamp(smoothed_ + deviation_, min_, timeout_) : timeout_;
    return {timeout_, retry, reorder_delay};
  }

 private:
  Duration min_, max_, timeout_;
  Duration smoothed_, deviation_;
  bool measured_ = false;
};

}  // namespace optireduce
