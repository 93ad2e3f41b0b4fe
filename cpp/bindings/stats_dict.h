// The protocol's counters as a Python dict, under the names that users see.
#pragma once

#include <nanobind/nanobind.h>

#include "group/outcomes.h"

namespace optireduce {

inline nanobind::dict as_dict(const Stats& stats) {
  nanobind::dict d;
  d["operations"] = stats.operations;
  d["failed_operations"] = stats.failed_operations;
  d["bucket_bytes"] = stats.bucket_bytes;
  d["packets_sent"] = stats.packets_sent;
  d["payload_bytes_sent"] = stats.payload_bytes_sent;
  d["multicast_bytes_sent"] = stats.multicast_bytes_sent;
  d["multicast_fallbacks"] = stats.multicast_fallbacks;
  d["packets_received"] = stats.packets_received;
  d["payload_bytes_received"] = stats.payload_bytes_received;
  d["requests_sent"] = stats.requests_sent;
  d["requests_received"] = stats.requests_received;
  d["resent_bytes"] = stats.resent_bytes;
  d["repaired_bytes"] = stats.repaired_bytes;
  d["excluded_bytes"] = stats.excluded_bytes;
  d["carried_bytes"] = stats.carried_bytes;
  d["dropped_bytes"] = stats.dropped_bytes;
  d["void_bytes"] = stats.void_bytes;
  d["lost_bytes"] = stats.lost_bytes;
  d["views"] = stats.views;
  d["removals"] = stats.removals;
  d["suspicions"] = stats.suspicions;
  d["oversized_view_messages"] = stats.oversized_view_messages;
  d["other_view_packets"] = stats.other_view_packets;
  d["duplicate_packets"] = stats.duplicate_packets;
  d["stale_packets"] = stats.stale_packets;
  d["early_packets"] = stats.early_packets;
  d["early_dropped"] = stats.early_dropped;
  d["invalid_packets"] = stats.invalid_packets;
  d["forged_packets"] = stats.forged_packets;
  d["malformed_packets"] = stats.malformed_packets;
  return d;
}

}  // namespace optireduce
