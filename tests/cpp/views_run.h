// How World moves packets, makes trouble and comes to a quiet end.
#pragma once

#include "views_world.h"

namespace views_test {

// ---- the network

inline void World::post(Packet packet) {
  if (late_.size() < 400 && random_.chance(trouble_.late)) late_.push_back(packet);  // comes again much later
  net_.push_back(std::move(packet));
}

inline void World::deliver(std::size_t index) {
  const Packet packet = net_[index];
  const bool reaches = !ranks_[packet.to]->paused && linked(packet.from, packet.to);
  const bool stays = reaches ? random_.chance(trouble_.duplicate) : !random_.chance(15);
  if (!stays) {
    net_[index] = std::move(net_.back());
    net_.pop_back();
  }
  if (reaches && !random_.chance(trouble_.loss)) receive(packet);
}

inline std::optional<ViewMessage> World::as_bytes(const Packet& packet) {
  const auto pieces =
      cut_view_message(encode(*packet.control), message_id(packet.incarnation, ++sequence_), 100);
  PieceCollector& collector = collectors_[static_cast<std::size_t>(packet.from * shape_.ranks + packet.to)];
  for (const auto& piece : pieces) {
    if (auto whole = collector.add(piece)) {
      auto message = decode_view_message(*whole, static_cast<std::size_t>(shape_.ranks));
      must(message && encode(*message) == encode(*packet.control),
           "a message changed on its way through bytes");
      return message;
    }
  }
  must(packet.incarnation < ranks_[packet.from]->incarnation, "a message in pieces did not come together");
  return std::nullopt;  // a newer process of that rank has said something since
}

inline ViewMessage World::tampered(FakeRank& x, ViewMessage message) const {
  if (auto* state = std::get_if<State>(&message.body)) {
    if (broken_.adopted_ignored) state->adopted.reset();
    if (broken_.cut_by_own_reach) state->reach_end = 0;
  }
  if (const auto* propose = std::get_if<Propose>(&message.body)) {
    if (propose->ballot >= Ballot{} && message.view == x.membership->view().number)
      x.last_without = propose->without;
  }
  return message;
}

inline void World::receive(const Packet& packet) {
  FakeRank& x = *ranks_[packet.to];
  if (x.dead) return;
  if (packet.kind != Packet::Kind::Control) {
    x.receive(packet);
  } else {
    const auto message = through_bytes_ ? as_bytes(packet) : std::optional(*packet.control);
    if (message) x.change->handle(x.now, packet.from, tampered(x, *message));
  }
  settle(x);
}

/// Notes what a rank voted for, lets its data path follow the view, and sends what it has to say.
inline void World::settle(FakeRank& x) {
  std::vector<std::pair<Rank, ViewMessage>> out;
  Rank to = 0;
  ViewMessage message;
  while (x.change->poll_message(to, message)) out.emplace_back(to, message);
  for (const auto& [rank, sent] : out) {
    if (const auto* adopt = std::get_if<Adopt>(&sent.body)) chosen_.propose(*adopt, x.self);
    if (const auto* vote = std::get_if<Adopted>(&sent.body))
      chosen_.vote(sent.view + 1, vote->ballot, x.self);
  }
  if (!x.change->standing().away) {
    View view = x.membership->view();
    if (const View* known = chosen_.find(view.number); known != nullptr && broken_.no_stable)
      view.stable = known->stable;
    chosen_.installs(view, x.self);
  }
  x.follow();
  while (x.change->poll_message(to, message)) out.emplace_back(to, message);
  for (auto& [rank, sent] : out) observe(x, sent, rank);
  if (x.change->standing().departed) crash(x);
}

inline void World::observe(FakeRank& x, const ViewMessage& message, Rank to) {
  Packet packet = x.header(to, Packet::Kind::Control);
  packet.control = std::make_shared<ViewMessage>(message);
  const auto* propose = std::get_if<Propose>(&message.body);
  if (broken_.states_of_some && propose != nullptr && random_.chance(20)) {  // an answer that nobody gave
    State state;
    state.ballot = propose->ballot;
    state.completed = static_cast<std::uint64_t>(x.completed);
    ViewMessage forged{ranks_[to]->incarnation, message.view, 0, state};
    Packet answer = x.header(x.self, Packet::Kind::Control);
    answer.from = to;
    answer.control = std::make_shared<ViewMessage>(forged);
    net_.push_back(answer);
  }
  post(std::move(packet));
}

// ---- what happens

inline bool World::act_once(FakeRank& x) {
  const int n = random_.below(shape_.operations), p = random_.below(shape_.places);
  const Rank to = static_cast<Rank>(random_.below(shape_.ranks));
  switch (random_.below(11)) {
    case 0:
    case 1:
      if (!x.may_start() || random_.chance(30)) return false;
      x.start();
      return true;
    case 2:
    case 3:
    case 4: {
      if (!x.may_decide(n, p) || !(x.at(n, p).present != 0 || random_.chance(5))) return false;
      const bool all = std::popcount(x.at(n, p).present) >= count_of(x.membership->view().members);
      if (!all && !random_.chance(trouble_.decide_early)) return false;
      x.decide(n, p, random_.chance(85));
      return true;
    }
    case 5:
      if (!x.acts() || to == x.self || !x.kept(n, p)) return false;
      if (x.membership->view().contains(to) && x.membership->completed(to) > static_cast<std::uint64_t>(n))
        return false;
      x.send_decision(to, n, p);
      return true;
    case 6:
    case 7:
      if (!x.may_complete()) return false;
      x.complete();
      return true;
    case 8:
      if (n >= x.started || n < x.completed) return x.carry(n, p);
      if (!random_.chance(15)) return false;
      x.send_contributions(n);
      return true;
    case 9:
      if (random_.chance(trouble_.drop_log)) x.drop_log(random_.chance(20));
      if (!random_.chance(25) || to == x.self || x.change->standing().away) return false;
      post(x.header(to, Packet::Kind::Beat));
      return true;
    default:
      x.now = x.now + Duration::micros(random_.below(random_.chance(3) ? 200'000 : 2'000));
      x.change->handle_timeout(x.now);
      return true;
  }
}

inline void World::act(FakeRank& x) {
  if (x.dead || x.paused) return;
  for (int i = 0; i < 16; ++i) {
    if (act_once(x)) break;
  }
  settle(x);
}

inline bool World::may_lose(Rank rank) const {
  auto survives = [&](const View& view) {
    RankMask alive = 0;
    for_each_rank(view.members & ~bit_of(rank), [&](Rank other) {
      const FakeRank& x = *ranks_[other];
      if (!x.dead && x.incarnation == view.ranks[other].incarnation) alive |= bit_of(other);
    });
    return is_quorum(alive, view.members);
  };
  const std::vector<View> pending = chosen_.pending();
  return survives(chosen_.newest()) && std::all_of(pending.begin(), pending.end(), survives);
}

inline void World::restart(FakeRank& x) {
  const Rank rank = x.self;
  const std::uint32_t next = x.incarnation + 1;
  ranks_[rank] = make(rank, next);
  ++restarts_;
}

inline void World::restore(FakeRank& x, const Snapshot& taken) {
  x.restore(taken);
  settle(x);
  ++restores_;
}

/// Snapshots are of any rank that takes itself for a member, and used at any later time.
inline void World::snapshot(FakeRank& x) {
  if (x.dead || x.paused) return;
  if (x.learns() && !snapshots_.empty() && random_.chance(20)) x.change->give_up_replay();
  if (x.change->standing().left_behind && !snapshots_.empty())
    restore(x, snapshots_[static_cast<std::size_t>(random_.below(static_cast<int>(snapshots_.size())))]);
  else if (x.acts())
    snapshots_.push_back(x.snapshot());
  if (snapshots_.size() > 3) snapshots_.erase(snapshots_.begin());
}

inline void World::fault_propose(FakeRank& x) {
  if (x.paused || !x.acts()) return;
  RankMask without = 0;
  for_each_rank(x.membership->others(), [&](Rank rank) {
    const FakeRank& y = *ranks_[rank];
    const bool gone = y.dead || y.paused || !linked(x.self, rank) || y.change->standing().leaving ||
                      y.change->standing().lost;
    if (random_.chance(gone ? 60 : 18)) without |= bit_of(rank);
  });
  const RankMask joiners = random_.chance(80) ? ~x.membership->view().members : 0;
  if (random_.chance(30))
    x.change->suspect(x.now, without);
  else
    x.change->propose(x.now, without, joiners);
  settle(x);
}

inline void World::fault_links() {
  const RankMask all = first_ranks(static_cast<std::size_t>(shape_.ranks));
  const RankMask side = random_.next() & all;
  const int kind = random_.below(4);
  for (Rank rank = 0; rank < shape_.ranks && kind < 2; ++rank) {
    links_[rank] = kind == 0 ? all : has(side, rank) ? side : all & ~side;
  }
  if (kind >= 2)
    links_[static_cast<std::size_t>(random_.below(shape_.ranks))] ^=
        bit_of(static_cast<Rank>(random_.below(shape_.ranks)));
}

inline void World::fault() {
  FakeRank& x = random_rank();
  int what = random_.below(100);
  auto is = [&](int percent) { return (what -= percent) < 0; };
  if (is(trouble_.suspect)) {
    if (!x.dead) fault_propose(x);
  } else if (is(trouble_.pause)) {
    x.paused = !x.paused;
  } else if (is(trouble_.cut)) {
    fault_links();
  } else if (is(trouble_.crash)) {
    if (x.dead)
      restart(x);
    else if (random_.chance(40) && may_lose(x.self))
      crash(x);
  } else if (is(trouble_.leave)) {
    if (x.dead || x.change->standing().away || x.change->standing().leaving || !may_lose(x.self)) return;
    x.change->leave(x.now);
    settle(x);
  } else if (!x.dead && !x.paused) {
    x.now = x.now + Duration::millis(random_.below(60));
    x.change->handle_timeout(x.now);
    settle(x);
  }
}

inline void World::run(Totals& totals) {
  const int calm = random_.below(2) != 0 ? random_.below(300) : 0;
  const int burst = random_.below(3) != 0 ? 0 : 20 + random_.below(80);
  const int steps = 200 + random_.below(1000);
  for (int i = 0; i < steps; ++i) {
    ++steps_;
    if (net_.size() > 300)
      std::swap(net_[static_cast<std::size_t>(random_.below(static_cast<int>(net_.size())))], net_.back()),
          net_.pop_back();
    if (!late_.empty() && random_.chance(6)) {
      const Packet packet = late_[static_cast<std::size_t>(random_.below(static_cast<int>(late_.size())))];
      if (linked(packet.from, packet.to) && !ranks_[packet.to]->paused) receive(packet);
    }
    const bool quiet = i < calm || (burst != 0 && i / burst % 2 == 0);
    const int what = random_.below(1000), size = static_cast<int>(net_.size());
    if (what < (quiet ? 0 : trouble_.fault)) {
      fault();
    } else if (what < 600 && size != 0) {
      const int near = random_.below(std::min(8, size));
      deliver(static_cast<std::size_t>(trouble_.order == 0   ? random_.below(size)
                                       : trouble_.order == 1 ? near
                                                             : size - 1 - near));
    } else if (what < 620) {
      snapshot(random_rank());
    } else {
      act(random_rank());
    }
    checker_.check();
  }
  const bool done = finish();
  if (!done) must(blocked(), "liveness: not everybody got everything");
  count(totals);
  ++(done ? totals.finished : totals.blocked);
}

}  // namespace views_test
