// How much may be on its way to one peer, from the delay and the loss that packets meet (after Swift and
// TIMELY).
//
// Two regimes. It begins with a size with which all senders together fit a shallow switch buffer: more would
// be dropped when they send at once, and less would leave the link idle. While queues stay empty it grows
// towards an upper bound that keeps a fast path busy and the CPU cool. Where packets wait, it shrinks with
// the excess over a target, once per round trip, back to that size; so does loss where there is a queue to
// lose in. The shortest round trip of each period counts, because schedulers delay single packets, queues
// delay all. Below that size it goes only when nothing comes back at all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/time.h"
#include "path/options.h"

namespace optireduce {

struct WindowBounds {
  std::size_t lower = 0;
  std::size_t shallow = 0;
  std::size_t upper = 0;

  /// For one of `peers` peers, of which this one granted `grant` bytes.
  static WindowBounds of(const PathOptions& options, std::size_t peers, std::size_t grant) {
    constexpr std::size_t kInCache = 1024 * 1024;       // more under way than this falls out of the caches
    constexpr std::size_t kShallowSwitch = 256 * 1024;  // what a port of a small switch can queue
    constexpr std::size_t kStages = 2;                  // each has a window of its own
    constexpr std::size_t kTwoChunks = 128 * 1024;
    constexpr std::size_t kLeastPackets = 4;
    const std::size_t others = std::max<std::size_t>(peers, 1);
    const std::size_t fast = std::max(kTwoChunks, kInCache / others);
    const std::size_t upper =
        std::max<std::size_t>(std::min({options.window_bytes, grant, fast}), options.payload_bytes);
    const std::size_t lower = std::min(kLeastPackets * options.payload_bytes, upper);
    const std::size_t shallow = std::max(kShallowSwitch / (kStages * others), lower);
    return {lower, std::clamp(shallow, lower, upper), upper};
  }
};

class CongestionLimit {
 public:
  CongestionLimit() = default;
  CongestionLimit(const WindowBounds& bounds, std::uint32_t payload_bytes)
      : bounds_(bounds), limit_(bounds.shallow), payload_bytes_(payload_bytes) {}

  std::size_t bytes() const { return limit_; }
  const WindowBounds& bounds() const { return bounds_; }
  Duration smoothed() const { return smoothed_; }
  /// Whether packets wait in queues on the way.
  bool queued() const { return measured_ && smoothed_ > least_ + kQueueTarget / 2; }

  /// `wanted_more`: the limit held something back since the last round trip.
  void on_round_trip(Time now, Duration rtt, bool wanted_more) {
    rtt = std::min(rtt, kLongest);  // longer ones are ranks that stood still
    least_ = measured_ ? std::min(least_, rtt) : rtt;
    smoothed_ = measured_ ? (smoothed_ * 7 + rtt) / 8 : rtt;
    period_least_ = samples_ == 0 ? rtt : std::min(period_least_, rtt);
    measured_ = true;
    ++samples_;
    wanted_more_ = wanted_more_ || wanted_more;
    if (samples_ >= kLeastSamples && now >= decided_at_ + smoothed_) decide(now);
  }

  /// Loss where packets wait is a full queue; elsewhere it is noise, repaired and not obeyed.
  void on_loss(Time now) {
    if (queued() && limit_ > bounds_.shallow && now >= reduced_at_ + smoothed_)
      shrink(now, 0.5, bounds_.shallow);
  }

  /// Nothing came back for long: begin again with little.
  void on_silence(Time now) { shrink(now, 0.0, bounds_.lower); }

 private:
  static constexpr Duration kQueueTarget = Duration::millis(6);
  static constexpr Duration kLongest = Duration::millis(100);
  static constexpr int kLeastSamples = 3;
  static constexpr int kQuietPeriods = 16;  // a slow path is quiet too, at the beginning of an operation

  void decide(Time now) {
    const Duration target = least_ + kQueueTarget;
    const Duration seen = period_least_;
    if (seen > target && limit_ > bounds_.shallow) {
      const double excess = static_cast<double>((seen - target).ns) / static_cast<double>(seen.ns);
      shrink(now, 1.0 - std::min(0.5, 0.8 * excess), bounds_.shallow);
    }
    quiet_periods_ = seen < least_ + kQueueTarget / 2 ? quiet_periods_ + 1 : 0;
    if (wanted_more_ && limit_ < bounds_.shallow) {
      limit_ = std::min(limit_ + std::max<std::size_t>(limit_ / 8, payload_bytes_), bounds_.shallow);
    } else if (wanted_more_ && quiet_periods_ > kQuietPeriods) {
      limit_ = std::min(limit_ + std::max<std::size_t>(limit_ / 16, payload_bytes_), bounds_.upper);
    }
    // A queue that never drains is part of the path: accept it within some thousand round trips.
    if (quiet_periods_ == 0) least_ = least_ + (seen - least_) / kPathMemory;
    begin_period(now);
  }

  void shrink(Time now, double factor, std::size_t least) {
    const auto smaller = static_cast<std::size_t>(static_cast<double>(limit_) * factor);
    limit_ = std::max(smaller, std::min(least, limit_));
    reduced_at_ = now;
    begin_period(now);
  }

  void begin_period(Time now) {
    decided_at_ = now;
    samples_ = 0;
    wanted_more_ = false;
  }

  static constexpr std::int64_t kPathMemory = 1024;

  WindowBounds bounds_;
  std::size_t limit_ = 0;
  std::uint32_t payload_bytes_ = 1;
  Duration least_, smoothed_, period_least_;
  Time decided_at_, reduced_at_;
  int samples_ = 0;        // in this period
  int quiet_periods_ = 0;  // in a row, without a queue
  bool measured_ = false;
  bool wanted_more_ = false;
};

}  // namespace optireduce
