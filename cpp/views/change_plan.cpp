#include "views/change_plan.h"

#include <algorithm>

namespace optireduce {

namespace {

constexpr Duration kMinute = Duration::millis(60'000);
constexpr std::int64_t kStaying = 4;  // a rank that stays so many times as long as it had to wait is steady
constexpr Duration kCandidateLife = Duration::millis(3000);  // a Join is repeated far more often

}  // namespace

ChangePlan::Answer ChangePlan::consider(Time now, Rank rank, const Join& request, Verdict verdict,
                                        bool near) {
  const View& view = membership_.view();
  const RankRecord& record = view.ranks[rank];
  const bool member = has(view.members, rank);
  if (request.incarnation < record.incarnation) return Answer::Ignore;
  if (request.incarnation > record.incarnation && member) replaced_ |= bit_of(rank);
  // The request is old, or the rank has not heard of this view. What it completes after a request is what all
  // members of the view had completed that it knew then: it must be the view that the next one follows.
  if (request.known < view.number) return Answer::Tell;
  if (const auto known = candidates_.find(rank); known != candidates_.end()) {
    const Join& old = known->second.request;
    if (std::pair(old.incarnation, old.known) > std::pair(request.incarnation, request.known))
      return Answer::Ignore;
  }
  candidates_.erase(rank);
  if (verdict == Verdict::Snapshot) return Answer::Refuse;
  if (!near && !member) return Answer::Tell;
  candidates_.emplace(rank, Candidate{request, near, now});
  return Answer::Tell;
}

std::vector<std::pair<Rank, Join>> ChangePlan::requests(RankMask ranks) const {
  std::vector<std::pair<Rank, Join>> found;
  for (const auto& [rank, candidate] : candidates_) {
    if (has(ranks, rank)) found.emplace_back(rank, candidate.request);
  }
  return found;
}

/// A rank that is removed again and again costs a view change each time: it has to wait, unless it has stayed
/// for long enough.
Duration ChangePlan::wait_of(const Removals& removals) const {
  if (removals.count < 2) return {};
  const int doublings = std::min(removals.count - 2, 6);
  return std::min(config_.readmission * (std::int64_t{1} << doublings), kMinute);
}

Time ChangePlan::readmitted_at(Rank rank) const {
  const auto removals = removals_.find(rank);
  return removals == removals_.end() ? kLongAgo : removals->second.last + wait_of(removals->second);
}

/// Candidates come in when a member is as far as they are.
RankMask ChangePlan::ready_joiners(Time now, bool near) const {
  std::uint64_t furthest = 0;
  for_each_rank(membership_.view().members & ~membership_.lost(),
                [&](Rank rank) { furthest = std::max(furthest, membership_.completed(rank)); });
  RankMask found = 0;
  for (const auto& [rank, candidate] : candidates_) {
    const bool fresh = now <= candidate.at + kCandidateLife && candidate.near == near;
    if (fresh && candidate.request.completed <= furthest && now >= readmitted_at(rank)) found |= bit_of(rank);
  }
  return found;
}

/// Leavers go when every member that stays has completed what they have. Those that take part in what others
/// begin go when nothing is open: then nothing is void because they went, and no exact operation fails.
RankMask ChangePlan::ready_leavers(RankMask without) const {
  const RankMask leaving = membership_.leaving();
  RankMask found = leaving;
  for_each_rank(leaving, [&](Rank leaver) {
    for_each_rank(membership_.view().members & ~leaving & ~membership_.lost(), [&](Rank rank) {
      if (membership_.completed(rank) < membership_.completed(leaver)) found &= ~bit_of(leaver);
    });
    const bool waits = membership_.follows(leaver) &&
                       !membership_.at_rest_for(leaver, membership_.view().members & ~without);
    if (waits) found &= ~bit_of(leaver);
  });
  return found;
}

WantedChange ChangePlan::wanted(Time now, Time asked, bool thaw) const {
  const RankMask members = membership_.view().members;
  WantedChange found;
  const RankMask silent = members & ~membership_.keep(now, asked);
  found.without = silent | membership_.lost() | (replaced_ & members);
  if (!thaw) {
    // A rank that is lost or was restarted goes out and comes in by one change: if it is near, or if the
    // others are too few without it.
    found.joiners = ready_joiners(now, true) & ~(silent & ~replaced_);
    found.without |= found.joiners & members;
    if (!possible(found)) found.joiners |= ready_joiners(now, false) & ~(silent & ~replaced_);
    const WantedChange with_leavers{found.without | ready_leavers(found.without), found.joiners, 0};
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
  if (config_.min_ranks != 0) return config_.min_ranks;
  const RankMask left = membership_.left() | (without & membership_.leaving());
  return (membership_.group_size() - static_cast<std::size_t>(count_of(left))) / 2 + 1;
}

void ChangePlan::installs(Time now, const View& view) {
  // Who was not let in asks again. An old request would be proposed, and refused, in view after view.
  candidates_.clear();
  replaced_ &= view.members & ~view.removed;
  for_each_rank(view.removed & ~view.joined, [&](Rank rank) {
    Removals& removals = removals_[rank];
    const Duration soon = std::max(wait_of(removals), config_.readmission) * kStaying;
    removals.count = now - removals.returned < soon ? removals.count + 1 : 1;
    removals.last = now;
  });
  for_each_rank(view.joined, [&](Rank rank) { removals_[rank].returned = now; });
}

void ChangePlan::clear() {
  candidates_.clear();
  replaced_ = 0;
}

}  // namespace optireduce
