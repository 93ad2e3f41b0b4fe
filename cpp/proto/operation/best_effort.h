// The judge of Delivery::BestEffort, the papers' transport: the receiver's own deadline ends an operation,
// and what is missing then is lost. The other delivery's judge is deadline.h.
//
// BestEffortTimes has the papers' adaptive timeouts: how long an operation may take (tB), how long it usually
// takes (tC), and what share of that (x) a rank still waits when every sender has sent nearly everything.
//
// All in time per byte, so that one estimate serves every bucket size. "Bytes" are the operation's own and
// those of operations that were under way before it, because they share the links.
//
//   tB   a percentile of the last operations, kept between two multiples of what is usual
//   tC   a moving average
//   x    grows by half when data came after the end, shrinks by 3 % when none did
#pragma once

#include <vector>

#include "operation/operation.h"

namespace optireduce {

struct BestEffortOptions {
  std::uint32_t warmup_operations = 20;  // run to completion before the first deadline
  double percentile = 95;
  double least = 1.3;  // multiples of what is usual
  double most = 1.4;
};

/// How a bounded operation went.
struct Outcome {
  std::size_t bytes = 0;     // its own, and those that were under way before it
  Duration elapsed;          // from when all had begun until the last packet that was of use
  double arrived_share = 1;  // an unfinished operation would have taken longer
  Duration skew;             // how much later than we the last rank began
  double late_share = 0;     // of the bytes: came after the end, since the operation before
};

/// What is usual in best effort.
class BestEffortTimes {
 public:
  explicit BestEffortTimes(const BestEffortOptions& options) : options_(options) {}

  void learn(const Outcome& outcome);

  /// Until then operations run to completion.
  bool warmed_up() const { return learned_ >= options_.warmup_operations; }

  /// tB, from when the last rank has begun; skew() is for waiting until then.
  Duration bound(std::size_t bytes) const;
  Duration skew() const;
  /// tC.
  Duration early(std::size_t bytes) const;
  /// When nothing gets in the way: a low percentile.
  Duration undisturbed(std::size_t bytes) const;
  /// x.
  double early_fraction() const { return early_fraction_; }

 private:
  struct Sample {
    double seconds_per_byte = 0;
    double bytes = 0;
    double skew = 0;  // seconds
  };
  static constexpr std::size_t kSamples = 100;

  /// The value below which `share` of the sampled bytes lie.
  double percentile(double share) const;
  double usual() const;

  BestEffortOptions options_;
  std::uint64_t learned_ = 0;
  std::vector<Sample> samples_;  // the last kSamples, in a ring
  double average_ = 0;           // seconds per byte
  double early_fraction_ = 0.5;
};

struct BestEffortVerdict {
  enum class Next : std::uint8_t { Wait, GoOn, Finish };

  Next next = Next::GoOn;
  Time look_again = Time::never();
};

class BestEffort {
 public:
  explicit BestEffort(const BestEffortOptions& options) : times_(options) {}

  /// Sets the limits of an operation that the process has begun; false: it has none. `bytes_ahead`: of
  /// operations that are under way before it.
  bool begin(Operation& operation, std::size_t bytes_ahead) const;
  /// Ends it at tB, or when waiting any longer does not pay: nearly everything was sent and x * tC has passed
  /// without news. Contributions are given up in time for the decisions to get everywhere. `in_turn`: the
  /// operations before it have ended.
  BestEffortVerdict check(Time now, Operation& operation, bool in_turn) const;
  /// Nothing is repaired once there are deadlines.
  bool repairs(const Operation& operation) const;
  void note_late(std::size_t bytes) { late_bytes_ += bytes; }
  void learn(Time now, const Operation& operation);
  void describe(std::size_t bytes, PolicySnapshot& snapshot) const;

 private:
  BestEffortVerdict end(Time now, Operation& operation, bool in_turn) const;

  BestEffortTimes times_;
  std::uint64_t late_bytes_ = 0;  // came for operations that were over, since the last lesson
};

}  // namespace optireduce
