// Named timers. Moving one to later costs nothing until it fires.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <queue>
#include <vector>

#include "base/time.h"

namespace optireduce {

enum class TimerKind : std::uint8_t {
  Shard,    // an owner's deadline of an operation
  Request,  // ask for missing packets of an operation
  Fail,     // an operation's timeout
  Answer,   // tell peers what has arrived
  Stuck,    // look for peers that do not answer
  Status,   // tell peers what is completed
  View,     // look for silent members; the view change's own
  Quorum,   // too few ranks for too long
};

struct TimerKey {
  TimerKind kind = TimerKind::Status;
  std::uint64_t operation = 0;

  auto operator<=>(const TimerKey&) const = default;
};

class Timers {
 public:
  void set(TimerKey key, Time when) {
    if (when == Time::never()) return stop(key);
    const auto [known, is_new] = armed_.try_emplace(key, Armed{when, when});
    if (is_new) return queue_.push({when, key});
    known->second.when = when;
    if (when >= known->second.queued) return;
    known->second.queued = when;
    queue_.push({when, key});
  }
  /// Only if it would fire later, or not at all.
  void set_earlier(TimerKey key, Time when) {
    const auto known = armed_.find(key);
    if (known == armed_.end() || when < known->second.when) set(key, when);
  }
  void stop(TimerKey key) { armed_.erase(key); }
  void stop_all(std::uint64_t operation) {
    for (const TimerKind kind : {TimerKind::Shard, TimerKind::Request, TimerKind::Fail})
      stop({kind, operation});
  }

  /// When the first timer fires.
  Time next() {
    tidy();
    return queue_.empty() ? Time::never() : queue_.top().when;
  }

  /// The next timer that is due, which is stopped.
  std::optional<TimerKey> take_due(Time now) {
    if (next() > now) return std::nullopt;
    const TimerKey key = queue_.top().key;
    queue_.pop();
    armed_.erase(key);
    return key;
  }

 private:
  /// Makes the first entry of the queue that of a timer which fires then.
  void tidy() {
    while (!queue_.empty()) {
      const Entry entry = queue_.top();
      const auto known = armed_.find(entry.key);
      const bool stale =
          known == armed_.end() || known->second.queued != entry.when;  // stopped, or queued anew
      if (!stale && known->second.when == entry.when) return;
      queue_.pop();
      if (stale) continue;
      known->second.queued = known->second.when;
      queue_.push({known->second.when, entry.key});
    }
  }

  struct Armed {
    Time when;    // to fire
    Time queued;  // the entry of the queue that stands for it
  };
  struct Entry {
    Time when;
    TimerKey key;
    bool operator>(const Entry& other) const {
      return when != other.when ? when > other.when : key > other.key;
    }
  };

  std::map<TimerKey, Armed> armed_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

}  // namespace optireduce
