// The part of Endpoint that bounds operations: deadlines, who takes part, what is learned from each.
#include "proto/endpoint.h"

namespace optireduce {
namespace {

/// Between the end of sending and the hard bound: for the way there, and for ranks that started a little
/// earlier than we did.
constexpr std::int64_t kMarginDivisor = 20;
/// Requests that may be in vain before an early end.
constexpr std::int64_t kRepairRounds = 4;
/// A rank that is further behind than this does not wait for all it has missed, but only a part of the usual
/// time.
constexpr std::uint64_t kNearlyInStep = 1;
constexpr std::int64_t kHurry = 8;
/// A part of an operation's time: without any news for longer than that it was not the network's speed.
constexpr std::int64_t kIdleDivisor = 5;
/// Requests that may be in vain when most others are through.
constexpr std::int64_t kGraceRounds = 2;

}  // namespace

// ---- Deadlines

void Endpoint::set_bound(Operation& operation) {
  const std::size_t bytes = operation.bytes() + operation.bytes_ahead + operation.patience_bytes();
  Bound bound;
  // A peer's word alone (of two ranks the slower decides) must not make it wait for ever.
  const Duration patience = operation.deadline() - operation.started();
  const Duration usual =
      Duration::from_seconds(timeouts_.bound(bytes).seconds() * operation.slack()) + timeouts_.skew(bytes);
  bound.hard = std::min(usual + head_start(operation), patience);
  bound.early = timeouts_.early(bytes);
  bound.drain = std::min(timeouts_.undisturbed(operation.bytes()), bound.hard) / 2;
  bound.margin = bound.hard / kMarginDivisor;
  bound.early_wait = Duration::from_seconds(bound.early.seconds() * timeouts_.early_fraction());
  operation.set_bound(bound);
  if (operation.patience_bytes() == 0) hurried_until_ = std::max(hurried_until_, operation.hard_deadline());
  schedule(operation.hard_deadline());
  schedule(operation.contributions_due());
}

/// What came before may be over here and take all its time elsewhere: ranks that are to stay together wait
/// until it is over everywhere. Time that patience added does not count, or it would add up.
Duration Endpoint::head_start(const Operation& operation) const {
  const bool waits = operation.patience_bytes() != 0 && operation.started() < hurried_until_;
  return waits ? hurried_until_ - operation.started() : Duration{};
}

void Endpoint::check_deadlines(Time now, Operation& operation) {
  if (operation.handed_over) return;
  if (!operation.bound()) {
    const Time gives_up_at = give_up_time(operation);
    if (gives_up_at <= now) return fail_late(now, operation);
    schedule(gives_up_at);
    return finish_if_complete(now, operation);
  }
  if (operation.hard_deadline() <= now) {
    operation.close_all_contributions();
    return conclude(now, operation);
  }
  if (operation.contributions_due() <= now) operation.close_due_contributions(now);
  const Duration repair = operation.repairs() ? repair_wait() : Duration{};
  const Time early_due = operation.patience_bytes() == 0 ? operation.early_due(repair) : Time::never();
  if (early_due <= now && operation.close_early()) return conclude(now, operation);
  schedule(operation.hard_deadline());
  schedule(operation.contributions_due());
  schedule(early_due);
  finish_if_complete(now, operation);
}

Duration Endpoint::repair_wait() const {
  Duration longest;
  for (const Peer& peer : peers_) {
    if (peer.present()) longest = std::max(longest, peer.rtt.repair_timeout());
  }
  return longest * kRepairRounds;
}

// ---- Who takes part

/// False if the operation cannot be carried out and has failed. Where too few ranks are left nobody is done
/// without: only what all of them have sent before can complete it.
bool Endpoint::admit_participants(Time now, Operation& operation) {
  const bool does_without = operation.bound() && !lacks_ranks(operation);
  for (Rank rank = 0; rank < config_.size; ++rank) {
    if (rank == config_.rank) continue;
    const Peer& peer = peers_[rank];
    if (peer.left && !operation.bound()) {
      fail_deserted(now, operation, rank);
      return false;
    }
    if (does_without && !peer.present()) operation.exclude(rank);
    if (operation.descriptor().bounded && peer.completed > operation.number()) {
      operation.peer_is_through(rank);
      catch_up(now, operation, peer.completed - operation.number());
    }
    if (operation.abstains() && peer.present())
      controls_.push_back({PacketType::Abstain, rank, operation.number(), {}, {}, 0});
  }
  return true;
}

/// Others were through with this operation before we started it. What we lack is asked for at once; who is
/// far behind takes what comes soon and hurries on, or it would never be in step again: fetching a result
/// takes half as long as making it.
void Endpoint::catch_up(Time now, Operation& operation, std::uint64_t operations_behind) {
  operation.catches_up = true;
  schedule(now);
  if (!operation.bound() || operations_behind <= kNearlyInStep) return;
  operation.hurry(timeouts_.typical(operation.bytes()) / kHurry);
  schedule(operation.hard_deadline());
}

/// When most are through, the rest ends soon after: who took its full time would start the next operation as
/// late as it started this one, and be waited for in vain again and again. Where there is slack the others
/// wait for it, too.
void Endpoint::hurry_after_others(Time now, Operation& operation) {
  if (!operation.bound() || operation.patience_bytes() != 0 || operation.slack() > 1) return;
  Rank through = 0;
  for (Rank rank = 0; rank < config_.size; ++rank) {
    const bool counts = rank != config_.rank && peers_[rank].present();
    if (counts && peers_[rank].completed > operation.number()) ++through;
  }
  if (through * 2 < present_ranks()) return;
  const Duration grace =
      std::max(timeouts_.typical(operation.bytes()) / kHurry, repair_wait() * kGraceRounds / kRepairRounds);
  operation.hurry(now + grace - operation.started());
  schedule(operation.hard_deadline());
}

Rank Endpoint::present_ranks() const {
  Rank present = 1;
  for (Rank rank = 0; rank < config_.size; ++rank) {
    if (rank != config_.rank && peers_[rank].present()) ++present;
  }
  return present;
}

bool Endpoint::may_have_quorum() const {
  const auto left = std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.left; });
  return config_.size - left >= least_ranks();
}

