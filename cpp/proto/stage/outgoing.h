// Data packets that are to be sent: one batch is consecutive packets of one chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/timestamp.h"
#include "geometry/schedule.h"
#include "wire/packet.h"

namespace optireduce {

struct OutgoingBatch {
  PacketType type = PacketType::Contribution;
  Scope scope = Scope::All;
  std::uint64_t operation = 0;
  Descriptor descriptor;
  std::uint32_t stream = 0;
  Rank shard_index = 0;
  Shard shard;
  std::uint32_t first_packet = 0;  // in the shard
  std::uint32_t packets = 0;
  const std::byte* data = nullptr;  // of the shard
  std::uint64_t detail = 0;         // see Header
  std::uint8_t flags = 0;
  std::vector<Rank> to;
  bool group = false;  // sent once, to the multicast group, for all of them

  std::span<const std::byte> payload(std::uint32_t packet) const {
    return {data + shard.place_of(packet), shard.length_of(packet)};
  }
  bool resent() const { return (flags & kFlagResent) != 0; }
  std::uint32_t bytes() const {
    const std::uint32_t last = first_packet + packets - 1;
    return shard.offset_of(last) + shard.length_of(last) - shard.offset_of(first_packet);
  }
};

/// Packets to send again to one peer that missed them.
struct Repair {
  PacketType type = PacketType::Contribution;
  Scope scope = Scope::All;
  std::uint64_t operation = 0;
  Rank to = 0;
  Rank shard = 0;
  std::uint32_t chunk = 0;
  std::uint64_t packets = 0;
};

/// Who asked, and what it proves about packets sent earlier.
struct RequestContext {
  Rank from = 0;  // its place among the operation's members
  Rank rank = 0;
  std::uint32_t newest = 0;   // the latest of our timestamps that the asker has seen
  std::uint32_t now = 0;      // our clock as a timestamp
  std::uint32_t min_age = 0;  // microseconds after which a packet is no longer under way

  /// Networks keep order nearly always: what was sent no later than something that arrived, or long ago, is
  /// lost.
  bool is_lost(std::uint32_t sent_at) const {
    return not_before(newest, sent_at) || not_before(now, sent_at + min_age);
  }
};

/// The last percent of a shard's packets, at least one, carries a mark.
inline bool is_last_percent(const Shard& shard, std::uint32_t end) {
  return end + shard.packets() / 100 >= shard.packets();
}

}  // namespace optireduce
