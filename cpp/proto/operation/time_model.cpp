#include "operation/time_model.h"

#include <algorithm>

namespace optireduce {
namespace {

constexpr double kMostDisturbed = 1.125;
/// Where waiting a little longer excludes hardly anything, excluding saves nothing: a quiet network.
constexpr double kCheapMultiple = 2.0;
constexpr double kHardlyAny = 0.1;

double quantile(std::vector<double> sorted, double share) {
  const auto at = static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1));
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(at), sorted.end());
  return sorted[at];
}

/// The share of a contribution that had not come at a time. Beyond the deadline nothing is known: it is
/// assumed to come as if each doubling of the time brought three quarters of the rest.
double missing_at(const Arrival& arrival, Duration at) {
  if (at >= arrival.ended) {
    if (arrival.missing == 0) return 0;
    const double longer = arrival.ended.seconds() / std::max(at.seconds(), 1e-9);
    return arrival.missing * longer * longer;
  }
  if (at <= arrival.began) return 1;
  const double came = static_cast<double>((at - arrival.began).ns) /
                      static_cast<double>(std::max<std::int64_t>((arrival.ended - arrival.began).ns, 1));
  return 1 - came * (1 - arrival.missing);
}

}  // namespace

void TimeModel::learn(std::uint32_t stream, std::uint64_t step, std::size_t bytes,
                      const std::vector<Arrival>& arrivals, std::optional<Duration> closed_after) {
  if (arrivals.empty()) return;
  Duration took;
  for (const Arrival& arrival : arrivals) took = std::max(took, arrival.ended);
  if (closed_after) took = std::max(took, *closed_after);
  std::deque<double>& seconds = seconds_[stream];
  seconds.push_back(std::max(took.seconds(), 1e-6));
  if (seconds.size() > kSteps) seconds.pop_front();
  const std::optional<Duration> known = usual(stream);
  if (!known) return;
  samples_.push_back(sample_of(step, bytes, arrivals, *known, closed_after));
  while (samples_.front().step + kSteps < step) samples_.pop_front();
  choose();
}

TimeModel::Sample TimeModel::sample_of(std::uint64_t step, std::size_t bytes,
                                       const std::vector<Arrival>& arrivals, Duration usual,
                                       std::optional<Duration>) const {
  Sample sample{.step = step, .bytes = static_cast<double>(bytes)};
  for (std::size_t i = 0; i < kMultiples.size(); ++i) {
    const Duration at = Duration::from_seconds(usual.seconds() * kMultiples[i]);
    for (const Arrival& arrival : arrivals) sample.excluded[i] += missing_at(arrival, at);
    sample.excluded[i] /= static_cast<double>(arrivals.size() + 1);
  }
  return sample;
}

void TimeModel::choose() {
  double bytes = 0;
  for (const Sample& sample : samples_) bytes += sample.bytes;
  std::optional<std::size_t> allowed;
  for (std::size_t i = 0; i < kMultiples.size(); ++i) {
    double excluded = 0;
    for (const Sample& sample : samples_) excluded += sample.excluded[i] * sample.bytes;
    if (!allowed && excluded <= exclude_at_most_ * bytes) allowed = i;
    if (kMultiples[i] > kCheapMultiple) {
      if (allowed) break;
    } else if (excluded <= exclude_at_most_ * kHardlyAny * bytes) {
      allowed = i;
      break;
    }
  }
  index_ = allowed.value_or(kMultiples.size() - 1);
}

std::optional<Duration> TimeModel::usual(std::uint32_t stream) const {
  const auto found = seconds_.find(stream);
  if (found == seconds_.end() || found->second.size() < kLeastSamples) return std::nullopt;
  const std::vector<double> seconds(found->second.begin(), found->second.end());
  return Duration::from_seconds(std::min(quantile(seconds, 0.5), quantile(seconds, 0.25) * kMostDisturbed));
}

std::optional<Duration> TimeModel::deadline(std::uint32_t stream) const {
  const std::optional<Duration> known = usual(stream);
  if (!known) return std::nullopt;
  return Duration::from_seconds(known->seconds() * multiple());
}

}  // namespace optireduce
