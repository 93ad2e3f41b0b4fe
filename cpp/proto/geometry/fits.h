// Whether received packets are packets of a shard.
#pragma once

#include "geometry/schedule.h"
#include "wire/received_run.h"

namespace optireduce {

/// Whether a run's place and lengths are those of packets of one chunk of the shard.
inline bool fits(const Shard& shard, const ReceivedRun& run) {
  if (run.header.offset >= shard.bytes || run.header.offset % shard.payload_bytes != 0) return false;
  const std::uint32_t first = run.header.offset / shard.payload_bytes;
  const std::uint32_t last = first + run.packets - 1;
  if (last >= shard.packets() || first / shard.chunk_packets != last / shard.chunk_packets) return false;
  return run.last_length == shard.length_of(last) &&
         (run.packets == 1 || run.header.length == shard.payload_bytes);
}

}  // namespace optireduce
