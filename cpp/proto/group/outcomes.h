// What a group tells its process: how operations ended, and what happened to other ranks. And the failed
// operations that latecomers are told about.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "operation/report.h"

namespace optireduce {

/// What happened to a rank.
struct MembershipEvent {
  enum class Kind : std::uint8_t {
    Removed,     // is no member any more
    Returned,    // is a member again
    Unreached,   // by multicast, is sent to singly now
    LeftBehind,  // this rank itself was removed and cannot return
  };

  Kind kind = Kind::Removed;
  Rank rank = 0;
  std::uint64_t view = 0;       // in which this is so
  std::uint64_t operation = 0;  // from which on it is so

  bool operator==(const MembershipEvent&) const = default;
};

class Outcomes {
 public:
  void add(Report report) { reports_.push_back(std::move(report)); }
  void add(const MembershipEvent& event) { events_.push_back(event); }
  std::optional<Report> take_report() { return take(reports_); }
  std::optional<MembershipEvent> take_event() { return take(events_); }

  void remember_rejection(std::uint64_t operation, const RejectBody& body) {
    rejected_.emplace(operation, body);
    while (rejected_.size() > kMostRejected) rejected_.erase(rejected_.begin());
  }
  /// Why an operation was rejected; null: it was not, or long ago.
  const RejectBody* rejection(std::uint64_t operation) const {
    const auto found = rejected_.find(operation);
    return found == rejected_.end() ? nullptr : &found->second;
  }

 private:
  static constexpr std::size_t kMostRejected = 256;

  template <typename T>
  static std::optional<T> take(std::deque<T>& queue) {
    if (queue.empty()) return std::nullopt;
    std::optional<T> first(std::move(queue.front()));
    queue.pop_front();
    return first;
  }

  std::deque<Report> reports_;
  std::deque<MembershipEvent> events_;
  std::map<std::uint64_t, RejectBody> rejected_;  // the last ones
};

}  // namespace optireduce
