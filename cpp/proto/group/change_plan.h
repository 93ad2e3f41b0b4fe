// Which change of the view is wanted now, by whom, and whether it can be made.
#pragma once

#include <cstddef>

#include "base/rank_mask.h"
#include "base/time.h"
#include "group/admission.h"
#include "group/membership.h"

namespace optireduce {

struct WantedChange {
  RankMask without = 0, joiners = 0;
  RankMask proposers = 0;  // who may propose it, in rank order

  bool any() const { return (without | joiners) != 0; }
};

class ChangePlan {
 public:
  using Quorum = bool (*)(RankMask present, RankMask members);

  /// `least` 0: a majority of the group, without those that left cleanly.
  ChangePlan(const Membership& membership, std::size_t least, Quorum rule)
      : membership_(membership), min_ranks_(least), quorum_(rule) {}

  /// `asked`: since when members are asked whom they hear. `thaw`: leave leavers and joiners out.
  WantedChange wanted(Time now, Time asked, bool thaw, const Admission& admission) const;
  /// Those that would stay, with leavers and lost ranks that still vote, are a quorum, and enough.
  bool possible(const WantedChange& change) const;
  std::size_t min_ranks(RankMask without) const;
  bool quorum(RankMask present) const { return quorum_(present, membership_.view().members); }
  /// Before the view is installed: members that it removes and that are leaving have left cleanly.
  void installs(const View& view);

 private:
  RankMask ready_leavers() const;

  const Membership& membership_;
  std::size_t min_ranks_;
  Quorum quorum_;
  RankMask left_ = 0;  // ranks that left cleanly
};

}  // namespace optireduce
