// The second stage: the decided packets of our shard go out to every member, and the other owners' decisions
// come in and are put in place. Any member that holds a decision can pass it on. Of an operation that does
// not gather it wants nothing and sends nothing.
//
// Ranks are places among the operation's members here.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "path/peer.h"
#include "stage/decided.h"
#include "stage/outbox.h"

namespace optireduce {

class AllGather {
 public:
  AllGather(const OperationSetup& setup, const Schedule& schedule, Time now);

  // ---- Coming in

  /// The packets of a run that are new, as bits of its chunk, and marks them as held. `owner`: the place of
  /// the shard's owner, who may not be the sender.
  std::uint64_t accept(Time now, Rank owner, const ReceivedRun& run);
  /// Nobody has these packets: they are void.
  void make_void(Rank owner, std::uint32_t chunk, std::uint64_t packets);
  bool complete() const { return incomplete_ == 0; }
  bool complete(Rank owner) const { return inboxes_[owner].complete(); }
  Inbox& inbox(Rank owner) { return inboxes_[owner]; }
  const Inbox& inbox(Rank owner) const { return inboxes_[owner]; }
  const Shard& shard(Rank owner) const { return shards_[owner]; }
  Rank index(Rank owner) const { return schedule_.shard_of(owner); }
  Rank owner(Rank index) const { return schedule_.owner_of(index); }
  /// Who is in a decision that is held.
  const Decided& details(Rank owner) const { return details_[owner]; }

  // ---- Going out

  /// That member does not need anything from us any more.
  void stop_sending_to(Rank place) { receives_[place] = false; }
  /// The member has received that many chunks of our shard without a hole.
  void note_received(Rank place, std::uint32_t chunks);
  /// The first chunk of our shard that some member is not known to have.
  std::uint32_t first_unreceived_chunk() const;

  /// The next decided packets for those members that have not been sent them and whose windows admit them.
  bool next(const Decided& decided, const std::vector<Peer>& peers, OutgoingBatch& batch);
  /// The next ones for everybody at once, when all windows that set the pace admit them. Not after next().
  bool next_to_group(Time now, const Decided& decided, const std::vector<Peer>& peers, OutgoingBatch& batch);
  /// `place` may be none of ours: members that joined later are answered, too.
  void stamp(const OutgoingBatch& batch, Rank place, Rank rank, std::uint32_t timestamp);
  /// Whether decided packets wait for that member's window.
  bool holds_back(const Decided& decided, Rank place) const {
    return receives_[place] && position_[place] < decided.packets();
  }
  /// Whether all decided packets have been sent to everybody.
  bool all_sent(const Decided& decided) const;

  /// The requested packets of any owner's shard that were sent, and lost, or that are held for another owner.
  /// `held`: packets of the chunk whose decisions are here.
  std::uint64_t to_repair(Rank owner, const RequestEntry& entry, const RequestContext& context,
                          std::uint64_t held) const;

 private:
  using PassedOn = std::tuple<Rank, Rank, std::uint32_t>;  // to (its rank), owner, chunk

  void begin_batch(const Decided& decided, std::uint32_t position, std::uint32_t most,
                   OutgoingBatch& batch) const;
  void finish_batch(const Decided& decided, std::uint32_t position, OutgoingBatch& batch);
  std::size_t slot(Rank place, std::uint32_t chunk) const {
    return std::size_t{place} * shards_[me_].chunks() + chunk;
  }
  /// Members get our decisions by themselves; ranks that were removed, or joined later, only if they ask.
  bool is_sent_to(Rank place) const { return place < members_.size() && receives_[place]; }

  Rank me_;
  std::vector<Rank> members_;  // ranks by place
  Schedule schedule_;
  std::vector<Shard> shards_;     // by owner
  std::vector<Inbox> inboxes_;    // by owner; ours wants nothing
  std::vector<Decided> details_;  // by owner
  std::size_t incomplete_ = 0;    // owners

  std::vector<bool> receives_;                  // by place
  std::vector<std::uint32_t> position_;         // by place: decided packets that were sent to it
  std::vector<std::uint32_t> received_chunks_;  // by place: of our shard
  std::vector<std::uint64_t> sent_;             // by place and chunk
  std::vector<std::uint32_t> sent_at_;          // by place and chunk: timestamp of the last packets of it
  std::map<PassedOn, std::uint32_t> passed_on_at_;
};

}  // namespace optireduce
