// What must hold at every moment of a view test (S1 to S5 of the protocol), and who has chosen which view.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "views_rank.h"

namespace views_test {

using Ranks = std::vector<std::unique_ptr<FakeRank>>;

inline bool same(const View& one, const View& other) {
  return encode({0, 0, 0, Adopt{{}, one}}) == encode({0, 0, 0, Adopt{{}, other}});
}

/// Counts votes and keeps the views that a quorum has adopted.
class Chosen {
 public:
  Chosen(const View& first, bool (*quorum)(RankMask, RankMask)) : history_(first), quorum_(quorum) {}

  const ViewHistory& history() const { return history_; }
  const View& newest() const { return history_.newest(); }
  std::uint64_t count() const { return newest().number; }

  /// The proposer votes for what it proposes.
  void propose(const Adopt& adopt, Rank rank) {
    auto& votes = votes_[{adopt.view.number, adopt.ballot}];
    must(votes.mask == 0 || same(votes.view, adopt.view), "S3: two values in one ballot");
    votes.view = adopt.view;
    vote(adopt.view.number, adopt.ballot, rank);
  }
  void vote(std::uint64_t number, Ballot ballot, Rank rank) {
    auto& votes = votes_.at({number, ballot});
    votes.mask |= bit_of(rank);
    const View* old = find(number - 1);
    if (old != nullptr && quorum_(votes.mask, old->members)) choose(votes.view);
  }
  /// A rank installs this view. A rank that is a quorum by itself votes without a message.
  void installs(const View& view, Rank rank) {
    const View* old = find(view.number - 1);
    if (find(view.number) == nullptr && old != nullptr && quorum_(bit_of(rank), old->members)) choose(view);
    const View* chosen = find(view.number);
    must(chosen != nullptr && same(*chosen, view), "S3: a rank installs a view that was not chosen");
  }
  const View* find(std::uint64_t number) const {
    for (const View& view : history_.all()) {
      if (view.number == number) return &view;
    }
    return nullptr;
  }
  /// Views that somebody has adopted as successor of the newest one.
  std::vector<View> pending() const {
    std::vector<View> found;
    for (const auto& [key, votes] : votes_) {
      if (key.first == newest().number + 1) found.push_back(votes.view);
    }
    return found;
  }

 private:
  struct Votes {
    View view;
    RankMask mask = 0;
  };
  void choose(const View& view) {
    if (const View* chosen = find(view.number)) {
      return must(same(*chosen, view), "S3: two views with one number");
    }
    must(view.number == newest().number + 1, "S3: a view chosen before its predecessor");
    must(view.cut >= newest().cut, "S4: the cut fell");
    history_.append(view);
  }

  ViewHistory history_;
  bool (*quorum_)(RankMask, RankMask);
  std::map<std::pair<std::uint64_t, Ballot>, Votes> votes_;
};

class Checker {
 public:
  Checker(const Shape& shape, const Ranks& ranks, const Chosen& chosen)
      : shape_(shape), ranks_(ranks), chosen_(chosen) {
    recorded_.resize(static_cast<std::size_t>(shape.operations * shape.places));
  }

  void check() {
    agreed_.assign(recorded_.size(), {});
    if (chosen_.count() + 1 != table_of_) read_newest_view();
    official_ = 0;
    for (const auto& rank : ranks_) {
      if (official(*rank)) official_ |= bit_of(rank->self);
    }
    for (const auto& rank : ranks_) {
      if (has(official_, rank->self)) check_decisions(*rank);
    }
    for (int n = 0; n < shape_.operations; ++n) check_operation(n);
    check_stable();
    for (int stream = 0; stream < shape_.per_step; ++stream) {
      for (int p = 0; p < shape_.places; ++p) check_units(stream, p);
    }
  }

  /// Acts, or will act without any further check, as a member of the newest chosen view.
  bool official(const FakeRank& x) const {
    const View& newest = chosen_.newest();
    if (x.dead || !has(newest.members, x.self) || x.incarnation != newest.ranks[x.self].incarnation)
      return false;
    if (x.change->standing().lost || x.change->standing().left_behind) return false;
    const bool joined = has(newest.joined, x.self);
    const std::uint64_t number = x.membership->view().number;
    if (!x.change->standing().away)
      return number == newest.number || (number + 1 == newest.number && !joined);
    const RankRecord& record = newest.ranks[x.self];
    const auto completed = static_cast<std::size_t>(x.completed);
    const bool learned =
        static_cast<std::uint64_t>(x.join_from) <= record.completed && record.completed <= completed;
    return joined && learned && record.digest == x.digest[record.completed] &&
           x.change->standing().known < newest.number;
  }

 private:
  std::size_t index(int n, int p) const { return static_cast<std::size_t>(n * shape_.places + p); }
  void read_newest_view() {
    table_of_ = chosen_.count() + 1;
    fails_.clear();
    voids_.clear();
    for (int n = 0; n < shape_.operations; ++n) {
      fails_.push_back(chosen_.history().failed_by(static_cast<std::uint64_t>(n), shape_.exact_at(n)) !=
                       nullptr);
      for (int p = 0; p < shape_.places; ++p) voids_.push_back(is_void(n, p));
    }
  }
  bool fails(int n) const { return fails_[static_cast<std::size_t>(n)]; }

