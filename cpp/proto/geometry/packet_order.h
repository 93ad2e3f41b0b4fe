// Which piece of a shard each packet carries. With a fixed order, what is lost at a deadline would be the end
// of the shard again and again, and the same weights would never be trained. A new order for every operation,
// equal on all ranks and in both stages, makes such losses as harmless as random ones: the two stages lose
// the same pieces, and all ranks miss the same ones.
#pragma once

#include <cstdint>
#include <numeric>

#include "base/splitmix.h"

namespace optireduce {

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

}  // namespace optireduce
