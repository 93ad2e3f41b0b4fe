// The part of Calls that ends operations in order, learns from them, and keeps what others may still ask for.
#include <algorithm>

#include "group/calls.h"
#include "operation/ledger.h"

namespace optireduce {

void Calls::advance(Time now, Operation& operation) {
  if (operation.number() == core_.progress.completed()) complete_ready(now);
}

void Calls::check_shard(Time now, std::uint64_t number) {
  Operation* const operation = core_.operations.find_open(number);
  if (operation == nullptr || !operation->descriptor().bounded) return;
  if (operation->setup().best_effort) return check_best_effort(now, *operation);
  if (number >= members_.reach_end()) return;
  const Act relays = check_relays(now, *operation), own = check_own(now, *operation);
  if (relays.close) operation->close_relays(now);
  core_.timers.set({TimerKind::Shard, number}, std::min(relays.ask_again, own.ask_again));
  if (!own.close) return;
  core_.progress.touch(number);
  operation->close(now, ClosedBy::Deadline);
  advance(now, *operation);
}

Act Calls::check_own(Time now, const Operation& operation) const {
  if (operation.scatter().undecided_packets() == 0) return {};
  const std::uint32_t stream = operation.setup().stream;
  ShardState state{.half_begun_at = operation.half_begun_at(),
                   .deadline = times_.deadline(stream),
                   .hears_quorum = members_.hears_quorum(now, operation)};
  // A relay may wait for its row as long as we would for ours, and then its sum has to come.
  const std::optional<Duration> of_rows = row_times_.deadline(stream);
  if (state.deadline && of_rows) state.deadline = *state.deadline + *of_rows;
  for (Rank place = 0; place < operation.places(); ++place) {
    if (!operation.scatter().lacks(place)) continue;
    for (const Rank rank : operation.setup().contributors(place)) note_oldest(rank, state);
  }
  return decide(now, state);
}

Act Calls::check_relays(Time now, const Operation& operation) const {
  const std::vector<Relay>& relays = operation.exchange().relays();
  const auto lacks = [&](Rank place) {
    return std::ranges::any_of(relays, [place](const Relay& relay) { return relay.sums().lacks(place); });
  };
  ShardState state{.half_begun_at = operation.half_row_begun_at(),
                   .deadline = row_times_.deadline(operation.setup().stream),
                   .hears_quorum = members_.hears_quorum(now, operation)};
  bool open = false;
  for (Rank place = 0; place < operation.places(); ++place) {
    if (!lacks(place)) continue;
    open = true;
    note_oldest(operation.rank_at(place), state);
  }
  return open ? decide(now, state) : Act{};
}

/// Of a rank whose contribution is missing.
void Calls::note_oldest(Rank rank, ShardState& state) const {
  const std::uint8_t oldest = rank == core_.config.rank ? core_.oldest_residual : core_.peers[rank].oldest;
  state.oldest_missing = std::max(state.oldest_missing, oldest);
}

void Calls::check_best_effort(Time now, Operation& operation) {
  using Next = BestEffortVerdict::Next;
  const bool in_turn = operation.number() == core_.progress.completed();
  const BestEffortVerdict verdict = core_.best_effort.check(now, operation, in_turn);
  if (verdict.look_again != Time::never())
    core_.timers.set({TimerKind::Shard, operation.number()}, verdict.look_again);
  if (verdict.next == Next::GoOn) advance(now, operation);
  if (verdict.next != Next::Finish) return;
  finish(now, operation);
  complete_ready(now);
}

/// The digest of what is complete says nothing about what ran ahead.
void Calls::complete_ready(Time now) {
  for (;;) {
    const std::uint64_t number = core_.progress.completed();
    Operation* const operation = core_.operations.find_open(number);
    if (operation == nullptr || !operation->complete() || !members_.may_complete(number)) return;
    finish(now, *operation);
  }
}

void Calls::finish(Time now, Operation& operation) {
  const std::uint64_t number = operation.number();
  const std::uint64_t digest = digest_of(operation);
  operation.finish(core_.residuals);
  Report report = report_of(now, operation);
  learn(now, operation);
  let_go(operation);
  core_.operations.move_to_log(number);
  core_.progress.complete(digest);
  note_completed(now, std::move(report));
}

/// The process's part is over.
void Calls::let_go(Operation& operation) {
  for (Rank place = 0; place < operation.places(); ++place) {
    const Rank rank = operation.rank_at(place);
    if (rank == core_.config.rank) continue;
    if (const auto last = operation.exchange().last_sent_to(place)) core_.peers[rank].window.on_go_on(*last);
  }
  operation.exchange().drop_relays();
  if (operation.call().stays_readable) return;
  // A rank that is removed and returns fetches everything of an operation anew.
  const bool whole = core_.config.elastic();
  const bool others = members_.changes.changing() || is_kept_whole(operation.number());
  operation.exchange().detach(whole, others, members_.orphans_of(operation));
}

/// The bookkeeping of every end, good or bad.
void Calls::note_completed(Time now, Report report) {
  core_.timers.stop_all(report.operation);
  count(report);
  core_.outcomes.add(std::move(report));
  members_.membership.advanced(core_.config.rank, core_.progress.told());
  check_multicast();
  core_.timers.set_earlier({TimerKind::Status}, now + core_.config.path.ack_delay);
  core_.oldest_residual = core_.residuals.oldest(core_.progress.step_of(core_.progress.completed()));
  forget_old();
  members_.look_for_silence(now);
  begin_waiting(now);
}

void Calls::count(const Report& report) {
  Stats& stats = core_.stats;
  ++stats.operations;
  stats.bucket_bytes += report.bytes;
  stats.void_bytes += report.void_bytes;
  stats.lost_bytes += report.lost.contribution_bytes + report.lost.decision_bytes;
  count_own(report);
}

void Calls::count_own(const Report& report) {
  core_.stats.excluded_bytes += report.own.residual;
  core_.stats.carried_bytes += report.own.carried;
  core_.stats.dropped_bytes += report.own.dropped;
}

/// Goes back to unicast where a peer gets hardly anything by multicast.
void Calls::check_multicast() {
  const std::uint64_t next = core_.progress.next_call();
  for (const Peer& peer : core_.peers) {
    if (peer.left) core_.multicast_health.on_overrun(peer.rank, next);
  }
  const std::optional<Rank> unreached = core_.multicast_health.end_operation();
  if (!unreached || !core_.multicast) return;
  core_.multicast = false;
  ++core_.stats.multicast_fallbacks;
  core_.outcomes.add({MembershipEvent::Kind::Unreached, *unreached, members_.view().number, next});
}

Report Calls::report_of(Time now, const Operation& operation) const {
  Report report = ledger_of(operation, now);
  report.view = members_.view().number;
  report.own.oldest_steps = core_.residuals.oldest(core_.progress.step_of(operation.number()));
  report.policy = policy(operation.bytes());
  const std::uint32_t stream = operation.setup().stream;
  if (operation.setup().best_effort) {
    report.policy.deadline = operation.limits.hard.value_or(Duration{});
    report.policy.usual = report.policy.early;
  } else if (operation.descriptor().bounded) {
    report.policy.deadline = times_.deadline(stream).value_or(Duration{});
    report.policy.usual = times_.usual(stream).value_or(Duration{});
  }
  return report;
}

/// What is usual is learned from buckets that come again.
void Calls::learn(Time now, const Operation& operation) {
  if (core_.config.elastic() && !operation.setup().serves()) return;  // replayed: all of it was asked for
  const double bytes = static_cast<double>(std::max<std::size_t>(operation.bytes(), 1));
  core_.incast.learn(static_cast<double>(operation.repaired_bytes) / bytes);
  if (operation.half_begun_at() == Time::never()) return;
  if (operation.setup().best_effort && operation.descriptor().bounded)
    return core_.best_effort.learn(now, operation);
  const std::uint32_t stream = operation.setup().stream;
  if (stream == 0) return;
  const std::uint64_t step = core_.progress.step_of(operation.number());
  if (operation.scatter().shard().packets() != 0)
    times_.learn(now, stream, step, operation.bytes(), arrivals_of(operation, now));
  if (operation.half_row_begun_at() != Time::never())
    row_times_.learn(now, stream, step, operation.bytes(), row_arrivals_of(operation, now));
}

/// The first operation that a rank lacks that was removed and can return: the log reaches back to what it has
/// completed, or to a snapshot that was taken for it. Later than any: there is none.
std::uint64_t Calls::wanted_by_removed() const {
  const Operations::Range log = core_.operations.log();
  const std::uint64_t first = log.empty() ? core_.progress.completed() : log.front().first;
  const std::uint64_t snapshot = core_.operations.oldest_snapshot(first);
  std::uint64_t least = ~std::uint64_t{0};
  for (const Peer& peer : core_.peers) {
    const bool left = peer.left || has(members_.membership.left(), peer.rank);
    const bool out = !members_.view().contains(peer.rank) && !left && peer.rank != core_.config.rank;
    if (out && peer.completed >= first) least = std::min(least, peer.completed);
    if (out || has(members_.membership.lost(), peer.rank)) least = std::min(least, snapshot);
  }
  return least;
}

void Calls::forget_old() {
  if (members_.changes.changing()) return;
  const std::uint64_t all_have = members_.least_completed(), completed = core_.progress.completed();
  std::uint64_t least = std::min(all_have, wanted_by_removed());
  std::size_t bytes = 0;
  const Operations::Range log = core_.operations.log();
  for (auto newest = log.end(); newest != log.begin();) {
    --newest;
    bytes += newest->second->exchange().engine_bytes();
    if (bytes > core_.config.log_bytes) least = std::max(least, std::min(newest->first + 1, all_have));
  }
  if (completed > kMostLogged) least = std::max(least, completed - kMostLogged);
  core_.operations.forget_below(least);
  core_.progress.forget_below(least);
  members_.membership.forget_before(least);
}

/// Others' decisions, too, within half of the log's room: while a rank can return, whoever is removed next
/// must not take its decisions away. Within the rest each keeps its own, which lasts longer.
bool Calls::is_kept_whole(std::uint64_t number) const {
  return number >= wanted_by_removed() && core_.operations.log_bytes() < core_.config.log_bytes / 2;
}

void Calls::release() {
  const std::uint64_t least = members_.least_completed();
  for (const auto& [number, operation] : core_.operations.log()) {
    if (!operation->exchange().bucket().begun()) continue;
    const bool lacked = number >= least && core_.operations.log_bytes() < core_.config.log_bytes;
    const bool counted_on = members_.changes.changing() || members_.membership.must_keep(number);
    const bool others = lacked || counted_on || is_kept_whole(number);
    operation->exchange().detach(core_.config.elastic(), others, members_.orphans_of(*operation));
  }
}

}  // namespace optireduce
