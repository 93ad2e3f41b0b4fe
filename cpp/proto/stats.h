// Counters of one endpoint since its start. Only ever grow.
#pragma once

#include <cstdint>

namespace optireduce {

struct Stats {
  std::uint64_t operations = 0;
  std::uint64_t failed_operations = 0;
  std::uint64_t bucket_bytes = 0;
  std::uint64_t packets_sent = 0;
  std::uint64_t payload_bytes_sent = 0;    // multicast counts once
  std::uint64_t multicast_bytes_sent = 0;  // of these, to the group
  std::uint64_t multicast_fallbacks = 0;   // a peer got hardly anything of that: unicast from then on
  std::uint64_t packets_received = 0;
  std::uint64_t payload_bytes_received = 0;
  std::uint64_t requests_sent = 0;
  std::uint64_t requests_received = 0;
  std::uint64_t resent_bytes = 0;
  std::uint64_t repaired_bytes = 0;
  std::uint64_t lost_bytes = 0;
  std::uint64_t late_bytes = 0;       // of these, reduced bytes that came after the operation ...
  std::uint64_t corrected_bytes = 0;  // ... and were added to a later one
  std::uint64_t absences = 0;         // ranks that were no longer waited for
  std::uint64_t duplicate_packets = 0;
  std::uint64_t stale_packets = 0;      // of operations that are over here
  std::uint64_t early_packets = 0;      // of operations not started here yet, kept
  std::uint64_t early_dropped = 0;      // the same, no room
  std::uint64_t invalid_packets = 0;    // wrong in a field that is checked before the operation is known
  std::uint64_t forged_packets = 0;     // wrong seal
  std::uint64_t malformed_packets = 0;  // fields that do not fit the operation
};

}  // namespace optireduce
