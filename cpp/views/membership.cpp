#include "views/membership.h"

#include <algorithm>
#include <utility>

namespace optireduce {

RankMask keep_good_links(RankMask members, const std::vector<RankMask>& hears) {
  const auto bad_links = [&](Rank rank) {
    int bad = 0;
    for_each_rank(members & ~bit_of(rank), [&](Rank other) {
      if (!has(hears[rank], other) || !has(hears[other], rank)) ++bad;
    });
    return bad;
  };
  for (;;) {
    std::pair<int, Rank> worst{};
    for_each_rank(members, [&](Rank rank) { worst = std::max(worst, {bad_links(rank), rank}); });
    if (worst.first == 0) return members;
    members &= ~bit_of(worst.second);
  }
}

Membership::Membership(MembershipConfig config, View first)
    : config_(config),
      history_(std::move(first)),
      silence_(view().ranks.size(), config.silence),
      members_(view().ranks.size()) {}

std::vector<Rank> Membership::owners(std::uint64_t operation) const {
  std::vector<Rank> found;
  const View& of = history_.view_of(operation);
  for (Rank rank = 0; rank < of.ranks.size(); ++rank) {
    if (of.contains(rank)) found.push_back(rank);
  }
  return found;
}

std::uint64_t Membership::completed_by_all() const {
  std::uint64_t least = ~std::uint64_t{0};
  for_each_rank(view().members, [&](Rank rank) { least = std::min(least, completed(rank)); });
  return least;
}

bool Membership::must_keep(std::uint64_t operation) const {
  return std::ranges::any_of(view().orphans, [&](const OrphanShard& shard) {
    return shard.operation == operation && has(shard.holders, config_.rank);
  });
}

void Membership::forget_before(std::uint64_t floor) {
  for_each_rank(view().members, [&](Rank rank) { floor = std::min(floor, completed(rank)); });
  history_.forget_before(floor);
}

void Membership::told_hearing(Time now, Rank rank, RankMask hears) {
  members_[rank].hears = hears | bit_of(rank);
  members_[rank].hears_at = now;
}

bool Membership::at_rest_for(Rank leaver, RankMask ranks) const {
  bool rest = true;
  for_each_rank(ranks, [&](Rank rank) {
    rest &= has(members_[rank].at_rest_for, leaver) && completed(rank) == completed(config_.rank);
  });
  return rest;
}

RankMask Membership::keep(Time now, Time asked) const {
  const RankMask members = view().members;
  const Time oldest = now - silence_.limit();
  std::vector<RankMask> hears(members_.size(), members);
  RankMask doubted = 0;
  for_each_rank(members, [&](Rank rank) {
    const Member& member = members_[rank];
    if (rank == config_.rank)
      hears[rank] = this->hears();
    else if (member.hears_at >= oldest)
      hears[rank] = member.hears;
    doubted |= members & ~hears[rank];
  });
  for_each_rank(doubted & others(), [&](Rank rank) {
    if (members_[rank].hears_at < std::max(asked, oldest)) hears[rank] = bit_of(rank);
  });
  return keep_good_links(members, hears);
}

bool Membership::hears_quorum(Time now) const {
  return quorum(silence_.heard_lately(now) | bit_of(config_.rank));
}

void Membership::enter(Rank rank, std::uint64_t completed) {
  members_[rank].completed = completed;
  leaving_ &= ~bit_of(rank);
  following_ &= ~bit_of(rank);
  lost_ &= ~bit_of(rank);
}

void Membership::begin_view(Time now) {
  for (Member& member : members_) {
    member.hears_at = kLongAgo;
    member.at_rest_for = 0;
  }
  silence_.restart(now);
}

void Membership::install(Time now, View next) {
  for_each_rank(next.joined, [&](Rank rank) { enter(rank, next.ranks[rank].completed); });
  history_.append(std::move(next));
  begin_view(now);
}

void Membership::take_over(Time now, std::span<const View> views) {
  const View& newest = views.back();
  for_each_rank(newest.members, [&](Rank rank) {
    enter(rank, has(newest.joined, rank) ? newest.ranks[rank].completed : newest.base);
  });
  history_.replace(views);
  begin_view(now);
}

}  // namespace optireduce
