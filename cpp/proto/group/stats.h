// Counters of one group since its start. Only ever grow.
#pragma once

#include <cstdint>

namespace optireduce {

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

}  // namespace optireduce
