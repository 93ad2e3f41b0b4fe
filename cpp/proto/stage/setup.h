// What one operation is: its number, what it reduces, its members and its stages.
#pragma once

#include <algorithm>
#include <vector>

#include "geometry/routes.h"
#include "wire/packet.h"

namespace optireduce {

constexpr Rank kNoPlace = 0xffff;

/// What an operation and its stages are told when they are made. A place is an index of `members`.
struct OperationSetup {
  std::uint64_t number = 0;
  Descriptor descriptor;
  std::uint32_t stream = 0;
  Rank rank = 0;                   // ours
  std::vector<Rank> members;       // owners of its shards, in rank order
  Rank me = kNoPlace;              // our place; none: we only listen
  const Routes* routes = nullptr;  // of a grid, of which all ranks are members; null: packets go directly
  bool best_effort = false;        // what is missing is left out of the mean, and nobody carries it over
  std::uint32_t payload_bytes = 0;
  std::uint64_t order_seed = 0;  // 0: packets in the order of memory

  Rank places() const { return static_cast<Rank>(members.size()); }
  Rank place_of(Rank whose) const {
    const auto found = std::find(members.begin(), members.end(), whose);
    return found == members.end() ? kNoPlace : static_cast<Rank>(found - members.begin());
  }
  /// We own a shard and contribute to the others.
  bool serves() const { return me != kNoPlace; }
  /// Else our shard is what the others get, as it is.
  bool adds() const { return descriptor.op != ReduceOp::Gather; }

  // ---- Ways through a grid: see geometry/routes.h. In one a place is a rank

  /// Who takes that place's contributions to the owner's shard, and hands it the decisions.
  Rank above(Rank place, Rank owner) const {
    return routes == nullptr || place == kNoPlace ? owner : routes->above(place, owner);
  }
  /// Whether that place gives us its contributions to the owner's shard.
  bool takes_from(Rank place, Rank owner) const {
    return serves() && place != me && place != owner && above(place, owner) == me;
  }
  /// Whether we give that place our contributions to any shard, as they are.
  bool gives_to(Rank place) const {
    return serves() && place != me && (routes == nullptr || routes->same_row(place, me));
  }
  /// Whether we add up our row's contributions to the owner's shard.
  bool relays(Rank owner) const { return routes != nullptr && serves() && routes->relays(me, owner); }
  /// Whether what that place contributes to our shard is the sum of its row.
  bool speaks_for_row(Rank place) const {
    return routes != nullptr && place != me && routes->same_column(place, me);
  }
  /// The ranks whose contributions to our shard that place gives us.
  std::vector<Rank> contributors(Rank place) const {
    if (!speaks_for_row(place)) return {members[place]};
    return routes->rows()[routes->row_of(place)];
  }
  /// Means are added up in parts of this size: a sum of a row might be too large for its type.
  double part() const {
    return routes == nullptr || descriptor.op != ReduceOp::Mean ? 1.0
                                                                : static_cast<double>(routes->row_size());
  }

  // ---- What decisions and sums of rows say

  /// Of exact operations and in best effort only the number of missing contributions is told.
  bool tells_sets() const { return descriptor.bounded && !best_effort; }
  bool weighted() const { return descriptor.op == ReduceOp::WeightedMean; }
  /// Whether residuals go along, and excluded contributions are kept. An exact operation excludes nobody.
  bool has_residuals() const { return stream != 0 && adds() && !best_effort; }
  bool carries() const { return has_residuals() && descriptor.bounded; }
  std::uint64_t bit_of(Rank place) const { return std::uint64_t{1} << (members[place] & 63u); }
  /// What headers say of a decision that lacks nobody: see Header::detail.
  std::uint64_t usual_detail() const {
    std::uint64_t everybody = 0;
    for (Rank place = 0; place < places(); ++place) everybody |= bit_of(place);
    return tells_sets() ? everybody : 0;
  }
  std::uint64_t row_set(Rank whose) const {
    std::uint64_t row = 0;
    for (Rank place : routes->rows()[routes->row_of(whose)]) row |= bit_of(place);
    return row;
  }
  /// What a sum of our row says that lacks nobody.
  std::uint64_t usual_row_detail() const { return tells_sets() ? row_set(me) : 0; }
};

}  // namespace optireduce
