// Flow control towards one peer, self-clocked: the reduced packet that comes back is the credit for the next
// contribution, so that a quiet network carries no acknowledgements at all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace optireduce {

class SendWindow {
 public:
  SendWindow() = default;
  SendWindow(std::size_t limit_bytes, std::uint32_t payload_bytes, std::uint32_t chunk_packets)
      : limit_(std::max<std::size_t>(limit_bytes, payload_bytes)) {
    // Half a window at least must be free to send into while the other half is under way.
    const std::size_t half_window_packets = limit_ / 2 / payload_bytes;
    batch_packets_ =
        static_cast<std::uint32_t>(std::clamp<std::size_t>(half_window_packets, 1, chunk_packets));
  }

  /// The largest batch worth sending at once.
  std::uint32_t batch_packets() const { return batch_packets_; }
  /// A batch goes whole or not at all; one is always allowed when nothing is under way.
  bool admits(std::size_t bytes) const { return outstanding_ == 0 || outstanding_ + bytes <= limit_; }
  void on_sent(std::size_t bytes) { outstanding_ += bytes; }
  void on_credit(std::size_t bytes) { outstanding_ -= std::min(bytes, outstanding_); }
  std::size_t outstanding() const { return outstanding_; }

 private:
  std::size_t limit_ = 0;
  std::size_t outstanding_ = 0;
  std::uint32_t batch_packets_ = 1;
};

}  // namespace optireduce
