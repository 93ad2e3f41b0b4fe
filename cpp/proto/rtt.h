// How long to wait for an answer before asking again: smoothed mean plus four deviations (RFC 6298), of the
// time from sending a chunk to receiving it reduced.
#pragma once

#include <algorithm>

#include "proto/config.h"
#include "proto/time.h"

namespace optireduce {

class RttEstimator {
 public:
  RttEstimator() = default;
  explicit RttEstimator(const EndpointConfig& config)
      : min_(config.repair_min), max_(config.repair_max), timeout_(config.repair_initial) {}

  void sample(Duration rtt) {
    least_ = measured_ ? std::min(least_, rtt) : rtt;
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
  Duration smoothed() const { return smoothed_; }
  /// Whether packets wait in queues on the way: the turnaround is well above the shortest one seen, or longer
  /// than networks of one site take (a queue that was never empty hides the shortest one).
  bool inflated() const {
    constexpr Duration kLong = Duration::millis(5);
    return measured_ && (smoothed_ > least_ * 2 || smoothed_ > kLong);
  }

 private:
  Duration min_, max_, timeout_;
  Duration smoothed_, deviation_, least_;
  bool measured_ = false;
};

}  // namespace optireduce
