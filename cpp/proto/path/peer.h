// What this rank knows about one other rank's path.
#pragma once

#include <cstdint>

#include "base/time.h"
#include "base/timestamp.h"
#include "path/rtt.h"
#include "path/window.h"

namespace optireduce {

struct Peer {
  bool linked = false;               // we exchange packets with it at all: in a grid only our row and column
  bool heard = false;                // at least one authentic packet
  bool left = false;                 // said goodbye
  std::uint64_t completed = 0;       // it has finished all operations below
  Time last_heard;                   // meaningful once heard
  std::uint32_t newest = 0;          // the latest timestamp seen from it ...
  Time newest_at;                    // ... and when
  std::uint32_t echo = 0;            // the latest of our timestamps that it has seen
  bool echoed = false;               // it has seen any
  std::uint64_t told = 0;            // the last `completed` of ours that was sent to it
  std::uint8_t oldest = 0;           // age of its oldest residual in steps, as it said last
  Time answer_due = Time::never();   // it wants to know what has arrived
  Time go_on_due = Time::never();    // it waits for us to decide what it has sent
  Time pinged_at;                    // while stuck
  Time stuck_since = Time::never();  // something waits for its window, and nothing comes back
  bool silent = false;               // that lasted so long that what was under way counts as lost
  bool heard_in_group = false;       // at least one authentic packet by multicast
  SendWindow window;
  RttEstimator rtt;

  bool present() const { return linked && !left; }
  /// Whether what goes to all waits for its window: not for longer than a repair would take.
  bool sets_pace(Time now) const {
    const bool overdue = stuck_since != Time::never() && stuck_since + rtt.repair_timeout() <= now;
    return !silent && !overdue;
  }
  void note_answer() {
    stuck_since = Time::never();
    silent = false;
  }
};

}  // namespace optireduce
