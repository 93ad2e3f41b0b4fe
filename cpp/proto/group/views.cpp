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
    core_.outcomes.add({MembershipEvent::Kind::Removed, core_.config.rank, changes.standing().known,
                        core_.progress.completed()});
    for (const auto& [_, operation] : core_.operations.open()) operation->note_overwritten();
  }
  told_away_ = changes.standing().away;
  if (changes.standing().left_behind) leave_behind(now);
  members_.set_timer();
  check_quorum(now);
}

void Views::install(Time now, const View& view) {
  note_changes(now, view);
  if (has(view.joined, core_.config.rank)) {
    rejoin(now, view);
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
    core_.outcomes.add({Kind::Removed, rank, view.number, view.cut});
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
  fail_lost_exact(now, view);
  for (std::uint64_t number : open) calls_.check_shard(now, number);
}

/// We are a member again. What we had decided or held may not be what the others agreed on: every operation
/// that is not complete here is fetched anew, and only the fate of our contribution to it is still open.
void Views::rejoin(Time now, const View& view) {
  std::vector<LocalCall> begun;
  for (const auto& [_, operation] : core_.operations.open()) {
    if (!operation->begun()) continue;
    operation->note_overwritten();
    calls_.count_own(now, *operation);
    begun.push_back(operation->call());
  }
  core_.operations.erase_open();
  // Headers of views that we were not in do not count: some may have come back with less than we knew of.
  for_each_rank(members_.membership.others(), [&](Rank rank) {
    core_.peers[rank].completed = members_.membership.completed(rank);
    core_.peers[rank].left = false;
  });
  core_.repairs.clear();  // asked for in another view, of what may not be held any more
  for (LocalCall& call : begun) {
    Operation& operation = calls_.make_operation(now, call.number, call.descriptor, call.stream);
    const bool again = call.number >= view.cut;
    if (again && !call.intact) call.contributes = false;
    if (again && !call.contributes) call.weight = 0;
    calls_.begin_operation(now, operation, call);
  }
  fail_lost_exact(now, view);
  for (const LocalCall& call : begun) calls_.check_shard(now, call.number);
}

bool Views::ends_at_once(Time now, std::uint64_t number) {
  const bool exact = !core_.waiting.back().descriptor.bounded;
  const View* const lost = members_.membership.history().failed_by(number, exact);
  const bool left_behind = members_.changes.standing().left_behind;
  if (left_behind) leave_behind(now);
  if (!left_behind && lost != nullptr) fail_rank_lost(now, number, *lost);
  return left_behind || lost != nullptr;
}

/// Exact operations that needed a removed rank fail on all members. One that was not called yet fails when it
/// is.
void Views::fail_lost_exact(Time now, const View& view) {
  for (std::uint64_t number : view.failed) {
    const Descriptor* const called = calls_.descriptor_of(number);
    const bool exact = called != nullptr && !called->bounded;
    if (exact && number >= core_.progress.completed() && number < core_.progress.next_call())
      fail_rank_lost(now, number, view);
  }
}

void Views::fail_rank_lost(Time now, std::uint64_t number, const View& view) {
  std::vector<Rank> removed;
  std::string names;
  for_each_rank(view.removed, [&](Rank rank) {
    names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
    removed.push_back(rank);
  });
  calls_.fail(now, number, ErrorCode::RankLost,
              names +
                  " is no member of the group any more. The buffer has no result: repeat the operation on "
                  "every remaining rank, or restart",
              std::move(removed));
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
