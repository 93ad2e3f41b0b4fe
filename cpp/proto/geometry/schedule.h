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
#include <numeric>

#include "base/splitmix.h"
#include "wire/intake.h"

namespace optireduce {

/// Packets of one chunk: as many as one GSO send can carry (64 KB and 64 segments).
constexpr std::uint32_t chunk_packets_for(std::uint32_t payload_bytes) {
  constexpr std::uint32_t kMaxBatch = 65'507;
  return std::clamp<std::uint32_t>(kMaxBatch / (payload_bytes + static_cast<std::uint32_t>(kHeaderBytes)), 1,
                                   64);
}

/// Which piece of a shard each packet carries. With a fixed order, what is lost at a deadline would be the
/// end of the shard again and again, and the same weights would never be trained. A new order for every
/// operation, equal on all ranks and in both stages, makes such losses as harmless as random ones: the two
/// stages lose the same pieces, and all ranks miss the same ones.
///
/// Units of consecutive packets in another order, all of it turned around the shard. Within a unit memory
/// stays consecutive: copying single packets from everywhere would cost half of the speed.
struct PacketOrder {
  std::uint32_t full = 0;         // packets of full length; one more may be shorter, and is sent last
  std::uint32_t unit = 1;         // packets
  std::uint32_t step = 1;         // in units; has no divisor in common with their number
  std::uint32_t turn = 0;         // in packets
  std::uint32_t short_piece = 0;  // the piece before which the shorter one lies

  /// As they lie in memory.
  static PacketOrder in_place(std::uint32_t full) { return {full, 1, 1, 0, full}; }

  static PacketOrder shuffled(std::uint32_t full, std::uint32_t unit, std::uint64_t seed) {
    if (full < 2) return in_place(full);
    PacketOrder order{full, unit, 1, 0, 0};
    order.turn = static_cast<std::uint32_t>(splitmix64(seed) % full);
    order.short_piece = static_cast<std::uint32_t>(splitmix64(seed) % (full + 1));
    const std::uint32_t units = full / unit;
    if (units < 3) return order;
    order.step = static_cast<std::uint32_t>(1 + splitmix64(seed) % (units - 1));
    while (std::gcd(order.step, units) != 1) order.step = order.step % (units - 1) + 1;
    return order;
  }

  /// Where in its shard a packet's bytes lie, if the shorter one has so many.
  std::uint32_t place_of(std::uint32_t packet, std::uint32_t payload_bytes, std::uint32_t short_bytes) const {
    if (packet >= full) return short_piece * payload_bytes;
    const std::uint32_t units = full / unit;
    std::uint64_t piece = packet;
    if (packet < units * unit) piece = std::uint64_t{packet / unit} * step % units * unit + packet % unit;
    piece = (piece + turn) % full;
    return static_cast<std::uint32_t>(piece) * payload_bytes + (piece >= short_piece ? short_bytes : 0);
  }
};

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

/// The schedule of one operation. Of weighted means a packet carries the same piece of the bucket in every
/// operation, whoever the owners are: residuals are kept by piece, each with its own weight.
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
  bool same_pieces_;
  std::uint64_t order_seed_;
};

}  // namespace optireduce
