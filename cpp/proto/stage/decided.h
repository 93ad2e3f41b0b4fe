// The decided packets of one shard: in the order in which they were decided, and who is in each.
#pragma once

#include <algorithm>
#include <bit>
#include <vector>

#include "geometry/schedule.h"

namespace optireduce {

class Decided {
 public:
  Decided() = default;
  /// `usual`: the detail of nearly all packets, which is not stored (everybody is included, or nothing lost).
  explicit Decided(std::uint64_t usual) : usual_(usual) {}

  void add(const Shard& shard, std::uint32_t chunk, std::uint64_t bits);
  void set_detail(const Shard& shard, std::uint32_t packet, std::uint64_t detail) {
    if (detail == usual_ && details_.empty()) return;
    if (details_.empty()) details_.assign(shard.packets(), usual_);
    details_[packet] = detail;
  }

  /// What headers say of a decision: see Header::detail.
  std::uint64_t detail(std::uint32_t packet) const { return details_.empty() ? usual_ : details_[packet]; }
  std::uint64_t usual() const { return usual_; }
  bool all_usual() const { return details_.empty(); }
  /// Packets from `first` on, at most `most`, with the same detail.
  std::uint32_t equal_run(std::uint32_t first, std::uint32_t most) const {
    if (details_.empty()) return most;
    std::uint32_t packets = 1;
    while (packets < most && details_[first + packets] == details_[first]) ++packets;
    return packets;
  }

  std::uint32_t packets() const { return packets_; }
  /// The packets from a position of the order on that lie one behind the other: first, and how many.
  struct Stretch {
    std::uint32_t first_packet;
    std::uint32_t packets;
  };
  Stretch from(std::uint32_t position) const;

 private:
  /// Consecutive packets of one chunk that were decided one after the other.
  struct Entry {
    std::uint32_t first_packet;
    std::uint32_t packets;
    std::uint32_t position;  // packets before it
  };

  std::uint64_t usual_ = 0;
  std::vector<Entry> order_;
  std::uint32_t packets_ = 0;
  std::vector<std::uint64_t> details_;  // by packet; empty while all are usual
};

inline void Decided::add(const Shard& shard, std::uint32_t chunk, std::uint64_t bits) {
  while (bits != 0) {
    const auto first_bit = static_cast<std::uint32_t>(std::countr_zero(bits));
    const auto packets = static_cast<std::uint32_t>(std::countr_one(bits >> first_bit));
    const std::uint32_t first = chunk * shard.chunk_packets + first_bit;
    const bool continues =
        !order_.empty() && first_bit != 0 && order_.back().first_packet + order_.back().packets == first;
    if (continues) {
      order_.back().packets += packets;
    } else {
      order_.push_back({first, packets, packets_});
    }
    packets_ += packets;
    bits &= ~Shard::mask_of(first_bit, packets);
  }
}

inline Decided::Stretch Decided::from(std::uint32_t position) const {
  const auto next =
      std::upper_bound(order_.begin(), order_.end(), position,
                       [](std::uint32_t wanted, const Entry& entry) { return wanted < entry.position; });
  const Entry& entry = *(next - 1);
  const std::uint32_t skipped = position - entry.position;
  return {entry.first_packet + skipped, entry.packets - skipped};
}

}  // namespace optireduce
