// Flow control towards one peer, self-clocked: the reduced packet that comes back is the credit for the next
// contribution, so that a quiet network carries no acknowledgements at all.
//
// The limit moves between two bounds. The upper one keeps a fast path busy. The lower one is small enough for
// all peers together to fit a shallow switch buffer. Loss with a long turnaround means a full queue and
// halves the limit; it grows again by a packet for every 32 windows that come back: soon on a fast path,
// hardly on one that is slower than its queue is long, where the lower bound is as good. Loss on a path
// without a queue is noise: repaired, not obeyed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "proto/config.h"
#include "proto/rtt.h"
#include "proto/time.h"

namespace optireduce {

struct WindowBounds {
  std::size_t lower = 0;
  std::size_t upper = 0;

  /// For one of `peers` peers, of which this one granted `grant` bytes.
  static WindowBounds of(const EndpointConfig& config, std::size_t peers, std::size_t grant) {
    constexpr std::size_t kShallowSwitch = 256 * 1024;  // what a port of a small switch can queue
    constexpr std::size_t kInCache = 1024 * 1024;       // more under way than this falls out of the caches
    constexpr std::size_t kTwoChunks = 128 * 1024;
    const std::size_t others = std::max<std::size_t>(peers, 1);
    const std::size_t fast = std::max(kTwoChunks, kInCache / others);
    const std::size_t upper =
        std::max<std::size_t>(std::min({config.window_bytes, grant, fast}), config.payload_bytes);
    const std::size_t safe =
        std::clamp<std::size_t>(kShallowSwitch / others, 4 * config.payload_bytes, 64 * 1024);
    return {std::min(safe, upper), upper};
  }
};

class SendWindow {
 public:
  SendWindow() = default;
  SendWindow(const WindowBounds& bounds, std::uint32_t payload_bytes, std::uint32_t chunk_packets)
      : bounds_(bounds), limit_(bounds.upper), payload_bytes_(payload_bytes), chunk_packets_(chunk_packets) {}

  /// The largest batch worth sending at once: half a window must be free to send into while the other is
  /// under way.
  std::uint32_t batch_packets() const {
    return static_cast<std::uint32_t>(
        std::clamp<std::size_t>(limit_ / 2 / payload_bytes_, 1, chunk_packets_));
  }
  /// A batch goes whole or not at all; one is always allowed when nothing is under way.
  bool admits(std::size_t bytes) const { return outstanding_ == 0 || outstanding_ + bytes <= limit_; }
  void on_sent(std::size_t bytes) { outstanding_ += bytes; }

  void on_credit(std::size_t bytes) {
    outstanding_ -= std::min(bytes, outstanding_);
    earned_ += bytes;
    if (earned_ < kWindowsPerPacket * limit_ || limit_ == bounds_.upper) return;
    earned_ = 0;
    limit_ = std::min(limit_ + payload_bytes_, bounds_.upper);
  }

  /// A packet on this path was lost: once per turnaround, and only if there is a queue to lose it in.
  void on_loss(Time now, const RttEstimator& rtt) {
    if (!rtt.inflated() || now < reduced_at_ + rtt.smoothed()) return;
    reduced_at_ = now;
    earned_ = 0;
    limit_ = std::max(limit_ / 2, bounds_.lower);
  }

  std::size_t outstanding() const { return outstanding_; }
  std::size_t limit() const { return limit_; }

 private:
  static constexpr std::size_t kWindowsPerPacket = 32;

  WindowBounds bounds_;
  std::size_t limit_ = 0;
  std::size_t outstanding_ = 0;
  std::size_t earned_ = 0;  // credit since the limit was last raised
  std::uint32_t payload_bytes_ = 1;
  std::uint32_t chunk_packets_ = 1;
  Time reduced_at_;
};

}  // namespace optireduce
