// One simulated rank: a group, its buffers, and what waits for it while it does not run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "group/group.h"
#include "sim/clock.h"
#include "sim/counters.h"
#include "sim/options.h"
#include "sim/wire.h"

namespace optireduce::sim {

class Node {
 public:
  Node(const GroupConfig& config, const SimOptions& options);

  /// What the rank's own clock shows: the only time its group sees.
  Time clock(Time now) const { return clock_.at(now); }

  /// When the group wants to be woken, in the network's time.
  Time deadline() const { return crashed_ ? Time::never() : clock_.when(group_->poll_timeout()); }

  /// When the rank runs again; `now` if it runs.
  Time runs_at(Time now) const;

  /// The rank runs now. After a pause its group is told that it stood still, as the engine's clock tells it.
  void note_run(Time now);

  /// Packets reach the socket; they are lost if its buffer has no room.
  void receive(Delivery delivery, std::size_t buffer_bytes, Counters& counters);

  /// Hands all that waits to the group.
  void read_inbox(Time now, Counters& counters);

  /// The rank stops, and what waits for it is gone.
  void crash();
  /// Another process takes the place of the one that crashed.
  void restart();
  bool crashed() const { return crashed_; }

  Group& group() { return *group_; }
  const Group& group() const { return *group_; }

  Time timer = Time::never();                     // the earliest Timer event that is under way
  Time wake = Time::never();                      // the Wake event that is under way
  std::map<std::uint64_t, std::uint32_t> called;  // operation number to its place in the current run
  std::size_t owed = 0;                           // reports of the current run, also of calls still to come
  std::optional<Time> only_call;  // after a restart or a snapshot: the one call that is still to be made

 private:
  std::size_t joinable_bytes() const;

  GroupConfig config_;
  std::vector<Pause> pauses_;  // of this rank
  Clock clock_;
  BufferPool pool_;  // outlives the group, which holds buffers
  std::unique_ptr<Group> group_;
  std::deque<Delivery> inbox_;
  std::size_t inbox_bytes_ = 0;
  bool crashed_ = false;
  Time ran_at_;
};

}  // namespace optireduce::sim
