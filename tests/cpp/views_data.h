// The tiny data path of the view tests. A contribution is a set of units (one for each rank and operation),
// so sums can be compared and units be counted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "views/view_change.h"

namespace views_test {

using namespace optireduce;

struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void must(bool holds, const char* what) {
  if (!holds) throw Violation(what);
}

/// Rules that a run leaves out, to see that the checks notice it. All false: the real rules.
struct Broken {
  bool no_deaf = false, deaf_of_last_ballot = false, states_of_some = false, adopted_ignored = false;
  bool half_is_quorum = false, no_reach = false, cut_by_own_reach = false, no_since = false;
  bool joiner_keeps_held = false, no_digest = false, log_dropped_while_changing = false, no_stable = false;
  bool gone_is_void = false, restarted_votes = false, away_frees_slots = false, owner_adds_late = false;
  bool inbox_kept = false, older_views_accepted = false, deaf_by_owner = false, exact_while_changing = false;
  bool learns_ahead = false;
};

struct Shape {
  int ranks = 4, operations = 6, places = 4;
  int per_step = 2;  // operations of a step; operation n and n + per_step are on the same bucket
  int max_lag = 1;   // steps
  std::uint64_t exact = 0;
  std::size_t min_ranks = 1;
  bool exact_at(int n) const { return (exact >> n & 1) != 0; }
};

struct Decision {
  enum class Kind { None, Void, Decided } kind = Kind::None;
  std::uint64_t bag = 0;
  std::uint32_t set = 0;  // two bits a rank: fresh, carried
  std::uint64_t view = 0;

  bool operator==(const Decision&) const = default;
  bool none() const { return kind == Kind::None; }
};

struct Packet {
  enum class Kind { Contribution, Decision, Beat, Control } kind = Kind::Beat;
  Rank from = 0, to = 0;
  std::uint32_t incarnation = 0;
  std::uint64_t view = 0, completed = 0;
  bool hears_all = false;
  int op = 0, place = 0, part = 0;
  std::uint64_t bag = 0;
  Decision decision;
  std::shared_ptr<const ViewMessage> control;
};

struct Slot {
  std::uint64_t bag[2] = {};  // my fresh and carried contribution whose outcome is open
  bool overwritten[2] = {};   // a decision that includes it took its place
  std::uint32_t present = 0;  // inbox of the owner
  std::uint64_t inbox[32] = {};
  Decision held;
};

/// What one rank does by itself: starts, contributes, decides, completes. It moves no packets and follows no
/// view.
class FakeData {
 public:
  using Send = std::function<void(Packet)>;

  FakeData(const Shape& group, const Broken& rules, Rank rank, std::uint32_t count, Send send)
      : shape(group), broken(rules), self(rank), incarnation(count), send_(std::move(send)) {
    const auto operations = static_cast<std::size_t>(shape.operations);
    const auto places = static_cast<std::size_t>(shape.places);
    grid.resize(operations * places);
    residual.resize(static_cast<std::size_t>(shape.per_step) * places);
    created.resize(places);
    dropped.resize(places);
    digest.resize(operations + 1);
    digest[0] = count;  // a restarted process has not what nothing amounts to for the others
    others_dropped.resize(operations);
    ended_failed.resize(operations);
  }

