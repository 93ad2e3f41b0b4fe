// The memory and the two stages of one operation, and all of it that other ranks are served with: packets
// out, repairs, and what is kept for those who may still ask. The local process's part is operation.h.
#pragma once

#include <set>
#include <vector>

#include "stage/all_gather.h"
#include "stage/relay.h"

namespace optireduce {

class Exchange {
 public:
  Exchange(OperationSetup setup, Time now);

  const OperationSetup& setup() const { return setup_; }
  std::size_t bytes() const { return schedule_.bytes(); }
  Bucket& bucket() { return bucket_; }
  const Bucket& bucket() const { return bucket_; }
  ReduceScatter& scatter() { return scatter_; }
  const ReduceScatter& scatter() const { return scatter_; }
  AllGather& gather() { return gather_; }
  const AllGather& gather() const { return gather_; }
  /// Of the shards that we relay in a grid.
  const std::vector<Relay>& relays() const { return relays_; }

  // ---- Contributions

  /// Where they come together that we are given to that shard, by its index. Null: we are given none.
  ReduceScatter* collector(Rank index);
  /// Our own contribution is in the bucket from now on. Weight 0: we have none.
  void begin(const Weights& weights);
  /// That member takes part but has nothing to add.
  void note_abstention(Rank place);
  /// What we add up for others leaves with what is here.
  void close_relays();
  /// Whether a contribution of that member is missing that we wait for.
  bool lacks(Rank place) const;
  /// Packets of it.
  std::uint32_t missing_from(Rank place) const;
  /// Whether decisions are missing that this member hands us.
  bool lacks_decisions_from(Rank place) const;
  /// Places whose contributions were not finite.
  std::set<Rank> non_finite() const;
  /// When our contribution to that packet was last sent; 0: it was not.
  std::uint32_t sent_at(Rank owner, std::uint32_t packet) const;
  /// When any contribution was last sent to that place; nothing: none was.
  std::optional<std::uint32_t> last_sent_to(Rank place) const;

  // ---- Decisions, by the place of the shard's owner: ours are made here, the others' come

  /// Packets of a chunk whose decisions are here.
  std::uint64_t held(Rank owner, std::uint32_t chunk) const {
    return owner == setup_.me ? scatter_.decided(chunk) : gather_.inbox(owner).received(chunk);
  }
  /// Who is in each of them.
  const Decided& details(Rank owner) const {
    return owner == setup_.me ? scatter_.decided() : gather_.details(owner);
  }
  /// The packets of a run of decisions that are new, as bits of its chunk.
  std::uint64_t accept_decisions(Time now, const ReceivedRun& run);
  /// Nobody has these packets: they are void.
  void make_void(Rank owner, std::uint32_t chunk, std::uint64_t packets);
  /// Whether a run's shard, place and lengths are right; nothing is touched otherwise.
  bool fits(const ReceivedRun& run) const;
  /// A member that was removed contributes no more, and needs nothing.
  void remove_member(Rank rank);
  /// All decisions are here and ours have left.
  bool complete() const;
  /// What did not come is zero.
  void zero_missing();

  // ---- Packets out

  bool next_decision(Time now, const std::vector<Peer>& peers, bool to_group, OutgoingBatch& batch);
  /// The next sums of our row for an owner in our column.
  bool next_sums(const std::vector<Peer>& peers, OutgoingBatch& batch);
  /// A contribution to any owner whose window admits it, taking turns, starting with our neighbour. Owners
  /// that wait for more room are marked as blocked: an older operation always goes first.
  bool next_contribution(const std::vector<Peer>& peers, std::vector<bool>& blocked, OutgoingBatch& batch);
  /// The requested packets that are to be sent again. No contributions after the end.
  std::uint64_t to_repair(PacketType wanted, Rank shard, const RequestEntry& entry,
                          const RequestContext& context) const;
  /// Describes the first packets of `repair` to send again; false if we do not have them any more.
  bool fill_repair(const Repair& repair, OutgoingBatch& batch) const;
  void stamp(const OutgoingBatch& batch, std::uint32_t timestamp);
  /// Whether packets wait for that rank's window.
  bool holds_back(PacketType type, Rank rank) const;

  // ---- Memory after the end

  /// Nobody needs contributions any more.
  void drop_relays() { relays_.clear(); }
  /// That is not the caller's.
  std::size_t engine_bytes() const;
  /// The caller's memory is about to change: copies what a member may lack of our shard, and shards that
  /// somebody may have to pass on. `whole`: all of our shard and of those that we relay, as a rank may return
  /// that has nothing of it. `others`: the shards of all other owners. `orphans`: owners that were removed.
  void detach(bool whole, bool others, const std::vector<Rank>& orphans);
  /// Whether we could send that owner's packets, as far as they are held; they are gone otherwise.
  bool keeps(Rank owner) const;
  bool keeps_own() const { return !setup_.serves() || keeps(setup_.me); }

 private:
  void label(OutgoingBatch& batch, PacketType type) const;
  std::uint64_t contribution_detail(Rank owner, std::uint32_t packet) const;
  std::uint32_t equal_run(const Repair& repair, Rank owner, std::uint32_t first, std::uint32_t most) const;
  bool has_added(Rank owner, const ReceivedRun& run) const;
  /// Calls visit(owner) for every owner whose decisions we get from that place.
  template <typename Visit>
  void for_each_owner_above(Rank place, Visit visit) const;
  Relay* relay_for(Rank owner);
  const Relay* relay_for(Rank owner) const;

  OperationSetup setup_;
  Schedule schedule_;
  Bucket bucket_;
  ReduceScatter scatter_;
  AllGather gather_;
  std::vector<Relay> relays_;
  Rank turn_;
  std::vector<std::uint32_t> kept_from_;  // by owner: chunk of its shard
};

}  // namespace optireduce
