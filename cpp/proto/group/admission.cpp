#include "group/admission.h"

#include <algorithm>

namespace optireduce {

Admission::Answer Admission::consider(Time now, const View& view, Rank rank, const JoinRequest& request,
                                      Verdict verdict) {
  const RankRecord& record = view.ranks[rank];
  const bool member = has(view.members, rank);
  if (request.incarnation < record.incarnation) return Answer::Ignore;
  if (request.incarnation > record.incarnation && member) replaced_ |= bit_of(rank);
  if (request.incarnation == record.incarnation) {
    // A member that does not know this view: the request is old, or it has not heard yet that it is in.
    // A removed rank knows the view that removed it, so other requests of it are old, too.
    if (request.known < (member ? view.number : record.changed_at)) return Answer::TellView;
  }
  auto known = candidates_.find(rank);
  if (known != candidates_.end()) {
    const JoinRequest& old = known->second.request;
    if (std::pair(old.incarnation, old.known) > std::pair(request.incarnation, request.known))
      return Answer::Ignore;
  }
  if (verdict == Verdict::Snapshot) {
    candidates_.erase(rank);
    return Answer::Refuse;
  }
  candidates_.insert_or_assign(rank, Candidate{request, now});
  return Answer::Accept;
}

RankMask Admission::ready(Time now, const Membership& membership) const {
  std::uint64_t furthest = membership.completed(membership.self());
  for_each_rank(membership.others(),
                [&](Rank rank) { furthest = std::max(furthest, membership.completed(rank)); });
  RankMask found = 0;
  for (const auto& [rank, candidate] : candidates_) {
    const auto removals = removals_.find(rank);
    if (removals != removals_.end() && now < removals->second.readmit_at) continue;
    if (candidate.at + config_.candidate_life < now || candidate.request.completed > furthest) continue;
    found |= bit_of(rank);
  }
  return found;
}

std::vector<std::pair<Rank, JoinRequest>> Admission::requests(RankMask ranks) const {
  std::vector<std::pair<Rank, JoinRequest>> found;
  for (const auto& [rank, candidate] : candidates_) {
    if (has(ranks, rank)) found.emplace_back(rank, candidate.request);
  }
  return found;
}

void Admission::count_removal(Time now, Removals& removals) const {
  const bool again = removals.count > 0 && now - removals.last < Duration::millis(60'000);
  removals.count = again ? removals.count + 1 : 1;
  removals.last = now;
  if (removals.count < 2) return;
  const Duration wait = config_.readmission * (std::int64_t{1} << std::min(removals.count - 2, 6));
  removals.readmit_at = now + std::min(wait, Duration::millis(60'000));
}

void Admission::installed(Time now, const View& view) {
  // Who was not let in asks again. An old request would be proposed, and refused, in view after view.
  candidates_.clear();
  replaced_ &= view.members & ~view.removed;
  for_each_rank(view.removed & ~view.joined, [&](Rank rank) { count_removal(now, removals_[rank]); });
}

void Admission::clear() {
  candidates_.clear();
  replaced_ = 0;
}

}  // namespace optireduce
