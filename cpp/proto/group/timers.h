// Named timers.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>

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
  Watch,    // look for silent ranks where membership is fixed
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
    const auto [timer, is_new] = armed_.try_emplace(key, when);
    if (!is_new && timer->second == when) return;
    if (!is_new) by_time_.erase({timer->second, key});
    timer->second = when;
    by_time_.insert({when, key});
  }
  /// Only if it would fire later, or not at all.
  void set_earlier(TimerKey key, Time when) {
    const auto known = armed_.find(key);
    if (known == armed_.end() || when < known->second) set(key, when);
  }
  void stop(TimerKey key) {
    const auto known = armed_.find(key);
    if (known == armed_.end()) return;
    by_time_.erase({known->second, key});
    armed_.erase(known);
  }
  void stop_all(std::uint64_t operation) {
    for (const TimerKind kind : {TimerKind::Shard, TimerKind::Request, TimerKind::Fail})
      stop({kind, operation});
  }

  /// When the first timer fires.
  Time next() const { return by_time_.empty() ? Time::never() : by_time_.begin()->first; }

  /// The next timer that is due, which is stopped.
  std::optional<TimerKey> take_due(Time now) {
    if (next() > now) return std::nullopt;
    const TimerKey key = by_time_.begin()->second;
    stop(key);
    return key;
  }

 private:
  std::map<TimerKey, Time> armed_;
  std::set<std::pair<Time, TimerKey>> by_time_;  // the same
};

}  // namespace optireduce
