// Consecutive packets of one shard that arrived in one buffer: the unit of receiving.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/buffer.h"
#include "base/time.h"
#include "wire/packet.h"

namespace optireduce {

struct ReceivedRun {
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

/// A run that is kept should not hold a buffer many times its size: moves it to one that fits, if that is
/// smaller.
inline ReceivedRun compacted(const ReceivedRun& run, BufferPool& pool) {
  const std::uint32_t bytes = run.wire_bytes();
  if (bytes > BufferPool::kMedium || run.buffer.capacity() <= BufferPool::kSmall) return run;
  ReceivedRun moved = run;
  moved.buffer = pool.take(bytes);
  moved.at = 0;
  std::memcpy(moved.buffer.data(), run.buffer.data() + run.at, bytes);
  return moved;
}

}  // namespace optireduce
