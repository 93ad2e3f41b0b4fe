// What is usual here: how long an owner usually collects the contributions to its shard of a stream, and how
// many contributions a deadline of so many times that would exclude.
//
// Usual is the median of the last operations of the stream, but at most an eighth above their lower quartile:
// where half of the operations are disturbed the median wanders. Only operations of the same stream are
// compared, so nothing is assumed about how time grows with bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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

  /// `arrivals`: of all members but the owner. `closed_after`: when the deadline closed the shard.
  void learn(std::uint32_t stream, std::uint64_t step, std::size_t bytes,
             const std::vector<Arrival>& arrivals, std::optional<Duration> closed_after);

  /// Nothing until enough operations of the stream were seen.
  std::optional<Duration> usual(std::uint32_t stream) const;
  /// The deadline as a multiple of what is usual: the smallest that would have excluded at most the allowed
  /// share of the contributions over the last steps, or a cheap one that would have excluded hardly any.
  double multiple() const { return kMultiples[index_]; }
  std::optional<Duration> deadline(std::uint32_t stream) const;

 private:
  static constexpr std::size_t kLeastSamples = 8;
  static constexpr std::uint64_t kSteps = 60;
  static constexpr std::array kMultiples{1.25, 1.5, 1.75, 2.0,  2.5,  3.0,  4.0,
                                         6.0,  8.0, 12.0, 16.0, 24.0, 32.0, 64.0};

  struct Sample {
    std::uint64_t step = 0;
    double bytes = 0;
    std::array<double, kMultiples.size()> excluded{};  // share, by multiple
  };

  Sample sample_of(std::uint64_t step, std::size_t bytes, const std::vector<Arrival>& arrivals,
                   Duration usual, std::optional<Duration> closed_after) const;
  void choose();

  double exclude_at_most_;
  std::map<std::uint32_t, std::deque<double>> seconds_;  // by stream: what collecting took
  std::deque<Sample> samples_;
  std::size_t index_ = 3;
};

}  // namespace optireduce