  // ---- maps
  int chunk_of(int place) const { return place / 2; }
  std::uint64_t bit_in_chunk(int place) const { return std::uint64_t{1} << (place % 2); }
  Rank owner(int n, int p) const {
    RankMask owners = membership->history().members_of(static_cast<std::uint64_t>(n));
    for (int skip = (p + n) % count_of(owners); skip > 0; --skip) owners &= owners - 1;
    return lowest_of(owners);
  }
  bool contributes(int n) const { return serves(self, n); }
  bool serves(Rank rank, int n) const {
    if (broken.no_since) return has(membership->history().members_of(static_cast<std::uint64_t>(n)), rank);
    return membership->serves(rank, static_cast<std::uint64_t>(n));
  }
  bool owns(int n, int p) const { return owner(n, p) == self && serves(self, n); }
  bool failed(int n) const {
    return membership->history().failed_by(static_cast<std::uint64_t>(n), shape.exact_at(n)) != nullptr;
  }
  bool within_reach(int n) const {
    return broken.no_reach || static_cast<std::uint64_t>(n) < change->reach_end();
  }
  bool learns() const { return change->learning(); }
  /// Outside the view: an operation that all members have completed.
  bool may_learn(int n) const {
    if (!learns()) return false;
    const RankMask members = membership->view().members;
    bool one = false;
    for_each_rank(members,
                  [&](Rank rank) { one |= static_cast<std::uint64_t>(n) < membership->completed(rank); });
    return broken.learns_ahead ? one : within_reach(n);
  }
  bool acts() const {
    return !change->standing().away && !change->standing().lost && !change->standing().left_behind;
  }
  Slot& at(int n, int p) { return grid[static_cast<std::size_t>(n * shape.places + p)]; }
  const Slot& at(int n, int p) const { return grid[static_cast<std::size_t>(n * shape.places + p)]; }
  std::uint64_t& rest(int n, int p) {
    return residual[static_cast<std::size_t>(n % shape.per_step * shape.places + p)];
  }
  std::uint64_t rest(int n, int p) const {
    return residual[static_cast<std::size_t>(n % shape.per_step * shape.places + p)];
  }
  std::uint64_t unit(int n) const { return std::uint64_t{1} << (self * shape.operations + n); }
  int floor() const { return log_from; }
  /// Lost members are not awaited.
  int completed_by_all() const {
    auto least = static_cast<std::uint64_t>(completed);
    for_each_rank(membership->view().members & ~membership->lost(),
                  [&](Rank rank) { least = std::min(least, membership->completed(rank)); });
    return static_cast<int>(least);
  }
  bool kept(int n, int p) const {
    if (at(n, p).held.none() || failed(n)) return false;
    return n >= completed ||
           (n >= log_from && (!others_dropped[static_cast<std::size_t>(n)] || owner(n, p) == self));
  }

  // ---- contributions and decisions
  bool may_start() const {
    const int n = started;
    if (change->standing().leaving || n >= shape.operations) return false;
    if (learns() ? !may_learn(n) : !acts() || !within_reach(n)) return false;
    if (n >= shape.per_step && completed <= n - shape.per_step) return false;  // the bucket is still in use
    return n / shape.per_step <= completed_by_all() / shape.per_step + shape.max_lag;
  }
  void start() {
    const int n = started++;
    if (!contributes(n)) return;
    touched_end = std::max(touched_end, n + 1);
    for (int p = 0; p < shape.places; ++p) {
      created[static_cast<std::size_t>(p)] |= unit(n);
      at(n, p).bag[0] = unit(n);
      if (!shape.exact_at(n)) at(n, p).bag[0] |= std::exchange(rest(n, p), 0);
      if (!at(n, p).held.none()) resolve(n, p);
    }
    send_contributions(n);
  }
  /// A residual that goes ahead of the fresh gradient, into an operation that this process has not begun.
  bool carry(int n, int p) {
    if (!acts() || n < started || shape.exact_at(n) || !within_reach(n) || !contributes(n)) return false;
    if (!at(n, p).held.none() || rest(n, p) == 0 || at(n, p).bag[1] != 0) return false;
    at(n, p).bag[1] = std::exchange(rest(n, p), 0);
    touched_end = std::max(touched_end, n + 1);
    send_contributions(n);
    return true;
  }
  void send_contributions(int n) {
    if (!acts() || !contributes(n)) return;
    for (int p = 0; p < shape.places; ++p) {
      for (int part = 0; part < 2; ++part) {
        const Slot& slot = at(n, p);
        if (slot.bag[part] == 0 || slot.overwritten[part] || !slot.held.none()) continue;
        const Rank to = owner(n, p);
        if (to == self) {
          if (owns(n, p)) put(n, p, self, part, slot.bag[part]);
        } else if (membership->view().contains(to)) {
          Packet packet = header(to, Packet::Kind::Contribution);
          packet.op = n, packet.place = p, packet.part = part, packet.bag = slot.bag[part];
          send_(packet);
        }
      }
    }
  }
  bool may_decide(int n, int p) const {
    if (!acts() || n < completed || !at(n, p).held.none() || !owns(n, p) || !within_reach(n) || failed(n))
      return false;
    if (!shape.exact_at(n)) return true;
    if (change->changing() && !broken.exact_while_changing) return false;
    bool all = true;
    for_each_rank(membership->history().members_of(static_cast<std::uint64_t>(n)),
                  [&](Rank rank) { all &= (at(n, p).present >> (2 * rank) & 1) != 0; });
    return all;
  }
  void decide(int n, int p, bool tell) {
    Decision decision;
    decision.set = at(n, p).present;
    decision.view = membership->history().view_of(static_cast<std::uint64_t>(n)).number;
    decision.kind = decision.set != 0 ? Decision::Kind::Decided : Decision::Kind::Void;
    for (int i = 0; i < 32; ++i) {
      if ((decision.set >> i & 1) != 0) decision.bag |= at(n, p).inbox[i];
    }
    hold(n, p, decision);
    if (tell) for_each_rank(membership->others(), [&](Rank rank) { send_decision(rank, n, p); });
  }
  void send_decision(Rank to, int n, int p) {
    Packet packet = header(to, Packet::Kind::Decision);
    packet.op = n, packet.place = p, packet.decision = at(n, p).held;
    send_(packet);
  }
  void hold(int n, int p, const Decision& decision) {
    at(n, p).held = decision;
    touched_end = std::max(touched_end, n + 1);
    resolve(n, p);
  }
  bool may_complete() const {
    const int n = completed;
    if (n >= shape.operations || started <= n || (learns() ? !may_learn(n) : !acts())) return false;
    if (failed(n)) return true;
    for (int p = 0; p < shape.places; ++p) {
      if (at(n, p).held.none()) return false;
    }
    return true;
  }
  void complete() {
    const int n = completed;
    learned += learns() ? 1 : 0;
    const bool fails = failed(n);
    std::uint64_t sum = mix(digest[static_cast<std::size_t>(n)], fails ? 77 : 1);
    for (int p = 0; p < shape.places; ++p) {
      Slot& slot = at(n, p);
      if (fails) slot.held = {};
      sum = mix(mix(mix(sum, static_cast<std::uint64_t>(slot.held.kind)), slot.held.set), slot.held.view);
      for (int part = 0; part < 2; ++part) {
        if (fails) dropped[static_cast<std::size_t>(p)] |= slot.bag[part];
        slot.bag[part] = 0;
        slot.overwritten[part] = false;
      }
    }
    digest[static_cast<std::size_t>(++completed)] = sum;
    ended_failed[static_cast<std::size_t>(n)] = fails;
    membership->advanced(self, static_cast<std::uint64_t>(completed));
  }
  /// Forgets one operation of the log, or others' shards of one, if that is allowed now.
  void drop_log(bool others_only) {
    if (!acts() || (change->changing() && !broken.log_dropped_while_changing)) return;
    if (others_only) {
      const int n = completed - 1;
      if (n >= 0 && !membership->must_keep(static_cast<std::uint64_t>(n)))
        others_dropped[static_cast<std::size_t>(n)] = true;
    } else if (log_from < completed_by_all()) {
      ++log_from;
    }
    membership->forget_before(static_cast<std::uint64_t>(floor()));
  }

