#include "group/learner.h"

#include <algorithm>

namespace optireduce {

void Learner::begin() {
  members_.learn_below(0);
  core_.repairs.clear();  // asked for in another view, of what may not be held any more
  for (const auto& [_, operation] : core_.operations.open()) operation->note_overwritten();
}

/// The views while we were out may have ended exact operations.
void Learner::fail_lost_exact(Time now) {
  const auto& known = members_.membership.history().all();
  for (const View& view : std::vector<View>(known.begin(), known.end())) calls_.fail_lost_exact(now, view);
}

/// Packets of views that we were not in do not say how far others are: some may have come back with less than
/// we knew of, or as another process.
void Learner::note_progress() {
  for_each_rank(members_.membership.others(), [&](Rank rank) {
    const std::uint32_t process = members_.view().ranks[rank].incarnation;
    if (core_.peers[rank].incarnation != process) core_.peers[rank] = core_.new_peer(rank, process);
    core_.peers[rank].completed = members_.membership.completed(rank);
  });
}

/// Forgets what was held of open operations in this range. The calls of those that had begun.
std::vector<LocalCall> Learner::drop(Time now, std::uint64_t begin, std::uint64_t end) {
  std::vector<std::uint64_t> numbers;
  std::vector<LocalCall> begun;
  for (const auto& [number, operation] : core_.operations.open()) {
    if (number < begin || number >= end) continue;
    numbers.push_back(number);
    if (!operation->begun()) continue;
    operation->note_overwritten();
    if (operation->call().contributes) calls_.count_own(now, *operation);
    begun.push_back(operation->call());
  }
  for (const std::uint64_t number : numbers) core_.operations.erase(number);
  return begun;
}

void Learner::fetch(Time now, const LocalCall& call) {
  Operation& operation = calls_.make_operation(now, call.number, call.descriptor, call.stream);
  calls_.begin_operation(now, operation, call);
}

void Learner::observe(Time now) {
  note_progress();
  fail_lost_exact(now);
}

/// Invariant: of operations below the reach nothing is left that was held as a member.
void Learner::go_on(Time now) {
  if (members_.changes.take_observed()) observe(now);
  if (!members_.changes.learning()) return;
  const std::uint64_t end = members_.changes.reach_end();
  if (end <= members_.reach_end() || end <= core_.progress.completed()) return;
  const std::vector<LocalCall> begun = drop(now, members_.reach_end(), end);
  members_.learn_below(end);
  for (const LocalCall& call : begun) fetch(now, call);
  calls_.complete_ready(now);
  calls_.begin_waiting(now);
}

void Learner::note_gone(Time now, std::uint64_t number, Rank shard, Rank from) {
  Operation* const operation = core_.operations.find_open(number);
  if (!members_.changes.learning() || operation == nullptr || shard >= operation->places()) return;
  const Rank owner = operation->gather().owner(shard);
  Inbox& inbox = operation->exchange().gather().inbox(owner);
  if (has(inbox.refused_by(), from)) return;
  inbox.note_refusal(from);
  const RankMask others = members_.holders(*operation, operation->rank_at(owner)) & ~inbox.refused_by();
  if (others != 0) return requests_.ask(now, *operation);
  if (!inbox.complete()) members_.changes.give_up_replay();
}

void Learner::rejoin(Time now, const View& view) {
  const std::uint64_t learned = members_.learned_end();
  std::vector<LocalCall> begun = drop(now, learned, ~std::uint64_t{0});
  note_progress();
  for_each_rank(members_.membership.others(), [&](Rank rank) { core_.peers[rank].left = false; });
  core_.repairs.clear();  // asked for in another view, of what may not be held any more
  for (const auto& [_, operation] : core_.operations.open()) {
    members_.apply_fates(now, *operation);
    requests_.schedule(now, *operation);
  }
  for (LocalCall& call : begun) {
    const bool again = call.number >= view.cut;
    if (again && !call.intact) call.contributes = false;
    if (again && !call.contributes) call.weights = Weights(0);
    fetch(now, call);
  }
  members_.learn_below(0);
  fail_lost_exact(now);
  for (const LocalCall& call : begun) calls_.check_shard(now, call.number);
}

std::optional<std::uint64_t> Learner::behind() const {
  if (!members_.changes.learning()) return std::nullopt;
  const std::uint64_t completed = core_.progress.completed();
  return std::max(members_.membership.completed_by_all(), completed) - completed;
}

}  // namespace optireduce
