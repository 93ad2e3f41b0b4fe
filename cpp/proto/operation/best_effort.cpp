#include "operation/best_effort.h"

#include <algorithm>

namespace optireduce {
namespace {

using Next = BestEffortVerdict::Next;

bool is_limited(const Operation& operation) {
  return operation.setup().best_effort && operation.descriptor().bounded;
}

/// Closes our shard if it is time; when to look again.
Time check_contributions(Time now, Operation& operation, Time hard) {
  const BestEffortLimits& limits = operation.limits;
  const ReduceScatter& scatter = operation.scatter();
  const std::uint32_t undecided = scatter.undecided_packets(), packets = scatter.shard().packets();
  const Time sent_by = hard - limits.margin;
  const Time due = std::max(operation.call().called_at, sent_by - limits.drain * undecided / packets);
  const Time early = scatter.seen_last() ? operation.progress_at + limits.early_wait : Time::never();
  if (early <= now) {
    operation.close(now, ClosedBy::Early);
  } else if (due <= now) {
    const double left = static_cast<double>(std::max<std::int64_t>((sent_by - now).ns, 0));
    const double allowed = packets * left / static_cast<double>(std::max<std::int64_t>(limits.drain.ns, 1));
    operation.close(now, ClosedBy::Deadline,
                    static_cast<std::uint32_t>(std::clamp(allowed, 0.0, static_cast<double>(undecided - 1))));
  }
  return std::min(std::max(due, now + Duration::micros(50)), early);
}

/// When waiting for decisions stops to pay.
Time decisions_due(const Operation& operation) {
  for (Rank owner = 0; owner < operation.places(); ++owner) {
    const Inbox& inbox = operation.gather().inbox(owner);
    const bool ours = operation.rank_at(owner) == operation.setup().rank;
    if (!ours && !inbox.complete() && !inbox.seen_last()) return Time::never();
  }
  return operation.progress_at + operation.limits.early_wait;
}

}  // namespace

bool BestEffort::begin(Operation& operation, std::size_t bytes_ahead) const {
  if (!is_limited(operation) || !times_.warmed_up()) return false;
  constexpr std::int64_t kMarginDivisor = 20;
  BestEffortLimits& limits = operation.limits;
  limits.bytes_ahead = bytes_ahead;
  const std::size_t bytes = operation.bytes() + bytes_ahead;
  limits.hard = times_.bound(bytes) + times_.skew();
  limits.drain = std::min(times_.undisturbed(operation.bytes()), *limits.hard) / 2;
  limits.margin = *limits.hard / kMarginDivisor;
  limits.early_wait = Duration::from_seconds(times_.early(bytes).seconds() * times_.early_fraction());
  return true;
}

BestEffortVerdict BestEffort::check(Time now, Operation& operation, bool in_turn) const {
  if (!operation.limits.hard || !operation.begun()) return {};
  const Time hard = operation.call().called_at + *operation.limits.hard;
  if (hard <= now) return end(now, operation, in_turn);
  Time next = hard;
  if (operation.scatter().undecided_packets() != 0) {
    next = std::min(next, check_contributions(now, operation, hard));
  } else if (operation.gather().all_sent(operation.scatter().decided())) {
    const Time due = decisions_due(operation);
    if (due <= now) return end(now, operation, in_turn);
    next = std::min(next, due);
  }
  return {Next::GoOn, std::max(next, now + Duration::micros(1))};
}

/// What is missing is zero and stays so. Our own decisions are still sent.
BestEffortVerdict BestEffort::end(Time now, Operation& operation, bool in_turn) const {
  if (!in_turn) return {Next::Wait, now + Duration::micros(100)};
  operation.close(now, ClosedBy::Deadline);
  const Time give_up = operation.call().called_at + *operation.limits.hard * 2;
  if (now < give_up && !operation.gather().all_sent(operation.scatter().decided()))
    return {Next::Wait, now + Duration::micros(200)};
  operation.zero_missing();
  return {Next::Finish};
}

bool BestEffort::repairs(const Operation& operation) const {
  const bool limited = operation.begun() ? operation.limits.hard.has_value() : times_.warmed_up();
  return !is_limited(operation) || !limited;
}

void BestEffort::learn(Time now, const Operation& operation) {
  const Time began = operation.call().called_at;
  Time last = began;
  std::uint64_t owed = 0, missing = 0;
  for (Rank place = 0; place < operation.places(); ++place) {
    if (operation.rank_at(place) == operation.setup().rank || operation.begun_at(place) == Time::never())
      continue;
    last = std::max(last, operation.begun_at(place));
    owed += operation.scatter().shard().packets() + operation.gather().shard(place).packets();
    missing +=
        operation.scatter().excluded_packets(place) + operation.gather().inbox(place).missing_packets();
  }
  const bool in_time = operation.closed_by() == ClosedBy::Complete && missing == 0;
  const Time end = in_time ? now : operation.progress_at;
  const Duration skew = std::min(last - began, end - began);
  const double bytes = static_cast<double>(std::max<std::size_t>(operation.bytes(), 1));
  times_.learn(
      {.bytes = operation.bytes() + operation.limits.bytes_ahead,
       .elapsed = end - began - skew,
       .arrived_share = owed == 0 ? 1.0 : 1.0 - static_cast<double>(missing) / static_cast<double>(owed),
       .skew = skew,
       .late_share = static_cast<double>(std::exchange(late_bytes_, 0)) / bytes});
}

void BestEffort::describe(std::size_t bytes, PolicySnapshot& snapshot) const {
  snapshot.deadline = times_.bound(bytes);
  snapshot.early = times_.early(bytes);
  snapshot.early_fraction = times_.early_fraction();
}

}  // namespace optireduce
