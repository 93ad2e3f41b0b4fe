// What this rank knows about one other rank.
#pragma once

#include <cstdint>

#include "proto/rtt.h"
#include "proto/time.h"
#include "proto/timestamp.h"
#include "proto/window.h"

namespace optireduce {

/// The full operation number whose low 32 bits are `low`, nearest to `near`.
constexpr std::uint64_t widen(std::uint32_t low, std::uint64_t near) {
  const auto distance = static_cast<std::int32_t>(low - static_cast<std::uint32_t>(near));
  const auto wide = static_cast<std::int64_t>(near) + distance;
  return wide < 0 ? low : static_cast<std::uint64_t>(wide);
}

struct Peer {
  bool heard = false;                // at least one authentic packet
  bool left = false;                 // said goodbye
  bool absent = false;               // not waited for until it is in step again
  std::uint32_t missed = 0;          // operations in a row that ended without anything from it ...
  Time missed_at;                    // ... and when the last of them did
  Time last_heard;                   // meaningful once heard
  std::uint32_t newest = 0;          // the latest timestamp seen from it ...
  Time newest_at;                    // ... and when
  std::uint32_t echo = 0;            // the latest of our timestamps that it has seen
  bool echoed = false;               // it has seen any
  std::uint64_t completed = 0;       // it has finished all operations below ...
  bool wants = false;                // ... but would still take reduced packets of some
  std::uint64_t told = 0;            // the last `completed` of ours that was sent to it
  Time answer_due = Time::never();   // it wants to know what has arrived
  Time go_on_due = Time::never();    // it waits for us to reduce what it has sent
  Time pinged_at;                    // while absent or stuck
  Time stuck_since = Time::never();  // something waits for its window, and nothing comes back
  bool silent = false;               // that lasted so long that what was under way counts as lost
  bool heard_in_group = false;       // at least one authentic packet by multicast
  SendWindow window;
  RttEstimator rtt;

  /// Whether to wait for it and send to it.
  bool present() const { return !absent && !left; }
  /// Whether what goes to all waits for its window: not for longer than a repair would take.
  bool sets_pace(Time now) const {
    const bool overdue = stuck_since != Time::never() && stuck_since + rtt.repair_timeout() <= now;
    return present() && !silent && !overdue;
  }
  void note_answer() {
    stuck_since = Time::never();
    silent = false;
  }
};

}  // namespace optireduce
