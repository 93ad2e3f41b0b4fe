// The second stage: the decided packets of our shard go out, and the other owners' decisions come in and are
// put in place. In a grid a relay hands on what comes from its column. Any member that holds a decision can
// pass it on when it is asked.
//
// Ranks are places among the operation's members here.
#pragma once

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "stage/hand_out.h"

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

  // ---- Going out. `decided`: of our own shard

  /// That member does not need anything from us any more.
  void stop_sending_to(Rank place);
  /// The member has received that many chunks of the owner's shard without a hole.
  void note_received(Rank owner, Rank place, std::uint32_t chunks);
  /// The first chunk that some member that gets the owner's decisions from us is not known to have.
  std::uint32_t first_unreceived_chunk(Rank owner) const;
  /// Whether others get that owner's decisions from us.
  bool hands_out(Rank owner) const;

  /// See HandOut.
  bool next(const Decided& decided, const std::vector<Peer>& peers, OutgoingBatch& batch);
  bool next_to_group(Time now, const Decided& decided, const std::vector<Peer>& peers, OutgoingBatch& batch);
  /// `place` may be none of ours: members that joined later are answered, too.
  void stamp(const OutgoingBatch& batch, Rank place, Rank rank, std::uint32_t timestamp);
  /// Whether decided packets wait for that member's window.
  bool holds_back(const Decided& decided, Rank place) const;
  /// Whether all decided packets have been sent to everybody.
  bool all_sent(const Decided& decided) const;

  /// The requested packets of any owner's shard that were sent, and lost, or that are held for another owner.
  /// `held`: packets of the chunk whose decisions are here.
  std::uint64_t to_repair(Rank owner, const RequestEntry& entry, const RequestContext& context,
                          std::uint64_t held) const;

 private:
  using PassedOn = std::tuple<Rank, Rank, std::uint32_t>;  // to (its rank), owner, chunk

  /// Null: nobody gets that owner's decisions from us.
  template <typename HandOuts>
  static auto* find_in(HandOuts& hand_outs, Rank owner) {
    const auto found = std::ranges::find(hand_outs, owner, &HandOut::owner);
    return found == hand_outs.end() ? nullptr : &*found;
  }
  const Decided& order_of(const HandOut& each, const Decided& decided) const {
    return each.owner() == me_ ? decided : details_[each.owner()];
  }

  Rank me_;
  Schedule schedule_;
  std::vector<Shard> shards_;       // by owner
  std::vector<Inbox> inboxes_;      // by owner; ours wants nothing
  std::vector<Decided> details_;    // by owner; in order where we hand them on
  std::size_t incomplete_ = 0;      // owners
  std::vector<HandOut> hand_outs_;  // ours first
  std::size_t turn_ = 0;            // which of them is next
  std::map<PassedOn, std::uint32_t> passed_on_at_;
};

}  // namespace optireduce
