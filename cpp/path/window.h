// Flow control towards one peer. Two limits:
//   under way   sent and not known to have arrived, for each stage: the congestion limit
//   unreturned  contributions that have not been decided: what an owner has to keep in buffers. It holds
//               fast ranks back to the pace of the slowest, until the owner says that it has room (kFlagGoOn)
// The decision that comes back, and the echo in whatever the peer sends us, are the credit: a quiet
// network carries no acknowledgements.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "base/rank.h"
#include "base/timestamp.h"
#include "path/rtt.h"

namespace optireduce {

/// What goes to a peer, each with a window of its own: contributions to its shard, and decisions of ours.
enum class Stage : std::uint8_t { Contributions, Decisions };

/// What has to come back before more may be sent.
struct Wanted {
  bool arrival = false;   // what of it has arrived
  bool decision = false;  // what of it has been decided, or that there is room for more

  bool any() const { return arrival || decision; }
};

/// Bytes on their way to one peer, by the timestamp they were sent with.
class ByteLedger {
 public:
  void add(std::uint32_t timestamp, std::size_t bytes) {
    entries_.emplace_back(timestamp, bytes);
    outstanding_ += bytes;
  }

  /// Whatever was sent no later than this has arrived or is lost: networks keep order nearly always.
  void settle(std::uint32_t timestamp) {
    while (!entries_.empty() && not_before(timestamp, entries_.front().first)) {
      outstanding_ -= entries_.front().second;
      entries_.pop_front();
    }
  }

  void clear() {
    entries_.clear();
    outstanding_ = 0;
  }

  std::size_t outstanding() const { return outstanding_; }

 private:
  std::deque<std::pair<std::uint32_t, std::size_t>> entries_;  // timestamp and bytes, oldest first
  std::size_t outstanding_ = 0;
};

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

/// How much may be on its way to one peer, from the delay and the loss that packets meet (after Swift and
/// TIMELY).
///
/// Two regimes. It begins with a size with which all senders together fit a shallow switch buffer: more would
/// be dropped when they send at once, and less would leave the link idle. While queues stay empty it grows
/// towards an upper bound that keeps a fast path busy and the CPU cool. Where packets wait, it shrinks with
/// the excess over a target, once per round trip, back to that size; so does loss where there is a queue to
/// lose in. The shortest round trip of each period counts, because schedulers delay single packets, queues
/// delay all. Below that size it goes only when nothing comes back at all.
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

/// How many packets may be sent by one call. Queues that count bytes drop a batch whole where it does not
/// fit: so where a larger share is lost than noise explains, batches become smaller.
class BatchLimit {
 public:
  BatchLimit() = default;
  explicit BatchLimit(std::uint32_t most) : most_(most), packets_(most) {}

  std::uint32_t packets() const { return packets_; }
  void on_sent(std::uint32_t packets) {
    sent_ += packets;
    if (++batches_ < kTrial) return;
    if (lost_ * kNoise < sent_) packets_ = std::min(packets_ * 2, most_);
    begin_trial();
  }
  /// So many packets are lost; batches had `used`.
  void on_loss(std::uint32_t packets, std::uint32_t used) {
    lost_ += packets;
    if (lost_ < 2 * used || lost_ * kTooMany < sent_) return;
    packets_ = std::max<std::uint32_t>(used / 2, 1);
    begin_trial();
  }

 private:
  static constexpr std::uint32_t kTrial = 64;   // batches after which larger ones are tried,
  static constexpr std::uint32_t kNoise = 32;   // if less than one packet in so many was lost
  static constexpr std::uint32_t kTooMany = 8;  // one packet in so many is lost: smaller ones at once

  void begin_trial() { sent_ = lost_ = batches_ = 0; }

  std::uint32_t most_ = 1, packets_ = 1;
  std::uint32_t sent_ = 0, lost_ = 0, batches_ = 0;  // since the last change or trial
};

class SendWindow {
 public:
  SendWindow() = default;
  SendWindow(const WindowBounds& bounds, std::uint32_t payload_bytes, std::uint32_t chunk_packets)
      : limit_(bounds, payload_bytes), payload_bytes_(payload_bytes), batch_(chunk_packets) {}

