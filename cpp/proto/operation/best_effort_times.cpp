#include "operation/best_effort_times.h"

#include <algorithm>
#include <cmath>

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

}  // namespace

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

}  // namespace optireduce
