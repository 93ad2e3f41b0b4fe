// How many samples are behind a contribution: one weight for all of it, unless residuals went along. A
// residual has samples of its own, so then each piece has its weight. A piece is what a packet carries;
// pieces of a weighted mean are the same in every operation on a bucket (geometry/schedule.h).
#pragma once

#include <cstddef>
#include <vector>

#include "geometry/schedule.h"

namespace optireduce {

class Weights {
 public:
  Weights() = default;
  explicit Weights(std::uint32_t all) : all_(all) {}

  /// Whether there is nothing to contribute: no samples, and no residual either.
  bool abstains() const { return all_ == 0 && by_piece_.empty(); }
  /// Of all pieces without a residual.
  std::uint32_t usual() const { return all_; }
  std::uint32_t of(const Shard& shard, std::uint32_t packet) const {
    return by_piece_.empty() ? all_ : by_piece_[piece_of(shard, packet)];
  }
  /// How many of `most` packets from `first` on have the same weight.
  std::uint32_t equal_run(const Shard& shard, std::uint32_t first, std::uint32_t most) const {
    std::uint32_t packets = by_piece_.empty() ? most : 1;
    while (packets < most && of(shard, first + packets) == of(shard, first)) ++packets;
    return packets;
  }

  /// From now on every piece of a bucket of so many bytes may have its own.
  void divide(std::size_t bucket_bytes, std::size_t piece_bytes) {
    if (by_piece_.empty()) by_piece_.assign((bucket_bytes + piece_bytes - 1) / piece_bytes, all_);
  }
  /// Only after divide().
  void add(const Shard& shard, std::uint32_t packet, std::uint32_t weight) {
    by_piece_[piece_of(shard, packet)] += weight;
  }

 private:
  static std::size_t piece_of(const Shard& shard, std::uint32_t packet) {
    return (shard.begin + shard.place_of(packet)) / shard.payload_bytes;
  }

  std::uint32_t all_ = 1;
  std::vector<std::uint32_t> by_piece_;  // empty: all are equal
};

}  // namespace optireduce
