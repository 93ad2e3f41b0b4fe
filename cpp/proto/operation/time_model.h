// What is usual here: how long an owner usually collects the contributions to its shard of a stream, and what
// a deadline of so many times that would cost. A short one excludes contributions: a share of the gradient
// comes a step later. A long one waits: a share of the time. The deadline is the one that costs least, of
// those that exclude no more than is allowed.
//
// Usual is the median of the last operations of the stream, but at most an eighth above their lower quartile:
// where half of the operations are disturbed the median wanders. Only operations of the same stream are
// compared, so nothing is assumed about how time grows with bytes.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "base/time.h"

namespace optireduce {

/// How one member's contribution to a shard came, from when half of the members had begun.
struct Arrival {
  Duration began;      // of its first packet; negative: before
  Duration ended;      // of its last one, or of the deadline
  double missing = 0;  // share that had not come at the deadline
};

class TimeModel {
 public:
  explicit TimeModel(double exclude_at_most) : exclude_at_most_(exclude_at_most) {}

  /// One operation, as the owner of a shard saw it: how the contributions of all members came.
  void learn(Time ended, std::uint32_t stream, std::uint64_t step, std::size_t bytes,
             const std::vector<Arrival>& arrivals);

  /// Nothing until enough operations of the stream were seen.
  std::optional<Duration> usual(std::uint32_t stream) const;
  /// The deadline as a multiple of what is usual.
  double multiple() const { return kMultiples[index_]; }
  std::optional<Duration> deadline(std::uint32_t stream) const;

 private:
  static constexpr std::size_t kLeastSamples = 8;
  static constexpr std::uint64_t kSteps = 60;
  static constexpr std::array kMultiples{1.25, 1.5, 1.75, 2.0,  2.5,  3.0,  4.0,
                                         6.0,  8.0, 12.0, 16.0, 24.0, 32.0, 64.0};

  struct Sample {
    std::uint64_t step = 0;
    Time ended;
    double bytes = 0;
    // By multiple: the share of the contributions that is excluded, and how long the owner waits.
    std::array<double, kMultiples.size()> excluded{}, seconds{};
  };

  static Sample sample_of(const std::vector<Arrival>& arrivals, Duration usual);
  std::size_t cheapest() const;

  double exclude_at_most_;
  std::map<std::uint32_t, std::deque<double>> seconds_;  // by stream: what collecting took
  std::deque<Sample> samples_;
  std::size_t index_ = 3;
};

}  // namespace optireduce
