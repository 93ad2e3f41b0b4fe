// Transpose AllReduce as data: who owns which shard, and how a shard is cut into chunks and packets.
// Pure functions; nothing here waits, sends or remembers.
//
//   bucket   the buffer of one operation, on every rank
//   shard    a contiguous piece of the bucket; its owner adds the contributions to it and decides the sum
//   chunk    up to 64 packets of a shard: the unit of sending, reducing and bookkeeping (one bit per packet)
//   packet   payload_bytes of a shard (the last one may be shorter)
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "geometry/packet_order.h"
#include "wire/intake.h"
#include "wire/packet.h"

namespace optireduce {

/// Packets of one chunk: as many as one GSO send can carry (64 KB and 64 segments).
constexpr std::uint32_t chunk_packets_for(std::uint32_t payload_bytes) {
  constexpr std::uint32_t kMaxBatch = 65'507;
  return std::clamp<std::uint32_t>(kMaxBatch / (payload_bytes + static_cast<std::uint32_t>(kHeaderBytes)), 1,
                                   64);
}

/// One shard's place in the bucket and its cut into packets and chunks.
struct Shard {
  std::size_t begin = 0;  // byte offset in the bucket
  std::uint32_t bytes = 0;
  std::uint32_t payload_bytes = 1;
  std::uint32_t chunk_packets = 1;
  PacketOrder order;

  std::uint32_t packets() const { return (bytes + payload_bytes - 1) / payload_bytes; }
  std::uint32_t chunks() const { return (packets() + chunk_packets - 1) / chunk_packets; }
  std::uint32_t packets_in(std::uint32_t chunk) const {
    return std::min(chunk_packets, packets() - chunk * chunk_packets);
  }
  std::uint64_t full_mask(std::uint32_t chunk) const { return mask_of(0, packets_in(chunk)); }
  /// On the wire; all packets before it fill the bytes before it.
  std::uint32_t offset_of(std::uint32_t packet) const { return packet * payload_bytes; }
  /// In memory, from the beginning of the shard.
  std::uint32_t place_of(std::uint32_t packet) const {
    return order.place_of(packet, payload_bytes, bytes - order.full * payload_bytes);
  }
  std::uint32_t length_of(std::uint32_t packet) const {
    return std::min(payload_bytes, bytes - offset_of(packet));
  }
  std::uint32_t bytes_of(std::uint32_t chunk, std::uint64_t mask) const;
  /// Whether a run's place and lengths are those of packets of one chunk of the shard.
  bool fits(const ReceivedRun& run) const;
  /// Calls visit(packet) for every bit of a chunk that is set.
  template <typename Visit>
  void for_each_packet(std::uint32_t chunk, std::uint64_t bits, Visit visit) const {
    for (; bits != 0; bits &= bits - 1)
      visit(chunk * chunk_packets + static_cast<std::uint32_t>(std::countr_zero(bits)));
  }

  /// Bits first .. first+count-1.
  static constexpr std::uint64_t mask_of(std::uint32_t first, std::uint32_t count) {
    return (count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1) << first;
  }
};

/// The schedule of one operation.
class Schedule {
 public:
  /// `order_seed`: 0 leaves packets in the order in which they lie in memory.
  Schedule(const Descriptor& descriptor, std::uint64_t operation, Rank owners, std::uint32_t payload_bytes,
           std::uint64_t order_seed);

  /// Owners are places among the members. Ownership rotates with the operation, so that a bad path does not
  /// always hit the same weights.
  Rank owner_of(Rank shard) const { return static_cast<Rank>((shard + rotation_) % owners_); }
  Rank shard_of(Rank owner) const { return static_cast<Rank>((owner + owners_ - rotation_) % owners_); }

  Shard shard(Rank index) const;
  std::size_t bytes() const { return bytes_; }

  /// Largest bucket that packet offsets can address.
  static std::size_t max_bytes(Rank owners);

 private:
  Rank owners_;
  Rank rotation_;
  std::size_t bytes_;
  std::size_t shard_bytes_;
  std::uint32_t payload_bytes_;
  std::uint64_t order_seed_;
};

}  // namespace optireduce
