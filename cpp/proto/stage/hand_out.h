// The decisions of one shard on their way to the members that get them from us: an owner hands out its own, a
// relay those of a column mate. Each of them is sent everything once, in the order in which it was decided;
// what gets lost is asked for.
//
// Ranks are places among the operation's members here.
#pragma once

#include <vector>

#include "path/peer.h"
#include "stage/decided.h"
#include "stage/outbox.h"

namespace optireduce {

class HandOut {
 public:
  HandOut(const OperationSetup& setup, Rank owner, Rank index, const Shard& shard);

  Rank owner() const { return owner_; }
  /// Members get these decisions by themselves; ranks that were removed, or joined later, only if they ask.
  bool is_sent_to(Rank place) const { return place < receives_.size() && receives_[place]; }
  /// That member does not need anything from us any more.
  void stop_sending_to(Rank place) { receives_[place] = false; }
  /// The member has received that many chunks of the shard without a hole.
  void note_received(Rank place, std::uint32_t chunks);
  /// The first chunk that some member below us is not known to have.
  std::uint32_t first_unreceived_chunk() const;

  /// The next decided packets for those members that have not been sent them and whose windows admit them.
  bool next(const Decided& decided, const std::vector<Peer>& peers, OutgoingBatch& batch);
  /// The next ones for everybody at once, when all windows that set the pace admit them. Not after next().
  bool next_to_group(Time now, const Decided& decided, const std::vector<Peer>& peers, OutgoingBatch& batch);
  void stamp(const OutgoingBatch& batch, Rank place, std::uint32_t timestamp);
  /// Whether decided packets wait for that member's window.
  bool holds_back(const Decided& decided, Rank place) const {
    return receives_[place] && position_[place] < decided.packets();
  }
  /// Whether all decided packets have been sent to everybody.
  bool all_sent(const Decided& decided) const;
  /// The requested packets that were sent to that member, and lost.
  std::uint64_t to_repair(const RequestEntry& entry, const RequestContext& context) const;

 private:
  void begin_batch(const Decided& decided, std::uint32_t position, std::uint32_t most,
                   OutgoingBatch& batch) const;
  void finish_batch(const Decided& decided, std::uint32_t position, OutgoingBatch& batch);
  std::size_t slot(Rank place, std::uint32_t chunk) const {
    return std::size_t{place} * shard_.chunks() + chunk;
  }

  Rank me_, owner_, index_;
  std::vector<Rank> members_;  // ranks by place
  Shard shard_;
  std::vector<bool> receives_;                  // by place: gets these decisions from us
  std::vector<std::uint32_t> position_;         // by place: decided packets that were sent to it
  std::vector<std::uint32_t> received_chunks_;  // by place
  std::vector<std::uint64_t> sent_;             // by place and chunk
  std::vector<std::uint32_t> sent_at_;          // by place and chunk: timestamp of the last packets of it
};

}  // namespace optireduce
