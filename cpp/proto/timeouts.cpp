#include "proto/timeouts.h"

#include <algorithm>
#include <cmath>

#include "proto/log_scale.h"

namespace optireduce {
namespace {

constexpr Duration kSlack = Duration::millis(50);
/// Ranks that are later than this are stragglers, however usual it is.
constexpr Duration kMostSkew = Duration::millis(250);
constexpr Duration kSkewStep = Duration::millis(2);
constexpr double kAverageWeight = 1.0 / 8;
/// An operation of which a quarter came in its time is taken for four times slower, not for more.
constexpr double kLeastArrived = 0.25;
constexpr double kNoticeable = 1e-3;
constexpr double kUndisturbedShare = 0.25;
constexpr double kMostDisturbed = 1.125;
constexpr double kFractionLeast = 0.05, kFractionGrowth = 1.5, kFractionDecay = 0.97;

double median_of(const std::vector<std::uint16_t>& codes) {
  std::vector<std::uint16_t> known;
  for (std::uint16_t code : codes) {
    if (code != 0) known.push_back(code);
  }
  if (known.empty()) return 0;
  const auto middle = known.begin() + static_cast<std::ptrdiff_t>(known.size() / 2);
  std::nth_element(known.begin(), middle, known.end());
  return from_log_scale(*middle);
}

Duration times(double seconds_per_byte, std::size_t bytes) {
  return Duration::from_seconds(seconds_per_byte * static_cast<double>(bytes));
}

}  // namespace

TimeoutPolicy::TimeoutPolicy(const BoundOptions& options, Rank me, Rank size)
    : options_(options), me_(me), bounds_(size, 0), earlies_(size, 0), skew_codes_(size, 0) {}

void TimeoutPolicy::learn(const Outcome& outcome) {
  const double bytes = static_cast<double>(std::max<std::size_t>(outcome.bytes, 1));
  const double seconds = outcome.elapsed.seconds() / std::max(outcome.arrived_share, kLeastArrived);
  const Sample sample{std::max(seconds, 1e-9) / bytes, bytes};
  if (samples_.size() < kSamples) samples_.emplace_back();
  samples_[learned_ % kSamples] = sample;
  if (skews_.size() < kSamples) skews_.emplace_back();
  skews_[learned_ % kSamples] = outcome.skew.seconds();

  average_bytes_ = learned_ == 0 ? bytes : average_bytes_ + (bytes - average_bytes_) * kAverageWeight;
  const double weight = learned_ == 0 ? 1 : kAverageWeight * std::min(1.0, bytes / average_bytes_);
  // Beyond the bound nobody would have waited.
  const double most = usual() * options_.most;
  average_ += (std::min(sample.seconds_per_byte, most) - average_) * weight;
  ++learned_;

  if (outcome.late_share > kNoticeable) {
    early_fraction_ = std::min(1.0, early_fraction_ * kFractionGrowth);
  } else if (outcome.late_share == 0) {
    early_fraction_ = std::max(kFractionLeast, early_fraction_ * kFractionDecay);
  }
  update_bound();
}

void TimeoutPolicy::update_bound() {
  const double middle = usual();
  const double bound =
      std::clamp(percentile(options_.percentile / 100), middle * options_.least, middle * options_.most);
  undisturbed_ = percentile(kUndisturbedShare);
  std::vector<double> sorted = skews_;
  std::sort(sorted.begin(), sorted.end());
  const double rank = static_cast<double>(sorted.size() - 1) * options_.percentile / 100;
  const double latest = sorted[static_cast<std::size_t>(std::ceil(rank))];
  skew_codes_[me_] = static_cast<std::uint8_t>(std::min(std::ceil(latest / kSkewStep.seconds()), 255.0));
  bounds_[me_] = to_log_scale(bound);
  earlies_[me_] = to_log_scale(average_);
  shared_bound_ = median_of(bounds_);
  shared_early_ = median_of(earlies_);
}

void TimeoutPolicy::hear(Rank peer, std::uint16_t bound, std::uint16_t early, std::uint8_t skew) {
  skew_codes_[peer] = skew;
  if (bounds_[peer] == bound && earlies_[peer] == early) return;
  bounds_[peer] = bound;
  earlies_[peer] = early;
  shared_bound_ = median_of(bounds_);
  shared_early_ = median_of(earlies_);
}

double TimeoutPolicy::usual() const {
  return std::min(percentile(0.5), percentile(kUndisturbedShare) * kMostDisturbed);
}

double TimeoutPolicy::percentile(double share) const {
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
  return sorted.empty() ? 0 : sorted.back().seconds_per_byte;
}

Duration TimeoutPolicy::bound(std::size_t bytes) const {
  return std::max(times(shared_bound_, bytes), typical(bytes) + kSlack);
}

Duration TimeoutPolicy::skew(std::size_t bytes) const {
  const Duration usual = kSkewStep * *std::max_element(skew_codes_.begin(), skew_codes_.end());
  return std::min(usual, std::max(kMostSkew, typical(bytes) * 2));
}

Duration TimeoutPolicy::undisturbed(std::size_t bytes) const {
  return times(undisturbed_, bytes);
}

Duration TimeoutPolicy::typical(std::size_t bytes) const {
  return times(shared_bound_ / options_.least, bytes);
}

Duration TimeoutPolicy::early(std::size_t bytes) const {
  return times(shared_early_, bytes);
}

}  // namespace optireduce
