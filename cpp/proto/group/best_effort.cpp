#include "group/best_effort.h"

#include <algorithm>
#include <utility>

namespace optireduce {

Next BestEffort::begin(Time now, Operation& operation) {
  if (!operation.setup().best_effort || !operation.descriptor().bounded || !times_.warmed_up())
    return Next::Wait;
  BestEffortLimits& limits = operation.limits;
  for (const auto& [_, older] : core_.operations.open()) {
    if (older->number() < operation.number()) limits.bytes_ahead += older->bytes();
  }
  constexpr std::int64_t kMarginDivisor = 20;
  const std::size_t bytes = operation.bytes() + limits.bytes_ahead;
  limits.hard = times_.bound(bytes) + times_.skew();
  limits.drain = std::min(times_.undisturbed(operation.bytes()), *limits.hard) / 2;
  limits.margin = *limits.hard / kMarginDivisor;
  limits.early_wait = Duration::from_seconds(times_.early(bytes).seconds() * times_.early_fraction());
  return check(now, operation);
}

Next BestEffort::check(Time now, Operation& operation) {
  if (!operation.limits.hard || !operation.begun()) return Next::GoOn;
  const Time hard = operation.call().called_at + *operation.limits.hard;
  if (hard <= now) return end(now, operation);
  Time next = hard;
  if (operation.scatter().undecided_packets() != 0) {
    next = std::min(next, check_contributions(now, operation, hard));
  } else if (operation.gather().all_sent(operation.scatter().decided())) {
    const Time due = decisions_due(operation);
    if (due <= now) return end(now, operation);
    next = std::min(next, due);
  }
  return wait_until(operation, std::max(next, now + Duration::micros(1)), Next::GoOn);
}

Time BestEffort::check_contributions(Time now, Operation& operation, Time hard) {
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

Time BestEffort::decisions_due(const Operation& operation) const {
  for (Rank owner = 0; owner < operation.places(); ++owner) {
    const Inbox& inbox = operation.gather().inbox(owner);
    const bool ours = operation.rank_at(owner) == core_.config.rank;
    if (!ours && !inbox.complete() && !inbox.seen_last()) return Time::never();
  }
  return operation.progress_at + operation.limits.early_wait;
}

/// What is missing is zero and stays so. Our own decisions are still sent.
Next BestEffort::end(Time now, Operation& operation) {
  const bool in_turn = operation.number() == core_.progress.completed();
  if (!in_turn) return wait_until(operation, now + Duration::micros(100));
  operation.close(now, ClosedBy::Deadline);
  const Time give_up = operation.call().called_at + *operation.limits.hard * 2;
  if (now < give_up && !operation.gather().all_sent(operation.scatter().decided()))
    return wait_until(operation, now + Duration::micros(200));
  operation.zero_missing();
  return Next::Finish;
}

Next BestEffort::wait_until(Operation& operation, Time when, Next next) {
  core_.timers.set({TimerKind::Shard, operation.number()}, when);
  return next;
}

bool BestEffort::repairs(const Operation& operation) const {
  const bool limited = operation.begun() ? operation.limits.hard.has_value() : times_.warmed_up();
  return !operation.setup().best_effort || !operation.descriptor().bounded || !limited;
}

void BestEffort::note_late(const ReceivedRun& run) {
  if ((run.header.flags & kFlagResent) == 0) late_bytes_ += run.payload_bytes();
}

void BestEffort::learn(Time now, const Operation& operation) {
  const Time began = operation.call().called_at;
  Time last = began;
  std::uint64_t owed = 0, missing = 0;
  for (Rank place = 0; place < operation.places(); ++place) {
    if (operation.rank_at(place) == core_.config.rank || operation.begun_at(place) == Time::never()) continue;
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
  if (core_.config.delivery != Delivery::BestEffort) return;
  snapshot.deadline = times_.bound(bytes);
  snapshot.early = times_.early(bytes);
  snapshot.early_fraction = times_.early_fraction();
}

}  // namespace optireduce