Rank Endpoint::least_ranks() const {
  return config_.bound.min_ranks != 0 ? config_.bound.min_ranks : static_cast<Rank>(config_.size / 2 + 1);
}

bool Endpoint::lacks_ranks(const Operation& operation) const {
  return operation.bound() && present_ranks() < least_ranks();
}

void Endpoint::fail_too_few(Time now, Operation& operation) {
  std::vector<Rank> missing;
  for (Rank rank = 0; rank < config_.size; ++rank) {
    if (rank != config_.rank && !peers_[rank].present()) missing.push_back(rank);
  }
  fail(now, operation, ErrorCode::TooFewRanks,
       "only " + std::to_string(present_ranks()) + " of " + std::to_string(config_.size) +
           " ranks take part, min_ranks is " + std::to_string(least_ranks()),
       std::move(missing));
}

/// Counts, for every rank, operations that ended without a sign of life from it. Those that were under way at
/// the same time count as one: a step has many buckets.
void Endpoint::note_attendance(Time now, const Operation& operation) {
  for (Rank rank = 0; rank < config_.size; ++rank) {
    Peer& peer = peers_[rank];
    if (rank == config_.rank || !peer.present()) continue;
    const bool came = operation.heard(rank) || peer.completed > operation.number();
    if (came) peer.missed = 0;
    const bool same_time = peer.missed != 0 && operation.started() < peer.missed_at;
    if (came || same_time || !operation.takes_attendance()) continue;
    ++peer.missed;
    peer.missed_at = now;
    if (peer.missed < config_.bound.absent_after) continue;
    peer.absent = true;
    peer.stuck_since = peer.answer_due = peer.go_on_due = Time::never();
    ++stats_.absences;
    events_.push_back({MembershipEvent::Kind::Absent, config_.name_of(rank), operation.number()});
  }
}

/// A rank that was absent is waited for again when it is not more than one operation behind: before that its
/// operations are answered, but nobody can use what it contributes.
void Endpoint::welcome_back(Rank rank) {
  Peer& peer = peers_[rank];
  if (!peer.absent || peer.left || peer.completed + 1 < completed_) return;
  peer.absent = false;
  peer.missed = 0;
  events_.push_back({MembershipEvent::Kind::Back, config_.name_of(rank), next_operation_});
}

void Endpoint::ping_absent_peers(Time now) {
  for (Rank rank = 0; rank < config_.size; ++rank) {
    Peer& peer = peers_[rank];
    if (!peer.absent || peer.left || now < peer.pinged_at + config_.ping_interval) continue;
    peer.pinged_at = now;
    controls_.push_back({PacketType::Ping, rank, 0, {}, {}, 0});
  }
}

// ---- What is learned

void Endpoint::learn(Time now, const Operation& operation, const Report& report) {
  if (operation.bound()) note_attendance(now, operation);
  bool waited_in_vain = false;
  for (Rank rank = 0; rank < config_.size; ++rank) {
    const bool awaited = rank != config_.rank && peers_[rank].present();
    waited_in_vain = waited_in_vain || (awaited && !operation.heard(rank));
  }
  const double arrived = operation.arrived_share();
  const double bytes = static_cast<double>(std::max<std::size_t>(report.bytes, 1));
  if (!operation.catches_up) incast_.learn(static_cast<double>(operation.repaired_bytes) / bytes);
  // The time that a missing rank cost, or that answers to a latecomer took, says nothing about the network.
  const bool ended_by_time = operation.closed_by() != ClosedBy::Complete;
  if (operation.catches_up || (ended_by_time && waited_in_vain)) return;
  // Where nothing came for long, more time would not have helped: what is missing will never come. Learning
  // from it would make the bound longer each time, for ever.
  const Operation::Idle idle = operation.longest_idle(now);
  const Duration elapsed = now - operation.started();
  const bool hopeless = ended_by_time && idle.length > std::max(repair_wait(), elapsed / kIdleDivisor);
  const Time end = hopeless ? idle.begin : ended_by_time ? operation.progress_at() : now;
  const Duration skew = std::min(operation.skew(), end - operation.started());
  timeouts_.learn({operation.bytes() + operation.bytes_ahead, end - operation.started() - skew,
                   hopeless ? 1.0 : arrived, skew, static_cast<double>(late_bytes_) / bytes});
  late_bytes_ = 0;
}

}  // namespace optireduce
