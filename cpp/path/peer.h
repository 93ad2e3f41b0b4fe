// What this rank knows about one other rank's path.
#pragma once

#include <algorithm>

#include "base/timestamp.h"
#include "path/window.h"

namespace optireduce {

struct Peer {
  Rank rank = 0;
  std::uint32_t incarnation = 0;  // which process of the rank
  bool linked = false;          // we exchange packets with it at all: in a large grid only our row and column
  bool heard = false;           // at least one authentic packet
  bool left = false;            // said goodbye, or counts as gone
  bool lost = false;            // because it was silent where membership is fixed
  std::uint64_t completed = 0;  // it has finished all operations below
  std::uint32_t newest = 0;     // the latest timestamp seen from it ...
  Time newest_at;               // ... and when
  std::uint32_t echo = 0;       // the latest of our timestamps that it has seen
  bool echoed = false;          // it has seen any
  std::uint64_t told = 0;       // the last `completed` of ours that was sent to it
  std::uint8_t oldest = 0;      // age of its oldest residual in steps, as it said last
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
  /// What it has seen of ours is no longer under way; how long that took tells about queues. False: it says
  /// nothing new. `seen`: a timestamp of ours, `hold`: how many microseconds ago it saw that, `last_sent`:
  /// our newest timestamp.
  bool note_echo(Time now, std::uint32_t seen, std::uint16_t hold, std::uint32_t last_sent) {
    if (!not_before(last_sent, seen) || (echoed && not_before(echo, seen))) return false;
    echo = seen;
    echoed = true;
    note_answer();
    window.on_arrived(seen);
    constexpr std::uint16_t kTooLong = 65'535;
    const Duration round_trip = since(seen, now) - Duration::micros(hold);
    if (hold == kTooLong || round_trip.ns <= 0) return true;
    window.on_round_trip(now, round_trip);
    rtt.sample(round_trip);
    return true;
  }

  /// When check_stuck() has something to do after `now`.
  Time stuck_until(Time now) const {
    if (stuck_since == Time::never()) return stuck_since;
    const Time asks_at = stuck_since + rtt.repair_timeout();
    return asks_at > now ? asks_at : stuck_since + longest_stuck();
  }
  /// A peer that answers nothing while we could send on may have missed what asked for an answer. True: ask
  /// it again. One that does not answer that either has lost everything, or is gone.
  bool check_stuck(Time now) {
    if (stuck_since == Time::never() || now < stuck_since + rtt.repair_timeout()) return false;
    if (now >= stuck_since + longest_stuck()) {
      window.on_silence(now);
      stuck_since = Time::never();
      silent = true;
      return false;
    }
    if (pinged_at >= stuck_since) return false;
    pinged_at = now;
    return true;
  }
  Duration longest_stuck() const { return std::max(Duration::millis(50), rtt.repair_timeout() * 4); }
};

}  // namespace optireduce
