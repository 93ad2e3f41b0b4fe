// The values that view messages carry: a membership view says who is a member from one operation on, and what
// became of the unfinished operations before it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
  bool operator==(const RankRecord&) const = default;
};

/// The shard of an owner that no longer serves the operation. A word has one bit for each packet of a chunk
/// (at most 64). Packets that are neither passed on nor gone are void.
struct OrphanShard {
  std::uint64_t operation = 0;
  Rank owner = 0;
  bool rest_gone = false;             // a member has completed the operation: packets not passed on are gone
  RankMask holders = 0;               // members that keep something of this shard
  std::vector<std::uint64_t> passed;  // by chunk: a member keeps the decision; ask the holders
  std::vector<std::uint64_t> gone;    // by chunk: decided, but no member keeps it; who lacks it is lost
  bool operator==(const OrphanShard&) const = default;
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
  bool operator==(const View&) const = default;
  /// The view that a group begins with. Groups above 64 ranks have an empty mask and never change it.
  static View initial(std::size_t size, std::span<const std::uint32_t> incarnations = {});
  bool contains(Rank rank) const { return ranks.size() > kMaskRanks || has(members, rank); }
  /// Whether the rank owns and contributes in this operation, judged by the newest view.
  bool serves(Rank rank, std::uint64_t operation) const {
    return rank < ranks.size() && contains(rank) && ranks[rank].since <= operation;
  }
  bool fails(std::uint64_t operation, bool exact) const;
  const OrphanShard* orphan(std::uint64_t operation, Rank owner) const;
};

inline View View::initial(std::size_t size, std::span<const std::uint32_t> incarnations) {
  View view;
  view.members = size > kMaskRanks ? 0 : first_ranks(size);
  view.ranks.resize(size);
  for (std::size_t rank = 0; rank < std::min(size, incarnations.size()); ++rank) {
    view.ranks[rank].incarnation = incarnations[rank];
  }
  return view;
}

inline bool View::fails(std::uint64_t operation, bool exact) const {
  return exact && std::binary_search(failed.begin(), failed.end(), operation);
}

inline const OrphanShard* View::orphan(std::uint64_t operation, Rank owner) const {
  auto before = [](const OrphanShard& shard, std::pair<std::uint64_t, Rank> key) {
    return std::pair(shard.operation, shard.owner) < key;
  };
  const auto key = std::pair(operation, owner);
  auto found = std::lower_bound(orphans.begin(), orphans.end(), key, before);
  if (found == orphans.end() || found->operation != operation || found->owner != owner) return nullptr;
  return &*found;
}

}  // namespace optireduce