  /// The largest batch worth sending at once: half a window must be free to send into while the other is
  /// under way. On slow links less: a full queue has no room for large ones, which travel as one, and drops
  /// them whole. A few packets are needed to save calls.
  std::uint32_t batch_packets() const {
    constexpr std::size_t kFewPackets = 6;
    const std::size_t packets = limit() / payload_bytes_;
    const bool slow = limit() <= limit_.bounds().shallow;
    const std::size_t batch = slow ? std::min(std::max(packets / 4, kFewPackets), packets / 2) : packets / 2;
    return static_cast<std::uint32_t>(std::clamp<std::size_t>(batch, 1, batch_.packets()));
  }

  /// A batch goes whole or not at all; one is always allowed when nothing is under way.
  bool admits(Stage stage, std::size_t bytes) const { return !wanted(stage, bytes).any(); }

  std::size_t batch_bytes() const { return std::size_t{batch_packets()} * payload_bytes_; }

  /// Repair was paid for by the owner's or our window before: only what is under way counts.
  bool admits_repair(Stage stage, std::size_t bytes) const {
    return fits(ledger(stage).outstanding(), bytes, limit());
  }

  /// What keeps back another batch of this size.
  Wanted wanted(Stage stage, std::size_t bytes) const {
    const bool held = !fits(unreturned_.outstanding(), bytes, limit_.bounds().upper);
    return {!admits_repair(stage, bytes), held && stage == Stage::Contributions};
  }

  void on_sent(Stage stage, std::uint32_t timestamp, std::size_t bytes, bool resent) {
    ledger(stage).add(timestamp, bytes);
    batch_.on_sent(static_cast<std::uint32_t>((bytes + payload_bytes_ - 1) / payload_bytes_));
    if (stage == Stage::Contributions && !resent) unreturned_.add(timestamp, bytes);
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
  void on_loss(Time now, std::uint32_t packets) {
    limit_.on_loss(now);
    batch_.on_loss(packets, batch_packets());
  }
  /// Nothing came back for long: all of it is lost.
  void on_silence(Time now) {
    for (ByteLedger& under_way : under_way_) under_way.clear();
    unreturned_.clear();
    limit_.on_silence(now);
  }

  std::size_t limit() const {
    const auto part = static_cast<std::size_t>(static_cast<double>(limit_.bytes()) * incast_share_);
    return std::max(part, std::min(limit_.bytes(), limit_.bounds().shallow));
  }
  Duration round_trip() const { return limit_.smoothed(); }

 private:
  static bool fits(std::size_t outstanding, std::size_t bytes, std::size_t limit) {
    return outstanding == 0 || outstanding + bytes <= limit;
  }
  ByteLedger& ledger(Stage stage) { return under_way_[static_cast<std::size_t>(stage)]; }
  const ByteLedger& ledger(Stage stage) const { return under_way_[static_cast<std::size_t>(stage)]; }

  CongestionLimit limit_;
  std::array<ByteLedger, 2> under_way_;  // by stage
  ByteLedger unreturned_;
  std::uint32_t payload_bytes_ = 1;
  BatchLimit batch_;
  bool held_back_ = false;
  double incast_share_ = 1.0;
};

/// How many senders at once a receiver takes: advertised in its packets, halved by an operation in which many
/// packets were lost on their way to it, raised by one by an operation in which few were. Senders do not take
/// turns, which would starve a receiver that asks for few: each uses its part of as many windows.
class IncastPolicy {
 public:
  explicit IncastPolicy(Rank size) : most_(std::clamp<std::uint32_t>(size - 1u, 1, 255)), value_(most_) {}

  /// `lost_share`: of the operation's bytes, lost on their way to us and repaired. What a deadline cut off
  /// does not count: with fewer senders it would only be more.
  void learn(double lost_share) {
    if (lost_share > kTolerated) {
      value_ = std::max<std::uint32_t>(1, value_ / 2);
    } else {
      value_ = std::min(most_, value_ + 1);
    }
  }

  std::uint32_t value() const { return value_; }
  /// For the header: 0 where every sender may send.
  std::uint8_t code() const { return value_ == most_ ? std::uint8_t{0} : static_cast<std::uint8_t>(value_); }

 private:
  static constexpr double kTolerated = 0.1;  // less is noise on some link

  std::uint32_t most_;
  std::uint32_t value_;
};

}  // namespace optireduce
