#include "group/change_plan.h"

namespace optireduce {

/// Leavers go when every member that stays has completed what they have.
RankMask ChangePlan::ready_leavers() const {
  const RankMask leaving = membership_.leaving();
  RankMask found = leaving;
  for_each_rank(leaving, [&](Rank leaver) {
    for_each_rank(membership_.view().members & ~leaving & ~membership_.lost(), [&](Rank rank) {
      if (membership_.completed(rank) < membership_.completed(leaver)) found &= ~bit_of(leaver);
    });
  });
  return found;
}

WantedChange ChangePlan::wanted(Time now, Time asked, bool thaw, const Admission& admission) const {
  const RankMask members = membership_.view().members;
  WantedChange found;
  found.without = members & ~membership_.keep(now, asked);
  found.without |= membership_.lost() | (admission.replaced() & members);
  if (!thaw) {
    found.joiners = admission.ready(now, membership_) & ~found.without;
    found.without |= found.joiners & members;
    const WantedChange with_leavers{found.without | ready_leavers(), found.joiners, 0};
    if (possible(with_leavers)) found = with_leavers;
  }
  found.proposers = members & ~found.without & ~membership_.leaving();
  return found;
}

bool ChangePlan::possible(const WantedChange& change) const {
  const RankMask stay = membership_.view().members & ~change.without;
  const RankMask voters = stay | (change.without & (membership_.leaving() | membership_.lost()));
  const auto ranks = static_cast<std::size_t>(count_of(stay | change.joiners));
  return quorum(voters) && ranks >= min_ranks(change.without);
}

std::size_t ChangePlan::min_ranks(RankMask without) const {
  if (min_ranks_ != 0) return min_ranks_;
  const RankMask left = left_ | (without & membership_.leaving());
  return (membership_.group_size() - static_cast<std::size_t>(count_of(left))) / 2 + 1;
}

void ChangePlan::installs(const View& view) {
  left_ |= view.removed & ~view.joined & membership_.leaving();
  left_ &= ~view.members;
}

}  // namespace optireduce
