// Time as the protocol sees it: only while this process could run.
//
// A process that was stopped, starved, or whose whole machine stood still finds all its deadlines in the past
// when it goes on, although nobody was late but itself. What a clock read here skips is the time beyond what
// the process meant to sleep, so that deadlines and repair timers go on where they were.
#pragma once

#include <algorithm>

#include "base/time.h"

namespace optireduce {

/// The machine's own clock.
Time monotonic_time();

class RunningClock {
 public:
  /// Less is the scheduler at work: other ranks on the same core, interrupts.
  static constexpr Duration kStandstill = Duration::millis(10);

  explicit RunningClock(Time (*source)() = monotonic_time) : source_(source) {}

  /// To be read all the time, except where sleep_until() says otherwise: a longer pause was a standstill.
  Time now() {
    const Time machine = source_() - skipped_;
    const Time expected = std::max(seen_, awake_by_);
    const bool late = awake_by_ != Time::never() && machine - expected > kStandstill;
    if (late) skipped_ = skipped_ + (machine - expected);
    seen_ = late ? expected : machine;
    return seen_;
  }

  /// Until `due` nobody may read the clock, and that is as it should be.
  void sleep_until(Time due) { awake_by_ = due; }
  void awake() {
    now();
    awake_by_ = seen_;
  }

  /// All that was left out.
  Duration skipped() const { return skipped_; }

 private:
  Time (*source_)();
  Duration skipped_;
  Time seen_;
  Time awake_by_ = Time::never();  // before the first awake() nobody has to run
};

}  // namespace optireduce
