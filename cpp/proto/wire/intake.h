// Datagrams in: checks seals and headers, and joins packets that continue each other to runs.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/time.h"
#include "wire/packet.h"

namespace optireduce {

/// What a socket delivered: one packet, or several of equal length (the last may be shorter) in one buffer
/// (GRO).
struct Datagram {
  Rank from = 0;
  BufferRef buffer;
  std::uint32_t bytes = 0;  // where the last packet ends in the buffer
  std::uint32_t segment_bytes = 0;
  std::uint32_t begin = 0;  // where the first one begins
  bool group = false;       // came by multicast

  /// From one packet to the next.
  std::uint32_t stride() const { return std::max<std::uint32_t>(1, std::min(segment_bytes, bytes)); }
};

/// Consecutive packets of one shard that arrived in one buffer: the unit of receiving.
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

class Intake {
 public:
  Intake(const Seal& seal, Rank self, Rank size) : seal_(seal), self_(self), size_(size) {}

  /// No byte of a packet is believed before its seal has been checked.
  void open(const Datagram& datagram);
  /// Decodes the packet at `at` of that datagram and those behind it that continue it, and moves `at` past
  /// them. Nothing if the packet is bad, and whether it is forged.
  std::optional<ReceivedRun> next(const Datagram& datagram, std::uint32_t& at, bool& forged) const;

 private:
  const Seal& seal_;
  Rank self_, size_;
  std::vector<bool> genuine_;  // by packet
};

inline void Intake::open(const Datagram& datagram) {
  const std::span packets(datagram.buffer.data() + datagram.begin, datagram.bytes - datagram.begin);
  seal_.open_all(packets, datagram.stride(), genuine_);
}

inline std::optional<ReceivedRun> Intake::next(const Datagram& datagram, std::uint32_t& at,
                                               bool& forged) const {
  const std::uint32_t stride = datagram.stride();
  const auto packet_at = [&](std::uint32_t where) {
    return std::span<const std::byte>(datagram.buffer.data() + where,
                                      std::min(stride, datagram.bytes - where));
  };
  const auto is_genuine = [&](std::uint32_t where) { return genuine_[(where - datagram.begin) / stride]; };
  const std::uint32_t begin = std::exchange(at, at + stride);
  forged = !is_genuine(begin) && packet_at(begin).size() >= kHeaderBytes;
  if (!is_genuine(begin)) return std::nullopt;
  const std::optional<Header> header = decode(packet_at(begin), size_);
  if (!header || header->sender != datagram.from || header->sender == self_) return std::nullopt;
  ReceivedRun run{*header, 0, datagram.buffer, begin, stride, 1, header->length, {}};
  while (is_data(run.header.type) && at < datagram.bytes && run.last_length == run.header.length &&
         is_genuine(at)) {
    const std::span<const std::byte> next = packet_at(at);
    if (!continues(run.header, next, run.header.offset + run.packets * run.header.length)) break;
    run.last_length = static_cast<std::uint32_t>(next.size() - kHeaderBytes);
    ++run.packets;
    at += stride;
  }
  return run;
}

}  // namespace optireduce