  // ---- packets
  Packet header(Rank to, Packet::Kind kind) const {
    Packet packet;
    packet.kind = kind;
    packet.from = self;
    packet.to = to;
    packet.incarnation = incarnation;
    packet.view = membership->view().number;
    packet.completed = static_cast<std::uint64_t>(completed);
    packet.hears_all = membership->hears() == membership->view().members;
    return packet;
  }
  void put(int n, int p, Rank from, int part, std::uint64_t bag) {
    Slot& slot = at(n, p);
    const int index = 2 * from + part;
    if ((slot.present >> index & 1) != 0) return;
    slot.present |= 1u << index;
    slot.inbox[index] = bag;
  }

  static std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
    std::uint64_t z = hash * 0x9e3779b97f4a7c15ull + value + 0x1234567;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
  }

  const Shape& shape;
  const Broken& broken;
  Rank self;
  std::uint32_t incarnation;
  Time now{};
  bool dead = false, paused = false, was_away = false;
  int started = 0, completed = 0, touched_end = 0, log_from = 0, join_from = 0, learned = 0;
  RankMask last_without = 0;  // of the last ballot that this rank answered
  std::vector<Slot> grid;
  std::vector<std::uint64_t> residual, created, dropped, digest;
  std::vector<bool> others_dropped, ended_failed;
  std::unique_ptr<Membership> membership;
  std::unique_ptr<ViewChange> change;

 protected:
  // My contribution to (n, p), now that its decision is known.
  void resolve(int n, int p) {
    Slot& slot = at(n, p);
    for (int part = 0; part < 2; ++part) {
      if (slot.bag[part] == 0) continue;
      if ((slot.held.set >> (2 * self + part) & 1) != 0) {
        slot.overwritten[part] = true;
        continue;
      }
      const std::uint64_t bag = std::exchange(slot.bag[part], 0);
      const bool lost = std::exchange(slot.overwritten[part], false) || shape.exact_at(n);
      (lost ? dropped[static_cast<std::size_t>(p)] : rest(n, p)) |= bag;
    }
  }

  Send send_;
};

}  // namespace views_test
