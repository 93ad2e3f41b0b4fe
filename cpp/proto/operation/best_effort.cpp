#include "operation/best_effort.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace optireduce {
namespace {

constexpr double kAverageWeight = 1.0 / 8;
/// An operation of which a quarter came in its time is taken for four times slower, not for more.
constexpr double kLeastArrived = 0.25;
constexpr double kNoticeable = 1e-3;
constexpr double kUndisturbedShare = 0.25;
constexpr double kMostDisturbed = 1.125;
constexpr double kFractionLeast = 0.05, kFractionGrowth = 1.5, kFractionDecay = 0.97;

Duration times(double seconds_per_byte, std::size_t bytes) {
  return Duration::from_seconds(seconds_per_byte * static_cast<double>(bytes));
}

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
    if (!inbox.complete() && !inbox.seen_last()) return Time::never();
  }
  return operation.progress_at + operation.limits.early_wait;
}

}  // namespace

// ---- The times

void BestEffortTimes::learn(const Outcome& outcome) {
  const double bytes = static_cast<double>(std::max<std::size_t>(outcome.bytes, 1));
  const double seconds = outcome.elapsed.seconds() / std::max(outcome.arrived_share, kLeastArrived);
  const Sample sample{std::max(seconds, 1e-9) / bytes, bytes, outcome.skew.seconds()};
  if (samples_.size() < kSamples) samples_.emplace_back();
  samples_[learned_ % kSamples] = sample;
  const double most = usual() * options_.most;  // beyond it nobody would have waited
  const double weight = learned_ == 0 ? 1 : kAverageWeight;
  average_ += (std::min(sample.seconds_per_byte, most) - average_) * weight;
  ++learned_;
  if (outcome.late_share > kNoticeable) {
    early_fraction_ = std::min(1.0, early_fraction_ * kFractionGrowth);
  } else if (outcome.late_share == 0) {
    early_fraction_ = std::max(kFractionLeast, early_fraction_ * kFractionDecay);
  }
}

double BestEffortTimes::usual() const {
  return std::min(percentile(0.5), percentile(kUndisturbedShare) * kMostDisturbed);
}

double BestEffortTimes::percentile(double share) const {
  std::vector<Sample> sorted = samples_;
  std::sort(sorted.begin(), sorted.end(),
            [](const Sample& a, const Sample& b) { return a.seconds_per_byte < b.seconds_per_byte; });
  double total = 0;
  for (const Sample& sample : sorted) total += sample.bytes;
  double below = 0;
  for (const Sample& sample : sorted) {
    below += sample.bytes;
    if (below >= total * share) return sample.seconds_per_byte;
  }
  return 0;
}

Duration BestEffortTimes::bound(std::size_t bytes) const {
  const double middle = usual();
  const double bound =
      std::clamp(percentile(options_.percentile / 100), middle * options_.least, middle * options_.most);
  return times(bound, bytes);
}

Duration BestEffortTimes::skew() const {
  std::vector<double> sorted;
  for (const Sample& sample : samples_) sorted.push_back(sample.skew);
  if (sorted.empty()) return {};
  std::sort(sorted.begin(), sorted.end());
  const double rank = static_cast<double>(sorted.size() - 1) * options_.percentile / 100;
  return Duration::from_seconds(sorted[static_cast<std::size_t>(std::ceil(rank))]);
}

Duration BestEffortTimes::early(std::size_t bytes) const {
  return times(average_, bytes);
}

Duration BestEffortTimes::undisturbed(std::size_t bytes) const {
  return times(percentile(kUndisturbedShare), bytes);
}

// ---- The judge

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
  operation.exchange().zero_missing();
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
    if (place == operation.setup().me || operation.begun_at(place) == Time::never()) continue;
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
