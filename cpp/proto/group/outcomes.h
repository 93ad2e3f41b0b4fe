// What a group tells its process: counters, how operations ended, and what happened to other ranks. And the
// failed operations that latecomers are told about.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "operation/call.h"

namespace optireduce {

// ---- Counters of one group since its start. Only ever grow.

struct Traffic {
  std::uint64_t packets_sent = 0;
  std::uint64_t payload_bytes_sent = 0;    // multicast counts once
  std::uint64_t multicast_bytes_sent = 0;  // of these, to the multicast group
  std::uint64_t multicast_fallbacks = 0;   // a peer got hardly anything of that: unicast from then on
  std::uint64_t packets_received = 0;
  std::uint64_t payload_bytes_received = 0;
  std::uint64_t early_packets = 0;  // of operations not begun here
  std::uint64_t requests_sent = 0;
  std::uint64_t requests_received = 0;
  std::uint64_t resent_bytes = 0;
  std::uint64_t repaired_bytes = 0;
};

/// Packets that were of no use.
struct Refused {
  std::uint64_t duplicate_packets = 0;
  std::uint64_t stale_packets = 0;       // of operations that are over here
  std::uint64_t other_view_packets = 0;  // of another view
  std::uint64_t early_dropped = 0;       // of operations not begun here, no room
  std::uint64_t invalid_packets = 0;     // wrong in a field that is checked before the operation is known
  std::uint64_t forged_packets = 0;      // wrong seal
  std::uint64_t malformed_packets = 0;   // fields that do not fit the operation
  std::uint64_t oversized_view_messages = 0;
};

struct Stats : Traffic, Refused {
  std::uint64_t operations = 0;
  std::uint64_t failed_operations = 0;
  std::uint64_t bucket_bytes = 0;
  std::uint64_t excluded_bytes = 0;  // of our own contributions: kept as residual
  std::uint64_t carried_bytes = 0;   // of these, went along with a later contribution
  std::uint64_t dropped_bytes = 0;   // of our own contributions: neither counted nor kept
  std::uint64_t void_bytes = 0;      // of results
  std::uint64_t lost_bytes = 0;      // best effort: of results
  std::uint64_t views = 0;           // that were installed here
  std::uint64_t removals = 0;        // of members
  std::uint64_t suspicions = 0;      // members that were silent for too long, also without a removal
};

// ---- Ends and events

/// What happened to a rank.
struct MembershipEvent {
  enum class Kind : std::uint8_t {
    Removed,     // is no member any more
    Left,        // the same, because it left cleanly
    Returned,    // is a member again
    Unreached,   // by multicast, is sent to singly now
    LeftBehind,  // this rank itself was removed and cannot return without a snapshot
  };

  Kind kind = Kind::Removed;
  Rank rank = 0;
  std::uint64_t view = 0;       // in which this is so
  std::uint64_t operation = 0;  // from which on it is so
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
