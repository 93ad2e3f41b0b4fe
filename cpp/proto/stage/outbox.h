// Our contribution to a shard, on its way to the shard's owner.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "path/window.h"
#include "stage/bucket.h"
#include "stage/inbox.h"
#include "stage/outgoing.h"

namespace optireduce {

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
  /// are not sent any more.
  bool next(const SendWindow& window, const Inbox& answers, OutgoingBatch& batch);
  void stamp(const OutgoingBatch& batch, std::uint32_t timestamp);
  /// The requested packets that were sent, and lost.
  std::uint64_t to_repair(const RequestEntry& entry, const RequestContext& context,
                          const Inbox& answers) const;

  /// When a packet was last sent; 0 if it was not.
  std::uint32_t sent_at(std::uint32_t packet) const { return sent_at_.empty() ? 0 : sent_at_[packet]; }
  /// When anything was last sent; nothing if nothing was.
  std::optional<std::uint32_t> last_sent_at() const {
    return sent_any_ ? std::optional(last_sent_at_) : std::nullopt;
  }
  std::uint32_t sent_packets() const { return next_packet_; }
  bool all_sent() const { return next_packet_ == shard_.packets(); }

 private:
  bool is_answered(const Inbox& answers, std::uint32_t packet) const {
    return (answers.received(packet / shard_.chunk_packets) >> packet % shard_.chunk_packets & 1) != 0;
  }

  Shard shard_;
  std::vector<std::uint32_t> sent_at_;  // by packet; 0: not sent
  std::uint32_t next_packet_ = 0;
  std::uint32_t last_sent_at_ = 0;
  bool sent_any_ = false;
  bool stopped_ = false;
};

}  // namespace optireduce