  void check_decisions(const FakeRank& x) {
    for (int n = 0; n < shape_.operations; ++n) {
      if (n < x.completed && fails(n))
        must(x.ended_failed[static_cast<std::size_t>(n)], "S1: an exact operation succeeded and is failed");
      if (n < x.completed && !fails(n))
        must(!x.ended_failed[static_cast<std::size_t>(n)], "S1: an exact operation failed alone");
      for (int p = 0; p < shape_.places; ++p) {
        const Decision& held = x.at(n, p).held;
        if (held.none() || fails(n)) continue;
        Decision& agreed = agreed_[index(n, p)];
        if (agreed.none()) agreed = held;
        must(agreed == held, "S1: members hold different decisions");
        if (held.kind == Decision::Kind::Decided && n >= x.completed)
          must(!voids_[index(n, p)], "S1: void, but held");
      }
    }
  }
  bool is_void(int n, int p) const {
    const auto operation = static_cast<std::uint64_t>(n);
    const auto owners = mask_to_ranks(chosen_.history().members_of(operation));
    const Rank owner = owners[static_cast<std::size_t>(p + n) % owners.size()];
    const ChunkFate fate = chosen_.history().fate(operation, owner, static_cast<std::size_t>(p / 2));
    return (fate.voided >> (p % 2) & 1) != 0;
  }
  static std::vector<Rank> mask_to_ranks(RankMask mask) {
    std::vector<Rank> found;
    for_each_rank(mask, [&](Rank rank) { found.push_back(rank); });
    return found;
  }
  void check_operation(int n) const {
    const View& view = chosen_.history().view_of(static_cast<std::uint64_t>(n));
    for (int p = 0; p < shape_.places; ++p) {
      const Decision& agreed = agreed_[index(n, p)];
      if (agreed.kind != Decision::Kind::Decided) continue;
      must(agreed.view == view.number, "S4: decided in another view than its own");
      if (!shape_.exact_at(n)) continue;
      for_each_rank(view.members, [&](Rank rank) {
        must((agreed.set >> (2 * rank) & 1) != 0, "an exact operation was decided without a member");
      });
    }
  }
  // S5: what all members had completed stays. Strictly with a majority in every view. Otherwise what was
  // below a view's `stable`: members complete further while ranks join that have less, and may be removed one
  // by one.
  void check_stable() {
    int least = shape_.operations;
    bool all = shape_.min_ranks == 0;
    for_each_rank(chosen_.newest().members, [&](Rank rank) {
      all &= has(official_, rank) && !ranks_[rank]->change->standing().leaving;
      least = std::min(least, ranks_[rank]->completed);
    });
    if (!all) least = static_cast<int>(chosen_.newest().stable);
    for (std::size_t i = 0; i < agreed_.size(); ++i) {
      const bool undone = !recorded_[i].none() && !agreed_[i].none() && agreed_[i] != recorded_[i];
      must(!undone, "S5: what all had completed is undone");
      if (static_cast<int>(i) / shape_.places < least && recorded_[i].none()) recorded_[i] = agreed_[i];
    }
  }
  // S2: every unit is in exactly one place, and counted at most once.
  void check_units(int stream, int p) const {
    std::uint64_t counted = 0;
    for (int n = stream; n < shape_.operations; n += shape_.per_step) {
      must((counted & agreed_[index(n, p)].bag) == 0, "S2: counted twice");
      counted |= agreed_[index(n, p)].bag;
    }
    for (const auto& rank : ranks_) {
      if (has(official_, rank->self)) check_units_of(*rank, stream, p, counted);
    }
  }
  void check_units_of(const FakeRank& x, int stream, int p, std::uint64_t counted) const {
    std::uint64_t here = x.rest(stream, p), mine = 0;
    const std::uint64_t created = x.created[static_cast<std::size_t>(p)],
                        dropped = x.dropped[static_cast<std::size_t>(p)];
    must((here & counted) == 0, "S2: a residual has been counted");
    for (int n = stream; n < shape_.operations; n += shape_.per_step) {
      mine |= created & x.unit(n);
      for (int part = 0; part < 2; ++part) {
        const std::uint64_t bag = x.at(n, p).bag[part];
        must((bag & here) == 0, "S2: a contribution is in two slots");
        here |= bag;
        must((bag & counted & ~agreed_[index(n, p)].bag) == 0, "S2: a slot is counted in another operation");
      }
    }
    must((dropped & counted & mine) == 0, "S2: a dropped contribution was counted");
    must((mine & ~(counted | here | dropped)) == 0, "S2: a contribution is lost");
  }

  const Shape& shape_;
  const Ranks& ranks_;
  const Chosen& chosen_;
  RankMask official_ = 0;
  std::vector<Decision> agreed_, recorded_;
  std::uint64_t table_of_ = 0;  // one more than the number of the view that these are of
  std::vector<bool> fails_, voids_;
};

}  // namespace views_test
