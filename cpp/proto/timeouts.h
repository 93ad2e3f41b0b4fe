// Adaptive timeouts: how long an operation may take (tB), how long it usually takes (tC), and what share of
// that (x) a rank still waits when every sender has sent nearly everything.
//
// All in time per byte, so that one estimate serves every bucket size, and every sample counts with its
// bytes, so that many small buckets do not speak for the large ones. "Bytes" are the operation's own and
// those of operations that were under way before it, because they share the links.
//
//   tB   a percentile of the last operations, kept between two multiples of what is usual: one burst does not
//        move it much, a network that has become slower moves it when three quarters of the samples say so.
//        Usual is their median, but where half of them are disturbed that wanders from run to run between
//        undisturbed times and others, so not more than an eighth above the lower quartile. Never less than
//        kSlack above what is usual: schedulers delay by tens of milliseconds whatever the bucket.
//        Computing takes different times on different ranks; waiting for the last one to start is learned
//        apart and added.
//   tC   a moving average.
//   x    grows by half when data was lost because we did not wait for it: it came after the end. Shrinks by
//        3 % when none was. What never comes is lost however long one waits, and does not count.
// Ranks share tB and tC in their packets; everybody uses the median of all ranks' values, so that no rank
// gives up much earlier than the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "proto/config.h"
#include "proto/time.h"

namespace optireduce {

/// How a bounded operation went, as far as timeouts learn from it.
struct Outcome {
  std::size_t bytes = 0;     // its own, and those that were under way before it
  Duration elapsed;          // from when all had started until the last packet that was of use
  double arrived_share = 1;  // of what present ranks owed us: an unfinished operation would have taken longer
  Duration skew;             // how much later than we the last rank started
  double late_share = 0;     // of the bytes: came after the end, since the operation before
};

class TimeoutPolicy {
 public:
  TimeoutPolicy(const BoundOptions& options, Rank me, Rank size);

  void learn(const Outcome& outcome);
  /// What another rank says in its packets.
  void hear(Rank peer, std::uint16_t bound, std::uint16_t early, std::uint8_t skew);

  /// Until then operations run to completion.
  bool warmed_up() const { return learned_ >= options_.warmup_operations; }

  /// Counted from the start of the last rank; skew() is for waiting until then.
  Duration bound(std::size_t bytes) const;
  /// How much later than the first the last rank usually starts: the same percentile of the last operations,
  /// the largest of all ranks' values (the first to start sees it), up to a limit.
  Duration skew(std::size_t bytes) const;
  Duration early(std::size_t bytes) const;
  /// About what is usual.
  Duration typical(std::size_t bytes) const;
  /// When nothing gets in the way: a low percentile of our own.
  Duration undisturbed(std::size_t bytes) const;
  double early_fraction() const { return early_fraction_; }

  /// Our own values, for our packets.
  std::uint16_t bound_code() const { return bounds_[me_]; }
  std::uint16_t early_code() const { return earlies_[me_]; }
  std::uint8_t skew_code() const { return skew_codes_[me_]; }

 private:
  struct Sample {
    double seconds_per_byte = 0;
    double bytes = 0;
  };
  static constexpr std::size_t kSamples = 100;

  /// The value below which `share` of the sampled bytes lie.
  double percentile(double share) const;
  double usual() const;
  void update_bound();

  BoundOptions options_;
  Rank me_;
  std::uint64_t learned_ = 0;
  std::vector<Sample> samples_;  // the last kSamples, in a ring
  std::vector<double> skews_;    // the same, seconds
  double average_ = 0;           // seconds per byte
  double average_bytes_ = 0;
  double early_fraction_ = 0.5;
  std::vector<std::uint16_t> bounds_, earlies_;  // by rank, log scale, 0: not heard
  std::vector<std::uint8_t> skew_codes_;         // by rank, in steps of kSkewStep
  double shared_bound_ = 0, shared_early_ = 0;   // medians, seconds per byte
  double undisturbed_ = 0;                       // seconds per byte
};

}  // namespace optireduce
