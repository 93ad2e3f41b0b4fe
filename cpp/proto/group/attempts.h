// When a member proposes: one round trip after it saw the reason, later the further back its place is, and
// later after each attempt.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace optireduce {

struct Attempts {
  Duration round = Duration::millis(5);  // T_round
  Time at = Time::never();               // of the next attempt
  Time asked = Time::never();            // since when others are asked for their Status
  int count = 0;
  bool thaw = false;  // the last attempt could not be made: only silent ranks are removed in the next one
  bool too_few = false;

  /// T_view: four rounds, doubled with each attempt.
  Duration view_wait() const { return round * 4 * (std::int64_t{1} << std::min(count, 6)); }
  /// There is a reason for a change. True when it is new.
  bool plan(Time now, int place) {
    if (at != Time::never()) return false;
    asked = now;
    at = now + round + view_wait() * place;
    return true;
  }
  /// Somebody proposes: the others wait for their turn.
  void postpone(Time now, int place) {
    asked = std::min(asked, now);
    at = now + view_wait() * (1 + place);
  }
  void clear() { *this = {.round = round}; }
};

}  // namespace optireduce
