// Consecutive packets of one shard that arrived in one buffer: the unit of receiving.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "proto/buffer.h"
#include "proto/packet.h"
#include "proto/schedule.h"
#include "proto/time.h"

namespace optireduce {

struct Run {
  Header header;                // of the first packet
  std::uint64_t operation = 0;  // header.operation, widened
  BufferRef buffer;
  std::uint32_t at = 0;      // where the first packet's header lies in the buffer
  std::uint32_t stride = 0;  // from one packet to the next
  std::uint32_t packets = 0;
  std::uint32_t last_length = 0;  // payload of the last packet; all others have header.length
  Time received_at;

  const std::byte* payload(std::uint32_t index) const {
    return buffer.data() + at + index * stride + kHeaderBytes;
  }
  std::uint32_t payload_bytes() const { return (packets - 1) * header.length + last_length; }
  std::uint32_t wire_bytes() const {
    return (packets - 1) * stride + static_cast<std::uint32_t>(kHeaderBytes) + last_length;
  }
};

/// Whether a run's place and lengths are those of packets of one chunk of the shard.
inline bool fits(const Shard& shard, const Run& run) {
  if (run.header.offset >= shard.bytes || run.header.offset % shard.payload_bytes != 0) return false;
  const std::uint32_t first = run.header.offset / shard.payload_bytes;
  const std::uint32_t last = first + run.packets - 1;
  if (last >= shard.packets() || first / shard.chunk_packets != last / shard.chunk_packets) return false;
  return run.last_length == shard.length_of(last) &&
         (run.packets == 1 || run.header.length == shard.payload_bytes);
}

/// A run that is kept should not hold a buffer many times its size: moves it to one that fits, if that is
/// smaller.
inline Run compacted(const Run& run, BufferPool& pool) {
  const std::uint32_t bytes = run.wire_bytes();
  if (bytes > BufferPool::kMedium || run.buffer.capacity() <= BufferPool::kSmall) return run;
  Run moved = run;
  moved.buffer = pool.take(bytes);
  moved.at = 0;
  std::memcpy(moved.buffer.data(), run.buffer.data() + run.at, bytes);
  return moved;
}

}  // namespace optireduce
