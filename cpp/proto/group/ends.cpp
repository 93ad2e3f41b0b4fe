// The part of Group that ends operations in order, learns from them, and keeps what others may still ask for.
#include <algorithm>

#include "group/group.h"

namespace optireduce {
namespace {

/// Finished operations that latecomers are answered for, at most: a rank that never says what it has
/// completed must not make memory grow for ever.
constexpr std::uint64_t kMostLogged = 4096;

}  // namespace

/// Something happened to an operation: goes on to its next stage, or ends it.
void Group::advance(Time now, Operation& operation) {
  if (!config_.rows.empty() && operation.setup().scope != Scope::All) return advance_grid(now, operation);
  if (operation.number() == progress_.completed()) complete_ready(now);
}

/// Row, column and row again: each stage begins when the one before has what it needs.
void Group::advance_grid(Time now, Operation& operation) {
  const std::uint64_t number = operation.number();
  const Scope scope = operation.setup().scope;
  if (!operation.complete()) return;
  if (scope == Scope::Row) {
    Operation* next = operations_.find_open(number, Scope::Column);
    if (next == nullptr || !next->begun()) begin_stage(now, number, Scope::Column, operation);
  } else if (scope == Scope::Column) {
    Operation* next = operations_.find_open(number, Scope::RowResult);
    if (next == nullptr || !next->begun()) begin_stage(now, number, Scope::RowResult, operation);
  } else {
    complete_ready(now);
  }
}

void Group::begin_stage(Time now, std::uint64_t number, Scope scope, Operation& before) {
  Operation& row = *operations_.find_open(number, Scope::Row);
  const Shard shard = row.scatter().shard();
  Descriptor descriptor = row.descriptor();
  LocalCall local = row.call();
  if (scope == Scope::Column) {
    descriptor.elements = static_cast<std::uint32_t>(shard.bytes / size_of(descriptor.dtype));
    local.data += shard.begin;
    local.weight = static_cast<std::uint32_t>(before.scatter().contributed_weight());
  } else {
    local.weight = 1;
  }
  Operation* operation = operations_.find_open(number, scope);
  if (operation == nullptr) operation = &make_operation(now, number, scope, descriptor, 0);
  operation->begin(now, local, residuals_);
  if (local.weight == 0) {
    for (Rank place = 0; place < operation->places(); ++place) {
      const Rank to = operation->rank_at(place);
      if (to != config_.rank)
        controls_.push_back({.type = PacketType::Abstain, .to = to, .operation = number, .scope = scope});
    }
  }
  schedule_requests(now, *operation);
  advance(now, *operation);
}

/// Operations end in the order of their numbers: the digest of what is complete says nothing about what ran
/// ahead.
void Group::complete_ready(Time now) {
  for (;;) {
    while (outcomes_.failed.erase(progress_.completed()) != 0) progress_.complete(~std::uint64_t{0});
    membership_.advanced(config_.rank, progress_.completed());
    const std::uint64_t number = progress_.completed();
    const bool grid = !config_.rows.empty();
    Operation* operation = grid ? operations_.find_open(number, Scope::RowResult) : nullptr;
    if (operation == nullptr) operation = operations_.find_open(number, Scope::All);
    if (operation == nullptr || !operation->complete()) return;
    if (config_.elastic() && (changes_.away() || changes_.is_lost())) return;
    finish(now, *operation);
  }
}

void Group::finish(Time now, Operation& operation) {
  const std::uint64_t number = operation.number();
  const std::uint64_t digest = operation.digest();
  operation.finish(residuals_);
  Operation* const row = operations_.find_open(number, Scope::Row);
  if (row != nullptr && row->call().grid_wide.values != nullptr) {
    Bucket whole(row->descriptor().dtype, row->bytes(), 1);
    whole.begin(row->call().data, row->call().grid_wide);
    whole.widen_all();
  }
  Report report = report_of(now, operation);
  learn(now, operation);
  for (auto& [key, each] : operations_.open()) {
    if (key.first != number) continue;
    for (Rank rank = 0; rank < config_.size; ++rank) {
      const Rank place = each->place_of(rank);
      if (place == kNoPlace || rank == config_.rank || !each->reduces()) continue;
      if (const auto last = each->scatter().outbox(place).last_sent_at()) peers_[rank].window.on_go_on(*last);
    }
    each->finish(residuals_);
    // A rank that is removed and returns fetches everything of an operation anew.
    if (!each->call().stays_readable)
      each->detach({.own_whole = config_.elastic(), .others = false, .orphans = orphans_of(*each)});
  }
  operations_.move_to_log(number);
  progress_.complete(digest);
  note_completed(now, std::move(report));
}

/// The bookkeeping of every end, good or bad.
void Group::note_completed(Time now, Report report) {
  timers_.stop_all(report.operation);
  ++stats_.operations;
  stats_.bucket_bytes += report.bytes;
  stats_.excluded_bytes += report.residual_bytes;
  stats_.carried_bytes += report.carried_bytes;
  stats_.dropped_bytes += report.dropped_bytes;
  stats_.void_bytes += report.void_bytes;
  stats_.lost_bytes += report.lost_contribution_bytes + report.lost_decision_bytes;
  outcomes_.completions.push_back(std::move(report));
  membership_.advanced(config_.rank, progress_.completed());
  for (Rank rank = 0; rank < config_.size; ++rank) {
    if (peers_[rank].left) multicast_.health.on_overrun(rank, progress_.next_call());
  }
  if (const auto unreached = multicast_.health.end_operation(); unreached && multicast_.on) {
    multicast_.on = false;
    ++stats_.multicast_fallbacks;
    outcomes_.events.push_back(
        {MembershipEvent::Kind::Unreached, *unreached, membership_.view().number, progress_.next_call()});
  }
  timers_.set_earlier({TimerKind::Status}, now + config_.path.ack_delay);
  clock_.oldest = residuals_.oldest(progress_.step_of(progress_.completed()));
  forget_old();
  note_owing(now);
  begin_waiting(now);
}

/// What is usual is learned from buckets that come again.
void Group::learn(Time now, const Operation& operation) {
  const double bytes = static_cast<double>(std::max<std::size_t>(operation.bytes(), 1));
  incast_.learn(static_cast<double>(operation.repaired_bytes) / bytes);
  if (!operation.reduces() || operation.half_begun_at() == Time::never()) return;
  if (operation.setup().best_effort && operation.descriptor().bounded)
    return learn_best_effort(now, operation);
  if (operation.setup().stream == 0) return;
  const Time from = operation.half_begun_at();
  const ReduceScatter& scatter = operation.scatter();
  const std::uint32_t packets = scatter.shard().packets();
  if (packets == 0) return;
  Collected collected{.stream = operation.setup().stream,
                      .step = progress_.step_of(operation.number()),
                      .ended = now,
                      .bytes = operation.bytes(),
                      .arrivals = {}};
  for (Rank place = 0; place < operation.places(); ++place) {
    const Time began = operation.begun_at(place);
    if (operation.rank_at(place) == config_.rank) {  // there at once, and known also after the deadline
      if (began != Time::never()) collected.arrivals.push_back({began - from, began - from, 0});
      continue;
    }
    const bool complete = scatter.complete_at(place) != Time::never();
    const Time ended = complete ? scatter.complete_at(place) : std::min(now, operation.closed_at());
    const double missing =
        complete ? 0.0 : static_cast<double>(scatter.excluded_packets(place)) / static_cast<double>(packets);
    collected.arrivals.push_back(
        {began == Time::never() ? ended - from : began - from, ended - from, missing});
  }
  times_.learn(collected);
}

void Group::learn_best_effort(Time now, const Operation& operation) {
  const Time began = operation.call().called_at;
  Time last = began;
  std::uint64_t owed = 0, missing = 0;
  for (Rank place = 0; place < operation.places(); ++place) {
    if (operation.rank_at(place) == config_.rank || operation.begun_at(place) == Time::never()) continue;
    last = std::max(last, operation.begun_at(place));
    owed += operation.scatter().shard().packets() + operation.gather().shard(place).packets();
    missing +=
        operation.scatter().excluded_packets(place) + operation.gather().inbox(place).missing_packets();
  }
  const bool in_time = operation.closed_by() == ClosedBy::Complete && missing == 0;
  const Time end = in_time ? now : operation.progress_at;
  const Duration skew = std::min(last - began, end - began);
  const double bytes = static_cast<double>(std::max<std::size_t>(operation.bytes(), 1));
  best_effort_.learn(
      {.bytes = operation.bytes() + operation.limits.bytes_ahead,
       .elapsed = end - began - skew,
       .arrived_share = owed == 0 ? 1.0 : 1.0 - static_cast<double>(missing) / static_cast<double>(owed),
       .skew = skew,
       .late_share = static_cast<double>(clock_.late_bytes) / bytes});
  clock_.late_bytes = 0;
}

std::uint64_t Group::least_completed() const {
  std::uint64_t least = progress_.completed();
  for (Rank rank = 0; rank < config_.size; ++rank) {
    if (!peers_[rank].linked || peers_[rank].left) continue;
    if (config_.elastic() && !has(membership_.view().members & ~membership_.lost(), rank)) continue;
    least = std::min(least, peers_[rank].completed);
  }
  return least;
}

/// Forgets what everybody has. Ranks that were removed may return: what they lack is kept while there is
/// room.
void Group::forget_old() {
  std::uint64_t least = least_completed();
  if (config_.elastic()) {
    for (Rank rank = 0; rank < config_.size; ++rank) {
      const bool out = !has(membership_.view().members, rank) && !peers_[rank].left && rank != config_.rank;
      if (out) least = std::min(least, peers_[rank].completed);
    }
    if (changes_.changing()) return;
  }
  std::size_t bytes = 0;
  for (auto entry = operations_.log().rbegin(); entry != operations_.log().rend(); ++entry) {
    bytes += entry->second->engine_bytes();
    if (bytes > config_.log_bytes)
      least = std::max(least, std::min(entry->first.first + 1, least_completed()));
  }
  if (progress_.completed() > kMostLogged) least = std::max(least, progress_.completed() - kMostLogged);
  operations_.forget_below(least);
  progress_.forget_below(least);
  if (config_.elastic()) membership_.forget_before(least);
}

/// Owners of an operation that no longer serve it.
std::vector<Rank> Group::orphans_of(const Operation& operation) const {
  std::vector<Rank> orphans;
  for (Rank rank : operation.setup().members) {
    if (config_.elastic() && !membership_.serves(rank, operation.number())) orphans.push_back(rank);
  }
  return orphans;
}

void Group::release(Time now) {
  static_cast<void>(now);
  const std::uint64_t least = least_completed();
  std::size_t bytes = 0;
  for (auto entry = operations_.log().rbegin(); entry != operations_.log().rend(); ++entry) {
    Operation& operation = *entry->second;
    const bool needed = operation.number() >= least;
    if (operation.attached())
      operation.detach(
          {.own_whole = config_.elastic(),
           .others = membership_.must_keep(operation.number()) || (needed && bytes < config_.log_bytes),
           .orphans = orphans_of(operation)});
    bytes += operation.engine_bytes();
  }
}

}  // namespace optireduce
