// One rank of the view tests: the real Membership and ViewChange over the tiny data path.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "views_data.h"

namespace views_test {

/// What everything below `completed` amounts to.
struct Snapshot {
  int completed = 0;
  std::vector<std::uint64_t> digest;
  std::vector<Decision> held;  // by operation and place
  std::vector<bool> ended_failed;
};

/// A rank that receives packets, follows views and answers what ViewChange asks.
class FakeRank : public FakeData {
 public:
  FakeRank(const Shape& group, const Broken& rules, Rank rank, std::uint32_t count, const View& view,
           Send send)
      : FakeData(group, rules, rank, count, std::move(send)) {
    membership = std::make_unique<Membership>(MembershipConfig{.rank = rank}, view);
    ViewChangeConfig config;
    config.incarnation = incarnation;
    config.min_ranks = shape.min_ranks;
    config.readmission = Duration::millis(5);
    if (broken.half_is_quorum) {
      config.quorum = [](RankMask present, RankMask of) {
        return 2 * count_of(present & of) >= count_of(of);
      };
    }
    change = std::make_unique<ViewChange>(config, *membership, journal());
  }

  // ---- packets
  void receive(const Packet& packet) {
    const View& view = membership->view();
    if (packet.view != view.number) {
      change->saw_view(now, packet.from, packet.view);
      if (!broken.older_views_accepted) return;
    }
    if ((change->standing().away && !learns()) || !view.contains(packet.from)) return;
    if (view.ranks[packet.from].incarnation != packet.incarnation) return;
    membership->silence().heard(now, packet.from);
    membership->advanced(packet.from, packet.completed);
    if (packet.hears_all) membership->told_hearing(now, packet.from, view.members);
    if (packet.op < completed) return;
    if (learns() && packet.kind == Packet::Kind::Decision) return learn(packet);
    if (!acts()) return;
    if (packet.kind == Packet::Kind::Contribution) receive_contribution(packet);
    if (packet.kind == Packet::Kind::Decision) receive_decision(packet);
  }
  void receive_contribution(const Packet& packet) {
    if (!owns(packet.op, packet.place) || !serves(packet.from, packet.op)) return;
    Slot& slot = at(packet.op, packet.place);
    if (slot.held.none()) return put(packet.op, packet.place, packet.from, packet.part, packet.bag);
    const std::uint32_t bit = 1u << (2 * packet.from + packet.part);
    if (!broken.owner_adds_late || slot.held.kind != Decision::Kind::Decided || (slot.held.set & bit) != 0)
      return;
    slot.held.set |= bit;
    slot.held.bag |= packet.bag;
  }
  void receive_decision(const Packet& packet) {
    const RankMask deaf = broken.no_deaf                                     ? 0
                          : broken.deaf_of_last_ballot && change->changing() ? last_without
                                                                             : change->deaf();
    const Rank source = broken.deaf_by_owner ? owner(packet.op, packet.place) : packet.from;
    if (has(deaf, source) || !at(packet.op, packet.place).held.none()) return;
    if (within_reach(packet.op) && !failed(packet.op)) hold(packet.op, packet.place, packet.decision);
  }
  void learn(const Packet& packet) {
    if (may_learn(packet.op) && at(packet.op, packet.place).held.none() && !failed(packet.op))
      hold(packet.op, packet.place, packet.decision);
  }
  // ---- views
  /// The order that a view change prescribes: what the view says first, then new packets.
  void follow() {
    if (change->standing().away && !was_away) go_away();
    was_away = change->standing().away;
    const std::optional<View> view = change->take_installed();
    if (!view || change->standing().lost) return;
    const bool joins = has(view->joined, self);
    if (joins && !broken.joiner_keeps_held) forget_open();
    if (joins && broken.joiner_keeps_held) forget_inbox(0);
    if (!broken.inbox_kept) forget_inbox(static_cast<int>(view->cut));
    if (broken.no_stable) forget_stable();
    apply_table();
    if (!acts()) return;
    for (int n = completed; n < started; ++n) send_contributions(n);
  }
  void go_away() {
    join_from = completed;
    if (!broken.joiner_keeps_held) forget_open();
    forget_inbox(0);
    for (int n = completed; broken.away_frees_slots && n < shape.operations; ++n) {
      for (int p = 0; p < shape.places; ++p) {
        for (int part = 0; part < 2; ++part) {
          rest(n, p) |= std::exchange(at(n, p).bag[part], 0);
          at(n, p).overwritten[part] = false;
        }
      }
    }
  }
  // ---- snapshots
  Snapshot snapshot() const {
    Snapshot taken{completed, digest, {}, ended_failed};
    for (int n = 0; n < completed; ++n) {
      for (int p = 0; p < shape.places; ++p) taken.held.push_back(at(n, p).held);
    }
    return taken;
  }
  /// Contributions whose outcome is not known may have been counted: they are forgotten.
  void restore(const Snapshot& taken) {
    grid.assign(grid.size(), {});
    for (std::size_t i = 0; i < taken.held.size(); ++i) grid[i].held = taken.held[i];
    for (auto* units : {&residual, &created, &dropped}) units->assign(units->size(), 0);
    digest = taken.digest;
    ended_failed = taken.ended_failed;
    others_dropped.assign(others_dropped.size(), false);
    started = completed = touched_end = log_from = join_from = taken.completed;
    change->restored(now);
  }
  void apply_table() {
    const View& view = membership->view();
    const int end =
        static_cast<int>(std::min<std::uint64_t>(view.cut, static_cast<std::uint64_t>(shape.operations)));
    for (int n = completed; n < end; ++n) {
      for (int p = 0; p < shape.places; ++p) {
        const ChunkFate fate = membership->fate(static_cast<std::uint64_t>(n), owner(n, p),
                                                static_cast<std::size_t>(chunk_of(p)));
        const bool gone = (fate.gone & bit_in_chunk(p)) != 0;
        const bool voided = (fate.voided & bit_in_chunk(p)) != 0 || (gone && broken.gone_is_void);
        if (failed(n)) continue;
        must(!voided || at(n, p).held.kind != Decision::Kind::Decided,
             "S1: a rank holds what its view makes void");
        if (!at(n, p).held.none()) continue;
        if (voided) {
          hold(n, p,
               {Decision::Kind::Void, 0, 0,
                membership->history().view_of(static_cast<std::uint64_t>(n)).number});
        } else if (gone) {
          return change->mark_lost(now);
        }
      }
    }
  }

