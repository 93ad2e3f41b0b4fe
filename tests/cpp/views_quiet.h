// The quiet end of a schedule: faults have stopped, everybody must get everything.
#pragma once

#include "views_world.h"

namespace views_test {

inline void World::drain() {
  for (int i = 0; i < 20000 && !net_.empty(); ++i) {
    const auto index = static_cast<std::size_t>(random_.below(static_cast<int>(net_.size())));
    const Packet packet = std::move(net_[index]);
    net_[index] = std::move(net_.back());
    net_.pop_back();
    receive(packet);
    ++steps_;
  }
  checker_.check();
}

inline void World::work(FakeRank& x, int round) {
  while (x.may_complete()) x.complete();
  while (x.may_start()) x.start();
  for (int n = x.completed; n < x.started; ++n) x.send_contributions(n);
  for (int n = x.completed; n < shape_.operations; ++n) {
    for (int p = 0; p < shape_.places; ++p) {
      if (!x.may_decide(n, p)) continue;
      const bool all = std::popcount(x.at(n, p).present) >= count_of(x.membership->view().members);
      const bool known = n < x.touched_end || x.at(n, p).present != 0;
      if ((all || shape_.exact_at(n) || round % 4 == 3) && known) x.decide(n, p, true);
    }
  }
  for (int n = 0; n < shape_.operations; ++n) {
    for (int p = 0; p < shape_.places; ++p) {
      if (!x.acts() || !x.kept(n, p)) continue;
      for_each_rank(x.membership->others(), [&](Rank rank) {
        if (x.membership->completed(rank) <= static_cast<std::uint64_t>(n)) x.send_decision(rank, n, p);
      });
      for (const auto& y : ranks_) {
        if (y->learns() && y->completed <= n) x.send_decision(y->self, n, p);
      }
    }
  }
  while (x.may_complete()) x.complete();
  if (!x.change->standing().away)
    for_each_rank(first_ranks(static_cast<std::size_t>(shape_.ranks)) & ~bit_of(x.self),
                  [&](Rank rank) { post(x.header(rank, Packet::Kind::Beat)); });
  const bool waits = x.completed < shape_.operations || x.change->standing().leaving;
  x.membership->silence().set_owing_data(x.now, waits ? x.membership->others() : 0);
}

/// Members tell a rank that asks for what they no longer have.
inline bool World::in_vain(const FakeRank& x) const {
  const int n = x.completed;
  if (n >= shape_.operations) return false;  // it lacks nothing
  for (int p = 0; x.learns() && x.may_learn(n) && !x.failed(n) && p < shape_.places; ++p) {
    const bool kept = std::ranges::any_of(ranks_, [&](const auto& y) {
      return !y->dead && y->acts() && y->membership->view().number == x.membership->view().number &&
             y->kept(n, p);
    });
    if (!kept && x.at(n, p).held.none()) return true;
  }
  return false;
}

/// From a rank that is as far as any.
inline void World::take_over(FakeRank& x) {
  const FakeRank* donor = nullptr;
  for (const auto& y : ranks_) {
    if (!y->dead && y->acts() && (donor == nullptr || y->completed > donor->completed)) donor = y.get();
  }
  if (donor != nullptr) restore(x, donor->snapshot());
}

inline bool World::finished() const {
  bool one = false;
  for (const auto& x : ranks_) {
    if (x->dead || x->change->standing().leaving) continue;
    if (!x->acts() || x->completed < shape_.operations || x->change->changing()) return false;
    if (x->membership->view().number != chosen_.newest().number) return false;
    one = true;
  }
  return one;
}

inline bool World::finish() {
  for (RankMask& row : links_) row = first_ranks(static_cast<std::size_t>(shape_.ranks));
  Time now{};
  for (auto& x : ranks_) {
    x->paused = false;
    if (x->dead && random_.chance(50)) restart(*x);
    now = std::max(now, ranks_[static_cast<std::size_t>(&x - ranks_.data())]->now);
  }
  if (random_.chance(50)) net_.clear();
  for (const Packet& packet : late_) {
    if (random_.chance(50)) net_.push_back(packet);
  }
  trouble_ = {};
  for (int round = 0; round < 400; ++round) {
    if (finished()) return true;
    now = now + Duration::millis(round < 200 ? 3 : 15);
    for (auto& x : ranks_) {
      if (x->dead) continue;
      x->now = now;
      x->change->handle_timeout(now);
      settle(*x);
      if (!x->dead) work(*x, round);
      settle(*x);
      if (!x->dead && round % 8 == 7 && in_vain(*x)) x->change->give_up_replay();
      if (!x->dead && x->change->standing().left_behind && round % 8 == 7) take_over(*x);
    }
    drain();
  }
  return finished();
}

/// No progress is promised: too few are left, or nobody knows or has what the newest view needs.
inline bool World::blocked() const {
  const View& view = chosen_.newest();
  const View* old = view.number == 0 ? nullptr : chosen_.find(view.number - 1);
  RankMask voters = 0, old_voters = 0, staying = 0;
  std::size_t able = 0;
  bool knows = false, stable = false;
  int furthest = 0;
  for (const auto& x : ranks_) {
    if (!x->dead && x->acts()) furthest = std::max(furthest, x->completed);
  }
  for (const auto& x : ranks_) {
    const ViewChange& change = *x->change;
    if (x->dead) continue;
    const bool ahead = !x->acts() && x->completed > furthest;  // nobody can tell whether it fits
    able += change.standing().leaving || ahead ? 0 : 1;
    if (change.standing().away) continue;
    const std::uint64_t number = x->membership->view().number;
    if (old != nullptr && number == old->number) old_voters |= bit_of(x->self);
    knows |= number == view.number;
    if (!has(view.members, x->self)) continue;
    voters |= bit_of(x->self);
    if (!change.standing().leaving && !change.standing().lost) staying |= bit_of(x->self);
    stable |= !change.standing().lost && x->completed >= static_cast<int>(view.stable);
  }
  if (!knows && (old == nullptr || !is_quorum(old_voters, old->members))) return true;
  return !stable || staying == 0 || !is_quorum(voters, view.members) ||
         able < (shape_.min_ranks != 0 ? shape_.min_ranks : static_cast<std::size_t>(shape_.ranks / 2 + 1));
}

inline void World::count(Totals& totals) const {
  ++totals.schedules;
  totals.steps += steps_;
  totals.views += chosen_.count();
  totals.restarts += restarts_;
  totals.restores += restores_;
  for (const View& view : chosen_.history().all()) {
    totals.removed += static_cast<std::uint64_t>(count_of(view.removed));
    totals.joined += static_cast<std::uint64_t>(count_of(view.joined));
    totals.failed += view.failed.size();
    for (const OrphanShard& shard : view.orphans) totals.passed += shard.passed.empty() ? 0 : 1;
  }
  for (const auto& x : ranks_) {
    totals.learned += static_cast<std::uint64_t>(x->learned);
    totals.left_behind += x->change->standing().left_behind && x->incarnation == 0 ? 1 : 0;
    totals.leaves += x->change->standing().leaving ? 1 : 0;
  }
}

inline std::string World::describe() const {
  std::string text = "newest view " + std::to_string(chosen_.newest().number) + " members " +
                     std::to_string(chosen_.newest().members) + "\n";
  for (const View& view : chosen_.history().all()) {
    text += "  view " + std::to_string(view.number) + " members " + std::to_string(view.members) +
            " removed " + std::to_string(view.removed) + " cut " + std::to_string(view.cut) + " base " +
            std::to_string(view.base) + " stable " + std::to_string(view.stable);
    for (std::uint64_t operation : view.failed) text += " failed " + std::to_string(operation);
    for_each_rank(view.joined, [&](Rank rank) {
      text += " joined " + std::to_string(rank) + " at " + std::to_string(view.ranks[rank].completed);
    });
    text += "\n";
  }
  for (const auto& x : ranks_) {
    const ViewChange& c = *x->change;
    text += "  rank " + std::to_string(x->self) + (x->dead ? " dead" : "") +
            (c.standing().away ? " away" : "") + (c.standing().left_behind ? " left behind" : "") +
            (c.standing().lost ? " lost" : "") + (c.standing().leaving ? " leaving" : "") +
            (c.changing() ? " changing" : "") + (c.too_few() ? " too few" : "") + " view " +
            std::to_string(x->membership->view().number) + " known " + std::to_string(c.standing().known) +
            " completed " + std::to_string(x->completed) + " started " + std::to_string(x->started) +
            " suspects " + std::to_string(x->membership->suspected()) + "\n";
  }
  return text;
}

}  // namespace views_test
