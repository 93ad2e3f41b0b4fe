// A membership view says who is a member from one operation on, and what became of the unfinished operations
// before it. The history of views says which view an operation belongs to.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "base/rank_mask.h"

namespace optireduce {

/// What a view says about one rank of the group, whether it is a member or not.
struct RankRecord {
  std::uint64_t since = 0;       // it owns and contributes from this operation on
  std::uint64_t changed_at = 0;  // number of the view in which it last came in or went out
  std::uint32_t incarnation = 0;
  std::uint64_t completed = 0;  // of a rank that joins with this view: how far it is,
  std::uint64_t digest = 0;     // and the digest of what it has completed
  static void fields(auto& codec, auto& record) {
    codec.all(record.since, record.changed_at, record.incarnation, record.completed, record.digest);
  }
};

/// The shard of an owner that no longer serves the operation. A word has one bit for each packet of a chunk
/// (at most 64). Packets that are not passed on are gone if a member has completed the operation, else void.
struct OrphanShard {
  std::uint64_t operation = 0;
  Rank owner = 0;
  bool rest_gone = false;             // a member has completed the operation; who lacks a packet is lost
  RankMask holders = 0;               // members that keep something of this shard
  std::vector<std::uint64_t> passed;  // by chunk: a member keeps the decision; ask the holders
  std::pair<std::uint64_t, Rank> key() const { return {operation, owner}; }
  static void fields(auto& codec, auto& shard) {
    codec.all(shard.operation, shard.owner, shard.rest_gone);
    codec.masks(shard.holders);
    codec.words(shard.passed);
  }
};

struct View {
  std::uint64_t number = 0;
  RankMask members = 0;
  RankMask joined = 0;   // members that came in with this view
  RankMask removed = 0;  // members of the previous view that went out (a rank may go out and come in at once)
  std::uint64_t cut = 0;              // the view applies from this operation on
  std::uint64_t base = 0;             // the least completed of the members that stayed
  std::uint64_t stable = 0;           // all members of some view have completed everything below
  std::uint64_t first = 0;            // the orphan table covers the operations from here to the cut
  std::vector<RankRecord> ranks;      // by rank, all ranks of the group
  std::vector<OrphanShard> orphans;   // ordered by operation and owner; shards that are all void are left out
  std::vector<std::uint64_t> failed;  // operations that end with an error if they are exact, in order
  static void fields(auto& codec, auto& view) {
    codec.all(view.number);
    codec.masks(view.members, view.joined, view.removed);
    codec.all(view.cut, view.base, view.stable, view.first, view.ranks, view.orphans, view.failed);
    codec.require(codec.fits_group(view.ranks.size()) && view.is_sound());
  }

  /// The view that a group begins with. Groups above 64 ranks have an empty mask and never change it.
  static View initial(std::size_t size);
  bool contains(Rank rank) const { return ranks.size() > kMaskRanks || has(members, rank); }
  /// Whether the rank owns and contributes in this operation, judged by the newest view.
  bool serves(Rank rank, std::uint64_t operation) const {
    return rank < ranks.size() && contains(rank) && ranks[rank].since <= operation;
  }
  bool fails(std::uint64_t operation, bool exact) const {
    return exact && std::ranges::binary_search(failed, operation);
  }
  const OrphanShard* orphan(std::uint64_t operation, Rank owner) const;
  /// What a peer's view must be before it is used.
  bool is_sound() const;
};

/// Each view has the next number, and cuts never fall. Never empty.
bool follow_each_other(const std::vector<View>& views);

inline View View::initial(std::size_t size) {
  View view;
  view.members = size > kMaskRanks ? 0 : first_ranks(size);
  view.ranks.resize(size);
  return view;
}

inline const OrphanShard* View::orphan(std::uint64_t operation, Rank owner) const {
  const auto found = std::ranges::lower_bound(orphans, std::pair(operation, owner), {}, &OrphanShard::key);
  return found != orphans.end() && found->key() == std::pair(operation, owner) ? &*found : nullptr;
}

/// What became of the packets of one chunk of an orphan shard. All zero: its owner serves it.
struct ChunkFate {
  std::uint64_t passed = 0, gone = 0,
                voided = 0;  // disjoint; voided has the bits beyond the chunk's end, too
  RankMask holders = 0;      // whom to ask for what was passed on
};

/// The views that operations which are not complete everywhere belong to, oldest first. Never empty.
class ViewHistory {
 public:
  explicit ViewHistory(View first) { views_.push_back(std::move(first)); }

  const View& newest() const { return views_.back(); }
  /// The newest view with cut <= operation. The oldest one for operations that are forgotten.
  const View& view_of(std::uint64_t operation) const;
  void append(View view) { views_.push_back(std::move(view)); }
  /// Takes over the history of others; for a rank that joins.
  void replace(std::span<const View> views) { views_.assign(views.begin(), views.end()); }
  /// Forgets the views that no operation from here on belongs to.
  void forget_before(std::uint64_t operation);
  /// The views from view_of(operation) on. Only the newest has its orphan table.
  std::vector<View> since(std::uint64_t operation) const;
  const std::deque<View>& all() const { return views_; }

  RankMask members_of(std::uint64_t operation) const { return view_of(operation).members; }
  /// Members of the operation's view that no longer serve it. Their shards are in the orphan table.
  RankMask orphans_of(std::uint64_t operation) const;
  ChunkFate fate(std::uint64_t operation, Rank owner, std::size_t chunk) const;
  /// The view that ended an exact operation with an error, or null.
  const View* failed_by(std::uint64_t operation, bool exact) const;

 private:
  std::deque<View> views_;
};

}  // namespace optireduce
