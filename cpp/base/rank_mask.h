// A set of ranks in one word. Groups of up to 64 ranks have views; larger groups have a fixed membership.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/rank.h"

namespace optireduce {

using RankMask = std::uint64_t;

inline constexpr std::size_t kMaskRanks = 64;

constexpr RankMask bit_of(Rank rank) {
  return rank < kMaskRanks ? RankMask{1} << rank : 0;
}
constexpr bool has(RankMask mask, Rank rank) {
  return (mask & bit_of(rank)) != 0;
}
constexpr int count_of(RankMask mask) {
  return std::popcount(mask);
}
/// The ranks 0 .. size - 1.
constexpr RankMask first_ranks(std::size_t size) {
  return size >= kMaskRanks ? ~RankMask{0} : (RankMask{1} << size) - 1;
}
/// The lowest rank of a mask that is not empty.
constexpr Rank lowest_of(RankMask mask) {
  return static_cast<Rank>(std::countr_zero(mask));
}
/// How many ranks of the mask are below this one.
constexpr int place_in(RankMask mask, Rank rank) {
  return count_of(mask & (rank < kMaskRanks ? bit_of(rank) - 1 : ~RankMask{0}));
}

template <typename Visit>
void for_each_rank(RankMask mask, Visit&& visit) {
  for (; mask != 0; mask &= mask - 1) visit(lowest_of(mask));
}

/// More than half of the members, or exactly half of them with the lowest one.
/// Any two quorums of the same members have a rank in common.
constexpr bool is_quorum(RankMask present, RankMask members) {
  present &= members;
  const int twice = 2 * count_of(present);
  if (twice != count_of(members)) return twice > count_of(members);
  return (present & members & (~members + 1)) != 0;
}

}  // namespace optireduce
