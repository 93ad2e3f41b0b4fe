// Our row's contributions to a shard of another row: we add them up, and send one sum to the shard's owner,
// who stands in our column. A packet leaves as soon as all of the row is in it, or when the sum is closed.
//
// The sums lie in memory of their own, so the caller's buffer holds its own contribution until a decision
// replaces it.
#pragma once

#include <bit>
#include <optional>
#include <vector>

#include "stage/reduce_scatter.h"

namespace optireduce {

class Relay {
 public:
  Relay(const OperationSetup& setup, const Schedule& schedule, Rank owner, Time now)
      : owner_(owner), sums_(setup, schedule, owner, now), sent_at_(sums_.shard().packets(), 0) {}

  Rank owner() const { return owner_; }
  ReduceScatter& sums() { return sums_; }
  const ReduceScatter& sums() const { return sums_; }

  /// The next sums, if the window admits them. `answers`: the owner's decisions; what it has decided it does
  /// not need.
  bool next(const SendWindow& window, const Inbox& answers, OutgoingBatch& batch);
  void stamp(const OutgoingBatch& batch, std::uint32_t timestamp);
  /// The requested packets that were sent, and lost.
  std::uint64_t to_repair(const RequestEntry& entry, const RequestContext& context,
                          const Inbox& answers) const;
  /// The owner is no member any more.
  void stop() { stopped_ = true; }

  /// Whether all packets of a run have been added up.
  bool has(std::uint32_t chunk, std::uint64_t packets) const {
    return (packets & ~sums_.decided(chunk)) == 0;
  }
  std::uint32_t sent_at(std::uint32_t packet) const { return sent_at_[packet]; }
  std::optional<std::uint32_t> last_sent_at() const { return last_sent_at_; }
  /// Whether nothing waits to be sent.
  bool all_sent() const { return stopped_ || position_ == sums_.decided().packets(); }

 private:
  Rank owner_;
  ReduceScatter sums_;
  std::uint32_t position_ = 0;          // packets in the order in which they were added up
  std::vector<std::uint32_t> sent_at_;  // by packet; 0: not sent
  std::optional<std::uint32_t> last_sent_at_;
  bool stopped_ = false;
};

}  // namespace optireduce
