#include "proto/late_repair.h"

#include <bit>

namespace optireduce {

void LateRepair::want(const Operation& operation) {
  if (operation.stream() == 0) return;
  for (Rank owner = 0; owner < operation.size(); ++owner) {
    const ForeignShard& foreign = operation.foreign(owner);
    if (!operation.still_open(owner)) continue;
    Wanted wanted{operation.stream(), operation.descriptor(), operation.foreign_index(owner), foreign.shard(),
                  foreign.flow()};
    wanted.flow.hurry();
    wanted_.emplace(Key{operation.number(), owner}, std::move(wanted));
  }
}

InboundFlow* LateRepair::find(std::uint64_t operation, Rank owner) {
  const auto found = wanted_.find({operation, owner});
  return found == wanted_.end() ? nullptr : &found->second.flow;
}

std::uint32_t LateRepair::accept(Time now, const Run& run) {
  const auto found = wanted_.find({run.operation, run.header.sender});
  if (found == wanted_.end() || run.header.type != PacketType::Reduced) return 0;
  Wanted& wanted = found->second;
  const Shard& shard = wanted.shard;
  if (run.header.descriptor != wanted.descriptor || run.header.shard != wanted.shard_index ||
      !fits(shard, run))
    return 0;
  const std::uint32_t first = run.header.offset / shard.payload_bytes;
  const std::uint32_t first_bit = first % shard.chunk_packets;
  const std::uint32_t chunk = first / shard.chunk_packets;
  const std::uint64_t fresh = wanted.flow.accept(now, chunk, Shard::mask_of(first_bit, run.packets));
  for (std::uint64_t rest = fresh; rest != 0; rest &= rest - 1) {
    const auto bit = static_cast<std::uint32_t>(std::countr_zero(rest));
    keep(wanted, chunk * shard.chunk_packets + bit, run.payload(bit - first_bit));
  }
  const std::uint32_t bytes = fresh == 0 ? 0 : shard.bytes_of(chunk, fresh);
  if (wanted.flow.complete()) wanted_.erase(found);
  return bytes;
}

void LateRepair::keep(const Wanted& wanted, std::uint32_t packet, const std::byte* payload) {
  const std::uint32_t bytes = wanted.shard.length_of(packet);
  if (bytes_ + bytes > limit_bytes_) return;
  Correction& correction = corrections_[wanted.stream];
  if (correction.descriptor != wanted.descriptor) {  // the buffer has changed since
    for (const Piece& piece : correction.pieces) bytes_ -= piece.data.size();
    correction = {wanted.descriptor, {}};
  }
  correction.pieces.push_back(
      {wanted.shard.begin + wanted.shard.place_of(packet), {payload, payload + bytes}});
  bytes_ += bytes;
}

std::uint64_t LateRepair::correct(const Operation& operation) {
  const auto found = corrections_.find(operation.stream());
  if (operation.stream() == 0 || found == corrections_.end()) return 0;
  const bool same_buffer = found->second.descriptor == operation.descriptor();
  std::uint64_t corrected = 0;
  for (const Piece& piece : found->second.pieces) {
    bytes_ -= piece.data.size();
    if (!same_buffer) continue;
    operation.correct({piece.begin, piece.data.size()}, piece.data.data());
    corrected += piece.data.size();
  }
  corrections_.erase(found);
  return corrected;
}

void LateRepair::give_up(std::uint64_t operation, Rank owner) {
  wanted_.erase({operation, owner});
}

void LateRepair::give_up_on(Rank owner) {
  std::erase_if(wanted_, [&](const auto& entry) { return entry.first.second == owner; });
}

void LateRepair::forget_below(std::uint64_t operation) {
  wanted_.erase(wanted_.begin(), wanted_.lower_bound({operation, 0}));
}

}  // namespace optireduce
