#include "group/views.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace optireduce {

void Views::follow(Time now) {
  if (!core_.config.elastic()) return;
  const ViewChange& changes = members_.changes;
  while (const std::optional<View> view = members_.changes.take_installed()) install(now, *view);
  if (changes.standing().away && !told_away_) {
    using Kind = MembershipEvent::Kind;
    core_.outcomes.add({changes.standing().leaving ? Kind::Left : Kind::Removed, core_.config.rank,
                        changes.standing().known, core_.progress.completed()});
    learner_.begin();
  }
  told_away_ = changes.standing().away;
  if (changes.standing().away) learner_.go_on(now);
  if (changes.standing().left_behind) leave_behind(now);
  members_.set_timer();
  check_quorum(now);
}

void Views::install(Time now, const View& view) {
  note_changes(now, view);
  if (has(view.joined, core_.config.rank)) {
    learner_.rejoin(now, view);
  } else {
    keep_on(now, view);
  }
  members_.ask_unanswered();  // answers in the view before do not count
  calls_.complete_ready(now);
  calls_.begin_waiting(now);
  members_.look_for_silence(now);
}

void Views::note_changes(Time now, const View& view) {
  using Kind = MembershipEvent::Kind;
  ++core_.stats.views;
  for_each_rank(members_.membership.others(), [&](Rank rank) {
    const std::uint32_t process = view.ranks[rank].incarnation;
    if (core_.peers[rank].incarnation != process) core_.peers[rank] = core_.new_peer(rank, process);
  });
  for_each_rank(view.removed & ~view.members, [&](Rank rank) {
    ++core_.stats.removals;
    core_.peers[rank].window.on_silence(now);
    const bool left = has(members_.membership.left(), rank);
    core_.outcomes.add({left ? Kind::Left : Kind::Removed, rank, view.number, view.cut});
  });
  for_each_rank(view.joined, [&](Rank rank) {
    if (rank != core_.config.rank) core_.peers[rank].completed = view.ranks[rank].completed;
    core_.outcomes.add({Kind::Returned, rank, view.number, view.cut});
  });
}

void Views::keep_on(Time now, const View& view) {
  std::vector<std::uint64_t> dropped, open;
  for (const auto& [number, operation] : core_.operations.open())
    (number >= view.cut && !operation->begun() ? dropped : open).push_back(number);
  for (std::uint64_t number : dropped) core_.operations.erase(number);  // their shards are cut anew
  for (std::uint64_t number : open) {
    Operation& operation = *core_.operations.find_open(number);
    members_.apply_fates(now, operation);
    requests_.schedule(now, operation);
  }
  calls_.fail_lost_exact(now, view);
  for (std::uint64_t number : open) calls_.check_shard(now, number);
}

bool Views::ends_at_once(Time now, std::uint64_t number) {
  const bool exact = !core_.waiting.back().descriptor.bounded;
  const View* const lost = members_.membership.history().failed_by(number, exact);
  const bool left_behind = members_.changes.standing().left_behind;
  if (left_behind) leave_behind(now);
  if (!left_behind && lost != nullptr) calls_.fail_rank_lost(now, number, *lost);
  return left_behind || lost != nullptr;
}

void Views::leave_behind(Time now) {
  const Rank self = core_.config.rank;
  const Progress& progress = core_.progress;
  core_.progress.tell_no_more();
  if (!std::exchange(told_left_behind_, true))
    core_.outcomes.add(
        {MembershipEvent::Kind::LeftBehind, self, members_.view().number, progress.completed()});
  if (!fail_finished(now))
    fail_all(
        now, ErrorCode::LeftBehind,
        "this rank was silent or was restarted, the others went on without it, and they no longer keep "
        "what it missed or have made void what it alone completed; it needs a snapshot, or a restart from "
        "a checkpoint together with the others",
        {self});
  core_.stats.dropped_bytes += core_.residuals.drop_all();  // neither a snapshot nor a checkpoint holds them
}

