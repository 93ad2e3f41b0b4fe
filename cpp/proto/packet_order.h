// Which piece of a shard each packet carries. With a fixed order, what is lost at a deadline would be the end
// of the shard again and again, and the same weights would never be trained. A new order for every operation,
// equal on all ranks and in both stages, makes such losses as harmless as random ones: the two stages lose
// the same pieces, and all ranks miss the same ones.
#pragma once

#include <cstdint>
#include <numeric>

#include "proto/mix.h"

namespace optireduce {

/// Steps of one length around a circle: any run of packets is spread over the whole shard.
struct PacketOrder {
  std::uint32_t full = 0;         // packets of full length; one more may be shorter, and is sent last
  std::uint32_t step = 1;         // has no divisor in common with `full`
  std::uint32_t start = 0;        // piece of the first packet
  std::uint32_t short_piece = 0;  // the piece before which the shorter one lies

  /// As they lie in memory.
  static PacketOrder in_place(std::uint32_t full) { return {full, 1, 0, full}; }

  static PacketOrder shuffled(std::uint32_t full, std::uint64_t seed) {
    if (full < 2) return in_place(full);
    PacketOrder order{full, 1, 0, 0};
    order.start = static_cast<std::uint32_t>(mix(seed) % full);
    order.short_piece = static_cast<std::uint32_t>(mix(seed) % (full + 1));
    order.step = static_cast<std::uint32_t>(1 + mix(seed) % (full - 1));
    while (std::gcd(order.step, full) != 1) order.step = order.step % (full - 1) + 1;
    return order;
  }

  /// Where in its shard a packet's bytes lie, if the shorter one has so many.
  std::uint32_t place_of(std::uint32_t packet, std::uint32_t payload_bytes, std::uint32_t short_bytes) const {
    if (packet >= full) return short_piece * payload_bytes;
    const auto piece = static_cast<std::uint32_t>((std::uint64_t{packet} * step + start) % full);
    return piece * payload_bytes + (piece >= short_piece ? short_bytes : 0);
  }
};

}  // namespace optireduce
