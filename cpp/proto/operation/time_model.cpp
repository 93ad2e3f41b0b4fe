#include "operation/time_model.h"

#include <algorithm>
#include <limits>

namespace optireduce {
namespace {

constexpr double kMostDisturbed = 1.125;

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

void TimeModel::learn(Time ended, std::uint32_t stream, std::uint64_t step, std::size_t bytes,
                      const std::vector<Arrival>& arrivals) {
  if (arrivals.empty()) return;
  Duration took;
  for (const Arrival& arrival : arrivals) took = std::max(took, arrival.ended);
  std::deque<double>& seconds = seconds_[stream];
  seconds.push_back(std::max(took.seconds(), 1e-6));
  if (seconds.size() > kSteps) seconds.pop_front();
  const std::optional<Duration> known = usual(stream);
  if (!known) return;
  Sample& sample = samples_.emplace_back(sample_of(arrivals, *known));
  sample.step = step;
  sample.ended = ended;
  sample.bytes = static_cast<double>(bytes);
  while (samples_.front().step + kSteps < step) samples_.pop_front();
  index_ = cheapest();
}

TimeModel::Sample TimeModel::sample_of(const std::vector<Arrival>& arrivals, Duration usual) {
  Sample sample;
  for (std::size_t i = 0; i < kMultiples.size(); ++i) {
    const Duration at = Duration::from_seconds(usual.seconds() * kMultiples[i]);
    for (const Arrival& arrival : arrivals) {
      const double missing = missing_at(arrival, at);
      sample.excluded[i] += missing / static_cast<double>(arrivals.size());
      const Duration waited = missing > 0 ? at : arrival.ended;
      sample.seconds[i] = std::max(sample.seconds[i], waited.seconds());
    }
  }
  return sample;
}

std::size_t TimeModel::cheapest() const {
  double bytes = 0;
  for (const Sample& sample : samples_) bytes += sample.bytes;
  const double elapsed = std::max((samples_.back().ended - samples_.front().ended).seconds(), 1e-9);
  std::size_t best = kMultiples.size() - 1;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < kMultiples.size(); ++i) {
    double excluded = 0, seconds = 0;
    for (const Sample& sample : samples_) {
      excluded += sample.excluded[i] * sample.bytes / bytes;
      seconds += sample.seconds[i];
    }
    const double cost = excluded + seconds / elapsed;
    if (excluded > exclude_at_most_ || cost >= least) continue;
    least = cost;
    best = i;
  }
  return best;
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
