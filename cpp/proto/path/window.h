// Flow control towards one peer. Two limits:
//   under way   sent and not known to have arrived, for each stage: the congestion limit
//   unreturned  contributions that have not been decided: what an owner has to keep in buffers. It holds
//               fast ranks back to the pace of the slowest, until the owner says that it has room (kFlagGoOn)
// The decision that comes back, and the echo in whatever the peer sends us, are the credit: a quiet
// network carries no acknowledgements.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "path/byte_ledger.h"
#include "path/congestion.h"
#include "wire/packet.h"

namespace optireduce {

class SendWindow {
 public:
  SendWindow() = default;
  SendWindow(const WindowBounds& bounds, std::uint32_t payload_bytes, std::uint32_t chunk_packets)
      : limit_(bounds, payload_bytes), payload_bytes_(payload_bytes), chunk_packets_(chunk_packets) {}

  /// The largest batch worth sending at once: half a window must be free to send into while the other is
  /// under way. On slow links less: a full queue has no room for large ones, which travel as one, and drops
  /// them whole. A few packets are needed to save calls.
  std::uint32_t batch_packets() const {
    constexpr std::size_t kFewPackets = 6;
    const std::size_t packets = limit() / payload_bytes_;
    const bool slow = limit() <= limit_.bounds().shallow;
    const std::size_t batch = slow ? std::min(std::max(packets / 4, kFewPackets), packets / 2) : packets / 2;
    return static_cast<std::uint32_t>(std::clamp<std::size_t>(batch, 1, chunk_packets_));
  }

  /// A batch goes whole or not at all; one is always allowed when nothing is under way.
  bool admits(PacketType stage, std::size_t bytes) const {
    if (!fits(ledger(stage).outstanding(), bytes, limit())) return false;
    return stage == PacketType::Decision || fits(unreturned_.outstanding(), bytes, limit_.bounds().upper);
  }

  std::size_t batch_bytes() const { return std::size_t{batch_packets()} * payload_bytes_; }

  /// Repair was paid for by the owner's or our window before: only what is under way counts.
  bool admits_repair(PacketType stage, std::size_t bytes) const {
    return fits(ledger(stage).outstanding(), bytes, limit());
  }

  /// What keeps back another batch of this size, as flags for the receiver.
  std::uint8_t wanted_answers(PacketType stage, std::size_t bytes) const {
    std::uint8_t flags = 0;
    if (!fits(ledger(stage).outstanding(), bytes, limit())) flags |= kFlagAnswer;
    if (stage == PacketType::Contribution && !fits(unreturned_.outstanding(), bytes, limit_.bounds().upper)) {
      flags |= kFlagHeld;
    }
    return flags;
  }

  void on_sent(PacketType stage, std::uint32_t timestamp, std::size_t bytes, bool resent) {
    ledger(stage).add(timestamp, bytes);
    if (stage == PacketType::Contribution && !resent) unreturned_.add(timestamp, bytes);
  }
  /// The peer takes so many of `senders` senders at once (0: all of them). What fits a shallow switch fits it
  /// with all of them.
  void set_incast(std::uint8_t incast, std::size_t senders) {
    incast_share_ =
        incast == 0 || incast >= senders ? 1.0 : static_cast<double>(incast) / static_cast<double>(senders);
  }

  void on_held_back() { held_back_ = true; }

  void on_arrived(std::uint32_t timestamp) {
    for (ByteLedger& under_way : under_way_) under_way.settle(timestamp);
  }
  void on_returned(std::uint32_t timestamp) {
    on_arrived(timestamp);
    unreturned_.settle(timestamp);
  }
  void on_go_on(std::uint32_t timestamp) { unreturned_.settle(timestamp); }

  void on_round_trip(Time now, Duration rtt) {
    limit_.on_round_trip(now, rtt, held_back_);
    held_back_ = false;
  }
  void on_loss(Time now) { limit_.on_loss(now); }
  /// Nothing came back for long: all of it is lost.
  void on_silence(Time now) {
    for (ByteLedger& under_way : under_way_) under_way.clear();
    unreturned_.clear();
    limit_.on_silence(now);
  }

  std::size_t outstanding(PacketType stage) const { return ledger(stage).outstanding(); }
  std::size_t unreturned() const { return unreturned_.outstanding(); }
  std::size_t limit() const {
    const auto part = static_cast<std::size_t>(static_cast<double>(limit_.bytes()) * incast_share_);
    return std::max(part, std::min(limit_.bytes(), limit_.bounds().shallow));
  }
  Duration round_trip() const { return limit_.smoothed(); }

 private:
  static bool fits(std::size_t outstanding, std::size_t bytes, std::size_t limit) {
    return outstanding == 0 || outstanding + bytes <= limit;
  }
  ByteLedger& ledger(PacketType stage) { return under_way_[stage == PacketType::Decision]; }
  const ByteLedger& ledger(PacketType stage) const { return under_way_[stage == PacketType::Decision]; }

  CongestionLimit limit_;
  std::array<ByteLedger, 2> under_way_;  // contributions, decisions
  ByteLedger unreturned_;
  std::uint32_t payload_bytes_ = 1;
  std::uint32_t chunk_packets_ = 1;
  bool held_back_ = false;
  double incast_share_ = 1.0;
};

}  // namespace optireduce
