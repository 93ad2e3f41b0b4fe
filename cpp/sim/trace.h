// What happened, in order: hashed, so that two runs can be compared by one number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/time.h"
#include "group/config.h"

namespace optireduce::sim {

enum class EventKind : std::uint8_t {
  Arrive,    // packets reach a rank's socket
  Wake,      // a rank looks at the packets that wait
  Timer,     // the group's deadline
  Call,      // the rank starts an operation
  Leave,     // the rank leaves the group
  Complete,  // an operation is over on a rank
  Enter,     // packets have come to a rank's ingress port
  Crash,     // the rank stops
  Restart,   // its process begins anew
  Act,       // of Network::plan
};

constexpr const char* name_of(EventKind kind) {
  switch (kind) {
    case EventKind::Arrive:
      return "arrive";
    case EventKind::Wake:
      return "wake";
    case EventKind::Timer:
      return "timer";
    case EventKind::Call:
      return "call";
    case EventKind::Leave:
      return "leave";
    case EventKind::Complete:
      return "complete";
    case EventKind::Enter:
      return "enter";
    case EventKind::Crash:
      return "crash";
    case EventKind::Restart:
      return "restart";
    case EventKind::Act:
      return "act";
  }
  return "unknown";
}

struct TraceEntry {
  Time at;
  EventKind kind = EventKind::Arrive;
  Rank rank = 0;
  Rank from = 0;  // Arrive, Enter: the sender
  /// Arrive: a bit for each packet of the batch; Enter: only for those that found room; Call, Complete: which
  /// operation.
  std::uint64_t detail = 0;
  std::span<const std::byte> first;  // Arrive: the first packet
};

/// FNV-1a over whole words.
class TraceHash {
 public:
  void add(const TraceEntry& entry) {
    mix(static_cast<std::uint64_t>(entry.at.ns));
    mix(static_cast<std::uint64_t>(entry.kind) << 32 | static_cast<std::uint64_t>(entry.rank) << 16 |
        entry.from);
    mix(entry.detail);
    mix(entry.first.size());
  }
  std::uint64_t value() const { return hash_; }

 private:
  void mix(std::uint64_t word) { hash_ = (hash_ ^ word) * 0x0000'0100'0000'01b3u; }

  std::uint64_t hash_ = 0xcbf2'9ce4'8422'2325u;
};

}  // namespace optireduce::sim
