// The judge of Delivery::BestEffort, the papers' transport: the receiver's own deadline ends an operation,
// and what is missing then is lost. The other delivery's judge is deadline.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "operation/best_effort_times.h"
#include "operation/operation.h"

namespace optireduce {

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