 private:
  void forget_open() {
    for (int n = completed; n < shape.operations; ++n) {
      for (int p = 0; p < shape.places; ++p) at(n, p).held = {};
    }
    forget_inbox(0);
  }
  void forget_inbox(int from) {
    for (int n = from; n < shape.operations; ++n) {
      for (int p = 0; p < shape.places; ++p) at(n, p).present = 0;
    }
  }
  void forget_stable() {
    std::vector<View> views(membership->history().all().begin(), membership->history().all().end());
    views.back().stable = 0;
    membership->take_over(now, views);
  }
  bool known(int n) const {
    if (n < started) return true;
    for (int p = 0; p < shape.places; ++p) {
      if (!at(n, p).held.none() || at(n, p).present != 0 || at(n, p).bag[1] != 0) return true;
    }
    return false;
  }
  Journal journal() {
    return {
        .completed = [this] { return static_cast<std::uint64_t>(completed); },
        .floor = [this] { return static_cast<std::uint64_t>(floor()); },
        .near = [this](std::uint64_t n) { return is_near(static_cast<int>(n)); },
        .touched_end = [this] { return static_cast<std::uint64_t>(touched_end); },
        .digest = [this](std::uint64_t n) { return broken.no_digest ? 0 : digest.at(n); },
        .open = [this] { return open_operations(); },
        .held = [this](std::uint64_t n, RankMask owners) { return held_of(static_cast<int>(n), owners); }};
  }
  bool is_near(int n) const { return n / shape.per_step + shape.max_lag >= completed / shape.per_step; }
  std::vector<OpenOperation> open_operations() const {
    std::vector<OpenOperation> found;
    for (int n = completed; n < shape.operations; ++n) {
      if (!known(n)) continue;
      bool decided = true;
      for (int p = 0; p < shape.places; ++p) decided &= owner(n, p) != self || !at(n, p).held.none();
      found.push_back({static_cast<std::uint64_t>(n), shape.exact_at(n), decided});
    }
    return found;
  }
  std::vector<HeldShard> held_of(int n, RankMask owners) const {
    std::vector<HeldShard> found;
    if (n >= shape.operations || failed(n) || (n >= completed && !known(n))) return found;
    for_each_rank(owners, [&](Rank rank) {
      HeldShard shard{static_cast<std::uint64_t>(n), rank, 0, {}};
      shard.held.resize(static_cast<std::size_t>(chunk_of(shape.places - 1) + 1));
      for (int p = 0; p < shape.places; ++p) {
        if (owner(n, p) != rank) continue;
        ++shard.packets;
        const auto chunk = static_cast<std::size_t>(chunk_of(p));
        if (kept(n, p)) shard.held[chunk] |= bit_in_chunk(p);
      }
      found.push_back(std::move(shard));
    });
    return found;
  }
};

}  // namespace views_test
