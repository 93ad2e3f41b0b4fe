// Data packets that are to be sent, and our contribution to a shard on its way to the shard's owner.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "path/window.h"
#include "stage/bucket.h"
#include "stage/inbox.h"
#include "stage/setup.h"
#include "stage/weights.h"

namespace optireduce {

/// Consecutive packets of one chunk.
struct OutgoingBatch {
  PacketType type = PacketType::Contribution;
  const OperationSetup* setup = nullptr;
  Rank shard_index = 0;
  Shard shard;
  std::uint32_t first_packet = 0;  // in the shard
  std::uint32_t packets = 0;
  const std::byte* data = nullptr;  // of the shard
  std::uint64_t detail = 0;         // see Header
  std::uint8_t flags = 0;
  std::vector<Rank> to;
  bool group = false;  // sent once, to the multicast group, for all of them

  std::span<const std::byte> payload(std::uint32_t packet) const {
    return {data + shard.place_of(packet), shard.length_of(packet)};
  }
  Stage stage() const { return type == PacketType::Decision ? Stage::Decisions : Stage::Contributions; }
  bool resent() const { return (flags & kFlagResent) != 0; }
  std::uint32_t bytes() const {
    const std::uint32_t last = first_packet + packets - 1;
    return shard.offset_of(last) + shard.length_of(last) - shard.offset_of(first_packet);
  }
};

/// Packets to send again to one peer that missed them.
struct Repair {
  PacketType type = PacketType::Contribution;
  std::uint64_t operation = 0;
  Rank to = 0;
  Rank shard = 0;
  std::uint32_t chunk = 0;
  std::uint64_t packets = 0;
};

/// Who asked, and what it proves about packets sent earlier.
struct RequestContext {
  Rank from = 0;  // its place among the operation's members
  Rank rank = 0;
  std::uint32_t newest = 0;   // the latest of our timestamps that the asker has seen
  std::uint32_t now = 0;      // our clock as a timestamp
  std::uint32_t min_age = 0;  // microseconds after which a packet is no longer under way

  /// Networks keep order nearly always: what was sent no later than something that arrived, or long ago, is
  /// lost.
  bool is_lost(std::uint32_t sent_at) const {
    return not_before(newest, sent_at) || not_before(now, sent_at + min_age);
  }
};

/// The last percent of a shard's packets, at least one, carries a mark.
inline bool is_last_percent(const Shard& shard, std::uint32_t end) {
  return end + shard.packets() / 100 >= shard.packets();
}

/// Our contribution to one shard.
class Outbox {
 public:
  Outbox() = default;
  /// Sends nothing before begin().
  explicit Outbox(const Shard& shard) : shard_(shard), next_packet_(shard.packets()) {}

  /// The local process has begun the operation.
  void begin() {
    sent_at_.assign(shard_.packets(), 0);
    if (!stopped_) next_packet_ = 0;
  }
  /// The owner is no member any more: nothing is sent, also if the process begins later.
  void stop() {
    next_packet_ = shard_.packets();
    stopped_ = true;
  }

  /// The next packets, if the window admits them, in order. `answers`: packets that their owner has decided
  /// are not sent any more. Packets of one batch have the same weight.
  bool next(const SendWindow& window, const Inbox& answers, const Weights& weights, OutgoingBatch& batch);
  void stamp(const OutgoingBatch& batch, std::uint32_t timestamp);
  /// The requested packets that were sent, and lost.
  std::uint64_t to_repair(const RequestEntry& entry, const RequestContext& context,
                          const Inbox& answers) const;

  /// When a packet was last sent; 0 if it was not.
  std::uint32_t sent_at(std::uint32_t packet) const { return sent_at_.empty() ? 0 : sent_at_[packet]; }
  /// When anything was last sent; nothing if nothing was.
  std::optional<std::uint32_t> last_sent_at() const { return last_sent_at_; }
  std::uint32_t sent_packets() const { return next_packet_; }
  bool all_sent() const { return next_packet_ == shard_.packets(); }

 private:
  bool is_answered(const Inbox& answers, std::uint32_t packet) const {
    return (answers.received(packet / shard_.chunk_packets) >> packet % shard_.chunk_packets & 1) != 0;
  }

  Shard shard_;
  std::vector<std::uint32_t> sent_at_;  // by packet; 0: not sent
  std::uint32_t next_packet_ = 0;
  std::optional<std::uint32_t> last_sent_at_;
  bool stopped_ = false;
};

}  // namespace optireduce
