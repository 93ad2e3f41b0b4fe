// Events in the order of virtual time; those of the same instant in the order in which they were added.
#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <vector>

#include "base/time.h"
#include "group/config.h"
#include "sim/trace.h"

namespace optireduce::sim {

struct Event {
  Time at;
  std::uint64_t sequence = 0;
  std::uint32_t index =
      0;  // Arrive, Enter: slot of the delivery; Call: which operation of the run; Act: which
  Rank rank = 0;
  EventKind kind = EventKind::Timer;
};

class EventQueue {
 public:
  void add(Time at, EventKind kind, Rank rank, std::uint32_t index = 0) {
    heap_.push({at, next_sequence_++, index, rank, kind});
    if (is_idle(kind)) ++idle_;
  }
  /// Nothing is under way but timers, and crashes and restarts to come.
  bool idle() const { return heap_.size() == idle_; }
  bool empty() const { return heap_.empty(); }
  Time next_time() const { return heap_.empty() ? Time::never() : heap_.top().at; }
  Event take() {
    const Event event = heap_.top();
    heap_.pop();
    if (is_idle(event.kind)) --idle_;
    return event;
  }

 private:
  static bool is_idle(EventKind kind) {
    return kind == EventKind::Timer || kind == EventKind::Crash || kind == EventKind::Restart;
  }

  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.at != b.at ? a.at > b.at : a.sequence > b.sequence;
    }
  };
  std::priority_queue<Event, std::vector<Event>, Later> heap_;
  std::size_t idle_ = 0;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace optireduce::sim
