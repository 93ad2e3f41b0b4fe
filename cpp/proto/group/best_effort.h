// Delivery::BestEffort, the papers' transport: the receiver's own deadline ends an operation, and what is
// missing then is lost. The only place that knows of it.
#pragma once

#include <cstdint>

#include "group/core.h"
#include "operation/best_effort_times.h"

namespace optireduce {

/// What becomes of an operation after a look at its deadline.
enum class Next : std::uint8_t { Wait, GoOn, Finish };

class BestEffort {
 public:
  explicit BestEffort(Core& core) : core_(core), times_(core.config.best_effort) {}

  /// Sets the limits of an operation that the process has begun, once they are known.
  Next begin(Time now, Operation& operation);
  /// Ends it at tB, or when waiting any longer does not pay: nearly everything was sent and x * tC has passed
  /// without news. Contributions are given up in time for the decisions to get everywhere.
  Next check(Time now, Operation& operation);
  /// Nothing is repaired once there are deadlines.
  bool repairs(const Operation& operation) const;
  /// Packets of an operation that was over.
  void note_late(const ReceivedRun& run);
  void learn(Time now, const Operation& operation);
  void describe(std::size_t bytes, PolicySnapshot& snapshot) const;

 private:
  Next end(Time now, Operation& operation);
  Next wait_until(Operation& operation, Time when, Next next = Next::Wait);
  /// Closes our shard if it is time; when to look again.
  Time check_contributions(Time now, Operation& operation, Time hard);
  /// When waiting for decisions stops to pay.
  Time decisions_due(const Operation& operation) const;

  Core& core_;
  BestEffortTimes times_;
  std::uint64_t late_bytes_ = 0;  // since the last lesson
};

}  // namespace optireduce
