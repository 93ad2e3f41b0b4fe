#include "geometry/schedule.h"

#include <bit>

namespace optireduce {
namespace {

constexpr std::size_t kShardAlign = 64;  // a cache line: two owners never share one

/// Small buckets have fewer owners rather than packets that are less than half full: fewer packets, less
/// latency.
constexpr std::size_t kLeastFilling = 2;

/// Makes the seeds of neighbouring operations differ in many bits.
constexpr std::uint64_t kOrderFactor = 0xd6e8'feb8'6659'fd93;

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::size_t shared_out(std::size_t bytes, Rank size, std::size_t payload_bytes, bool whole_packets) {
  const std::size_t least = std::max((bytes + size - 1) / size, payload_bytes / kLeastFilling);
  return round_up(least, whole_packets ? payload_bytes : kShardAlign);
}

/// Spread evenly whatever the number of operations in a step is: a step with as many operations as ranks
/// would meet one rotation only if it were a remainder.
Rank rotation_of(std::uint64_t operation, Rank owners) {
  const std::uint32_t spread = static_cast<std::uint32_t>(operation) * 2'654'435'769u;
  return static_cast<Rank>(std::uint64_t{spread} * owners >> 32);
}

}  // namespace

std::uint32_t Shard::bytes_of(std::uint32_t chunk, std::uint64_t mask) const {
  std::uint32_t total = static_cast<std::uint32_t>(std::popcount(mask)) * payload_bytes;
  const std::uint32_t last = packets() - 1;
  const bool has_last = last / chunk_packets == chunk && (mask >> (last % chunk_packets) & 1) != 0;
  if (has_last) total -= payload_bytes - length_of(last);
  return total;
}

bool Shard::fits(const ReceivedRun& run) const {
  if (run.header.offset >= bytes || run.header.offset % payload_bytes != 0) return false;
  const std::uint32_t first = run.header.offset / payload_bytes;
  const std::uint32_t last = first + run.packets - 1;
  if (last >= packets() || first / chunk_packets != last / chunk_packets) return false;
  return run.last_length == length_of(last) && (run.packets == 1 || run.header.length == payload_bytes);
}

Schedule::Schedule(const Descriptor& descriptor, std::uint64_t operation, Rank owners,
                   std::uint32_t payload_bytes, std::uint64_t order_seed)
    : owners_(owners),
      rotation_(descriptor.op == ReduceOp::Gather ? Rank{0} : rotation_of(operation, owners)),
      bytes_(std::size_t{descriptor.elements} * size_of(descriptor.dtype)),
      shard_bytes_(descriptor.op == ReduceOp::Gather
                       ? bytes_ / owners
                       : shared_out(bytes_, owners, payload_bytes, descriptor.op == ReduceOp::WeightedMean)),
      payload_bytes_(payload_bytes),
      same_pieces_(descriptor.op == ReduceOp::WeightedMean),
      order_seed_(order_seed == 0 ? 0 : (order_seed ^ (operation + 1) * kOrderFactor) | 1) {}

Shard Schedule::shard(Rank index) const {
  const std::size_t begin = std::min(bytes_, index * shard_bytes_);
  const std::size_t end = std::min(bytes_, begin + shard_bytes_);
  const auto bytes = static_cast<std::uint32_t>(end - begin);
  const std::uint32_t full = bytes / payload_bytes_;
  const std::uint32_t unit = chunk_packets_for(payload_bytes_);
  PacketOrder order =
      order_seed_ == 0 ? PacketOrder::in_place(full) : PacketOrder::shuffled(full, unit, order_seed_);
  if (same_pieces_) order.short_piece = full;
  return {begin, bytes, payload_bytes_, unit, order};
}

std::size_t Schedule::max_bytes(Rank owners) {
  constexpr std::size_t kMaxShard = std::size_t{0xffff'ffff} - 65'536;
  return kMaxShard / kShardAlign * kShardAlign * owners;
}

}  // namespace optireduce
