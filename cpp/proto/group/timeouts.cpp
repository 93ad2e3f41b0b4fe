// The part of Group that acts when time has passed: closes shards, asks for what is missing, answers, and
// looks for peers that do not.
#include <algorithm>

#include "group/group.h"
#include "operation/deadline.h"

namespace optireduce {
namespace {

constexpr Duration kLeastStuck = Duration::millis(50);
/// Best effort: between the end of sending and the hard limit.
constexpr std::int64_t kMarginDivisor = 20;

}  // namespace

void Group::handle_timeout(Time now) {
  while (const std::optional<TimerKey> timer = timers_.take_due(now)) fire(now, *timer);
  follow_views(now);
}

void Group::fire(Time now, const TimerKey& timer) {
  switch (timer.kind) {
    case TimerKind::Shard:
      return check_shard(now, timer.operation);
    case TimerKind::Request:
      for (const Scope scope : {Scope::All, Scope::Row, Scope::Column, Scope::RowResult}) {
        if (Operation* operation = operations_.find_open(timer.operation, scope))
          request_missing(now, *operation);
      }
      return;
    case TimerKind::Fail:
      return check_timeout(now, timer.operation);
    case TimerKind::Answer:
      return answer_peers(now);
    case TimerKind::Stuck:
      return check_stuck_peers(now);
    case TimerKind::Status:
      return send_status(now);
    case TimerKind::View:
      clock_.viewed_at = now;
      note_owing(now);
      changes_.handle_timeout(now);
      return set_view_timer(now);
    case TimerKind::Quorum:
      return check_quorum(now);
  }
}

/// A rank that waits for decisions only cannot know whose contribution their owners lack: it hears the
/// owners' verdict before its own.
void Group::check_timeout(Time now, std::uint64_t number) {
  if (number < progress_.completed()) return;
  const Operation* const operation = operations_.find_open(number);
  if (operation != nullptr && operation->begun() && !operation->waits_for_contributions()) {
    const Time fails_at = operation->call().fails_at + config_.path.repair_max;
    if (now < fails_at) return timers_.set({TimerKind::Fail, number}, fails_at);
  }
  fail_late(now, number);
}

// ---- Deadlines

void Group::check_shard(Time now, std::uint64_t number) {
  Operation* const operation = operations_.find_open(number);
  if (operation == nullptr || !operation->reduces() || !operation->descriptor().bounded) return;
  if (operation->setup().best_effort) return check_best_effort(now, *operation);
  if (operation->scatter().undecided_packets() == 0 || number >= changes_.reach_end()) return;
  ShardState state{.half_begun_at = operation->half_begun_at(),
                   .deadline = times_.deadline(operation->setup().stream),
                   .hears_quorum = hears_quorum(now, *operation)};
  for (Rank place = 0; place < operation->places(); ++place) {
    const Rank rank = operation->rank_at(place);
    if (!operation->scatter().lacks(place)) continue;
    const std::uint8_t oldest = rank == config_.rank ? clock_.oldest : peers_[rank].oldest;
    state.oldest_missing = std::max(state.oldest_missing, oldest);
  }
  const Act act = decide(now, state);
  if (!act.close) return timers_.set({TimerKind::Shard, number}, act.ask_again);
  progress_.touch(number);
  operation->close(now, ClosedBy::Deadline);
  advance(now, *operation);
}

// ---- Best effort: the receiver's own deadline, and the only place that knows of it

void Group::begin_best_effort(Time now, Operation& operation) {
  if (!operation.descriptor().bounded || !best_effort_.warmed_up()) return;
  BestEffortLimits& limits = operation.limits;
  for (const auto& [_, older] : operations_.open()) {
    if (older->number() < operation.number()) limits.bytes_ahead += older->bytes();
  }
  const std::size_t bytes = operation.bytes() + limits.bytes_ahead;
  limits.hard = best_effort_.bound(bytes) + best_effort_.skew();
  limits.drain = std::min(best_effort_.undisturbed(operation.bytes()), *limits.hard) / 2;
  limits.margin = *limits.hard / kMarginDivisor;
  limits.early_wait =
      Duration::from_seconds(best_effort_.early(bytes).seconds() * best_effort_.early_fraction());
  check_best_effort(now, operation);
}

/// Ends it at tB, or when waiting any longer does not pay: nearly everything was sent and x * tC has passed
/// without news. Contributions are given up in time for the decisions to get everywhere.
void Group::check_best_effort(Time now, Operation& operation) {
  const BestEffortLimits& limits = operation.limits;
  if (!limits.hard || !operation.begun()) return advance(now, operation);
  const std::uint64_t number = operation.number();
  const Time hard = operation.call().called_at + *limits.hard;
  if (hard <= now) return end_best_effort(now, operation);
  Time next = hard;
  const std::uint32_t undecided = operation.scatter().undecided_packets();
  if (undecided != 0) {
    const std::uint32_t packets = operation.scatter().shard().packets();
    const Time sent_by = hard - limits.margin;
    const Time due = std::max(operation.call().called_at, sent_by - limits.drain * undecided / packets);
    const Time early =
        operation.scatter().seen_last() ? operation.progress_at + limits.early_wait : Time::never();
    if (early <= now) {
      operation.close(now, ClosedBy::Early);
    } else if (due <= now) {
      const double left = static_cast<double>(std::max<std::int64_t>((sent_by - now).ns, 0));
      const double allowed = packets * left / static_cast<double>(std::max<std::int64_t>(limits.drain.ns, 1));
      operation.close(
          now, ClosedBy::Deadline,
          static_cast<std::uint32_t>(std::clamp(allowed, 0.0, static_cast<double>(undecided - 1))));
    }
    next = std::min({next, std::max(due, now + Duration::micros(50)), early});
  } else if (operation.gather().all_sent(operation.scatter().decided())) {
    bool all_seen = true;
    for (Rank owner = 0; owner < operation.places(); ++owner) {
      const Inbox& inbox = operation.gather().inbox(owner);
      all_seen =
          all_seen && (operation.rank_at(owner) == config_.rank || inbox.complete() || inbox.seen_last());
    }
    const Time early = all_seen ? operation.progress_at + limits.early_wait : Time::never();
    if (early <= now) return end_best_effort(now, operation);
    next = std::min(next, early);
  }
  timers_.set({TimerKind::Shard, number}, std::max(next, now + Duration::micros(1)));
  advance(now, operation);
}

/// What is missing is zero and stays so. Our own decisions are still sent.
void Group::end_best_effort(Time now, Operation& operation) {
  if (operation.number() != progress_.completed()) {  // ends in order
    timers_.set({TimerKind::Shard, operation.number()}, now + Duration::micros(100));
    return;
  }
  operation.close(now, ClosedBy::Deadline);
  if (!operation.gather().all_sent(operation.scatter().decided())) {
    const Time give_up = operation.call().called_at + *operation.limits.hard * 2;
    if (now < give_up)
      return timers_.set({TimerKind::Shard, operation.number()}, now + Duration::micros(200));
  }
  operation.zero_missing();
  finish(now, operation);
  complete_ready(now);
}

// ---- Requests

void Group::schedule_requests(Time now, Operation& operation) {
  timers_.set_earlier({TimerKind::Request, operation.number()}, now + config_.path.repair_min);
}

void Group::request_missing(Time now, Operation& operation) {
  // The papers' transport repairs nothing once it has deadlines.
  const bool limited = operation.begun() ? operation.limits.hard.has_value() : best_effort_.warmed_up();
  if (operation.setup().best_effort && operation.descriptor().bounded && limited) return;
  Time next = Time::never();
  for (Rank place = 0; place < operation.places(); ++place) {
    const Rank rank = operation.rank_at(place);
    if (operation.reduces() && operation.setup().reduces && rank != config_.rank &&
        operation.scatter().lacks(place) && !peers_[rank].left)
      next = std::min(next, request(now, operation, place, PacketType::Contribution));
    if (operation.begun() && operation.gathers() && !operation.gather().complete(place))
      next = std::min(next, request(now, operation, place, PacketType::Decision));
  }
  if (next != Time::never()) timers_.set_earlier({TimerKind::Request, operation.number()}, next);
}

/// Asks for one inbox's missing packets if it is time; when to look again.
Time Group::request(Time now, Operation& operation, Rank place, PacketType wanted) {
  const bool contribution = wanted == PacketType::Contribution;
  const Inbox& inbox = contribution ? operation.scatter().inbox(place) : operation.gather().inbox(place);
  const RankMask others = contribution ? 0 : holders(operation, operation.rank_at(place));
  Rank to = operation.rank_at(place);
  if (others != 0) {  // its owner is gone: any holder can tell, and they are asked in turn
    RankMask turn = others;
    for (int skip = inbox.requests_in_vain() % count_of(others); skip > 0; --skip) turn &= turn - 1;
    to = lowest_of(turn);
  }
  if (to == config_.rank) return Time::never();
  const RepairTimers timers = peers_[to].rtt.timers(config_.path.reorder_delay);
  const Time due = inbox.request_due(timers);
  if (due > now) return due;
  controls_.push_back(
      {.type = PacketType::Request,
       .to = to,
       .operation = operation.number(),
       .scope = operation.setup().scope,
       .wanted = wanted,
       .shard = contribution ? operation.scatter().index() : operation.gather().index(place)});
  return now + timers.retry;
}

// ---- Answers

void Group::send_status(Time now) {
  static_cast<void>(now);
  for (Rank rank = 0; rank < config_.size; ++rank) {
    if (peers_[rank].linked && !peers_[rank].left && peers_[rank].told < progress_.completed())
      controls_.push_back({.type = PacketType::Status, .to = rank});
  }
}

void Group::answer_peers(Time now) {
  const bool roomy = pool_.bytes_in_use() < config_.early_bytes / 2;
  Time next = Time::never();
  for (Rank rank = 0; rank < config_.size; ++rank) {
    Peer& peer = peers_[rank];
    const bool go_on = peer.go_on_due <= now;
    if (go_on || peer.answer_due <= now) {
      const std::uint8_t flags = go_on && roomy ? kFlagGoOn : std::uint8_t{0};
      controls_.push_back({.type = PacketType::Status, .to = rank, .flags = flags});
      peer.answer_due = Time::never();
      if (go_on) peer.go_on_due = Time::never();
    }
    next = std::min({next, peer.answer_due, peer.go_on_due});
  }
  timers_.set({TimerKind::Answer}, next);
}

/// A peer that answers nothing while we could send on may have missed what asked for an answer: it is asked
/// again. One that does not answer that either has lost everything, or is gone.
void Group::check_stuck_peers(Time now) {
  Time next = Time::never();
  for (Rank rank = 0; rank < config_.size; ++rank) {
    Peer& peer = peers_[rank];
    if (peer.stuck_since == Time::never()) continue;
    const Time asks_at = peer.stuck_since + peer.rtt.repair_timeout();
    const Time gives_up_at = peer.stuck_since + std::max(kLeastStuck, peer.rtt.repair_timeout() * 4);
    if (gives_up_at <= now) {
      peer.window.on_silence(now);
      peer.stuck_since = Time::never();
      peer.silent = true;
    } else if (asks_at <= now && peer.pinged_at < peer.stuck_since) {
      peer.pinged_at = now;
      controls_.push_back({.type = PacketType::Ping, .to = rank});
    }
    if (peer.stuck_since != Time::never()) next = std::min(next, asks_at > now ? asks_at : gives_up_at);
  }
  timers_.set({TimerKind::Stuck}, next);
}

void Group::ping_silent_peers() {
  for (Rank rank = 0; rank < config_.size; ++rank) {
    if (rank != config_.rank && !peers_[rank].heard)
      controls_.push_back({.type = PacketType::Ping, .to = rank});
  }
}

void Group::ping_unfinished_peers() {
  for (Rank rank = 0; rank < config_.size; ++rank) {
    if (peers_[rank].linked && !peers_[rank].left && peers_[rank].completed < progress_.completed())
      controls_.push_back({.type = PacketType::Ping, .to = rank});
  }
}

}  // namespace optireduce
