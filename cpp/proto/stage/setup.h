// What one operation is: its number, what it reduces, its members and its stages.
#pragma once

#include <algorithm>
#include <vector>

#include "wire/packet.h"

namespace optireduce {

constexpr Rank kNoPlace = 0xffff;

/// What an operation and its stages are told when they are made. A place is an index of `members`.
struct OperationSetup {
  std::uint64_t number = 0;
  Scope scope = Scope::All;
  Descriptor descriptor;
  std::uint32_t stream = 0;
  Rank rank = 0;              // ours
  std::vector<Rank> members;  // owners of its shards, in rank order
  Rank me = kNoPlace;         // our place; none: we only listen
  bool reduces = true;        // has the first stage
  bool gathers = true;        // has the second stage
  bool best_effort = false;   // what is missing is left out of the mean, and nobody carries it over
  double weight_unit = 1;     // a weighted mean counts in these
  double fixed_divisor = 0;   // of a mean, instead of its weights; 0: none
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
  bool adds() const { return reduces && descriptor.op != ReduceOp::Gather; }
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
};

}  // namespace optireduce