void Views::restore(Time now, const Position& position, std::uint64_t step) {
  const Progress& progress = core_.progress;
  if (!members_.changes.standing().left_behind)
    throw std::logic_error("this rank is not left behind: it has nothing to restore");
  if (progress.completed() < progress.next_call())
    throw std::logic_error("all-reduce " + std::to_string(progress.completed()) +
                           " is not over: restore between two steps, when no call is open");
  core_.stats.dropped_bytes += core_.residuals.drop_all();
  core_.oldest_residual = 0;
  core_.operations.restart(position.completed);
  core_.repairs.clear();
  core_.progress.restart(position, step);
  for (Peer& peer : core_.peers) peer.told = 0;  // it may have been more
  told_left_behind_ = false;
  too_few_since_ = Time::never();
  members_.changes.restored(now);
  follow(now);
}

void Views::check_quorum(Time now) {
  if (!members_.changes.too_few() && !members_.changes.standing().away) {
    too_few_since_ = Time::never();
    return core_.timers.stop({TimerKind::Quorum});
  }
  if (fail_finished(now)) return;
  too_few_since_ = std::min(too_few_since_, now);
  // A rank that replays outside the view is not alone.
  if (members_.changes.learning()) too_few_since_ = std::max(too_few_since_, members_.heard_at());
  const Time fails_at = too_few_since_ + core_.config.quorum_wait;
  if (now >= fails_at) return fail_too_few(now);  // later calls at once
  core_.timers.set({TimerKind::Quorum}, fails_at);
}

/// Nobody is left that could take this rank in again.
bool Views::fail_finished(Time now) {
  if (!members_.changes.standing().away) return false;
  std::vector<Rank> others;
  for (const Peer& peer : core_.peers) {
    if (peer.rank == core_.config.rank) continue;
    if (!peer.left) return false;
    others.push_back(peer.rank);
  }
  fail_all(now, ErrorCode::GroupFinished, "all other ranks have left the group without this one", others);
  return true;
}

void Views::fail_too_few(Time now) {
  const Rank size = core_.config.size;
  std::vector<Rank> missing;
  for (const Peer& peer : core_.peers) {
    const bool heard = has(members_.membership.hears(), peer.rank) && !peer.left;
    if (peer.rank != core_.config.rank && !heard) missing.push_back(peer.rank);
  }
  const std::string text = "only " + std::to_string(size - missing.size()) + " of " + std::to_string(size) +
                           " ranks are heard, too few to go on";
  fail_all(now, ErrorCode::TooFewRanks, text, missing);
}

void Views::fail_all(Time now, ErrorCode code, const std::string& message, const std::vector<Rank>& ranks) {
  const Progress& progress = core_.progress;
  while (progress.completed() < progress.next_call())
    calls_.fail(now, progress.completed(), code, message, ranks);
}

bool Views::may_leave() const {
  const ViewChange& changes = members_.changes;
  if (!core_.config.elastic() || changes.standing().departed || changes.standing().left_behind)
    return changes.standing().departed || everyone_caught_up();
  RankMask staying = members_.membership.others() & ~members_.membership.leaving();
  for (const Peer& peer : core_.peers) staying &= ~(peer.left ? bit_of(peer.rank) : 0);
  return everyone_caught_up() && staying == 0;
}

void Views::say_goodbye(Time now) {
  constexpr int kGoodbyes = 3;  // nobody answers one: a peer that misses it waits for nothing
  core_.progress.tell_no_more();
  fail_all(now, ErrorCode::Closed, "the group was closed before the operation was complete", {});
  core_.controls.clear();
  core_.repairs.clear();
  for (int copy = 0; copy < kGoodbyes; ++copy) {
    core_.tell_all(PacketType::Goodbye,
                   [this](const Peer& peer) { return peer.rank != core_.config.rank && !peer.left; });
  }
}

}  // namespace optireduce
