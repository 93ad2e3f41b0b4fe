// When a member proposes: one round trip after it saw the reason, later the further back its place is, and
// later after each attempt.
#pragma once

#include <algorithm>

#include "base/time.h"

namespace optireduce {

class Attempts {
 public:
  explicit Attempts(Duration round) { set_round(round); }

  void set_round(Duration round) {
    round_ = std::clamp(round, Duration::micros(200), Duration::millis(1000));
  }
  Duration round() const { return round_; }
  /// T_view: four rounds, doubled with each attempt.
  Duration view_wait() const { return round_ * 4 * (std::int64_t{1} << std::min(count_, 6)); }

  /// Tells whether there is a reason for a change. True when it is new.
  bool plan(Time now, bool reason, int place) {
    if (!reason) return clear();
    if (at_ != Time::never()) return false;
    asked_ = now;
    at_ = now + round_ + view_wait() * place;
    return true;
  }
  /// Somebody proposes: the others wait for their turn.
  void postpone(Time now, int place) {
    asked_ = std::min(asked_, now);
    at_ = now + view_wait() * (1 + place);
  }
  void count_attempt(bool possible) {
    ++count_;
    too_few_ = !possible;
  }
  bool due(Time now) const { return now >= at_; }
  Time at() const { return at_; }
  /// Since when others are asked for their Status.
  Time asked() const { return asked_; }
  /// The last attempt could not be made: only the silent are left out in the next one.
  bool thaw() const { return thaw_; }
  void set_thaw() { thaw_ = true; }
  bool too_few() const { return too_few_; }
  bool clear() {
    at_ = asked_ = Time::never();
    count_ = 0;
    thaw_ = too_few_ = false;
    return false;
  }

 private:
  Duration round_{};
  Time at_ = Time::never(), asked_ = Time::never();
  int count_ = 0;
  bool thaw_ = false, too_few_ = false;
};

}  // namespace optireduce
