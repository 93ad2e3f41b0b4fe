// What all paths of a rank are told once, and how long to wait on one of them.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/time.h"

namespace optireduce {

struct PathOptions {
  /// Bytes of a bucket in one packet; the same on every rank, a multiple of 16 (better of 64, see
  /// payload_for_mtu).
  std::uint32_t payload_bytes = 1408;

  /// Contributions that may be on their way to one peer. 2 to 4 chunks of 64 KB fill a fast link; more falls
  /// out of the caches and overflows stock socket buffers.
  std::size_t window_bytes = 256 * 1024;

  /// Bounds of the adaptive wait before missing packets are asked for again, and its value before any
  /// measurement.
  Duration repair_min = Duration::millis(5);
  Duration repair_max = Duration::millis(200);
  Duration repair_initial = Duration::millis(20);

  /// How long a gap may be explained by reordering before it counts as loss.
  Duration reorder_delay = Duration::micros(250);

  /// A peer whose window is full is told what has arrived after this time, unless a packet that goes there
  /// anyway says so before.
  Duration answer_delay = Duration::millis(1);

  /// An idle rank tells its peers after this time what it has completed, so that they can free memory.
  Duration ack_delay = Duration::millis(5);
};

/// When a receiver asks for what it misses.
struct RepairTimers {
  Duration silence;  // after the last packet: the sender may have lost all that followed
  Duration retry;    // after a request, while later packets come: its answer is lost. The sender knows better
  Duration reorder;  // after a gap appeared: it may close by itself
};

/// How long to wait for an answer before asking again: smoothed mean plus four deviations (RFC 6298) of the
/// round trips that packets took.
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
