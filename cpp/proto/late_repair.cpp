#include "proto/late_repair.h"

#include <bit>
#include <cmath>

#include "kernels/finite.h"

namespace optireduce {
namespace {

/// A mean over ranks whose gradients had nothing in common would be smaller than ours by this factor; one of
/// equal gradients would be ours. So the loan points the right way, and is never much larger than what it
/// stands for. Zero: nothing is lent, because our place does not hold what we contributed to a mean of all.
double lent_share(const Operation& operation) {
  const bool can_lend =
      operation.descriptor().op == ReduceOp::Mean && !operation.is_part() && !operation.abstains();
  return can_lend ? 1.0 / std::sqrt(operation.size()) : 0.0;
}

}  // namespace

void LateRepair::want(const Operation& operation) {
  if (operation.stream() == 0) return;
  for (Rank owner = 0; owner < operation.size(); ++owner) {
    const ForeignShard& foreign = operation.foreign(owner);
    if (!operation.still_open(owner)) continue;
    Wanted wanted{operation.stream(),
                  operation.descriptor(),
                  operation.foreign_index(owner),
                  foreign.shard(),
                  foreign.flow(),
                  lent_share(operation),
                  {}};
    note_loans(operation, wanted);
    wanted.flow.hurry();
    wanted_.emplace(Key{operation.number(), owner}, std::move(wanted));
  }
}

void LateRepair::note_loans(const Operation& operation, Wanted& wanted) {
  if (wanted.lent_share == 0) return;
  const Shard& shard = wanted.shard;
  wanted.flow.for_each_hole([&](std::uint32_t first, std::uint32_t packets) {
    for (std::uint32_t packet = first; packet < first + packets; ++packet) {
      const std::uint32_t bytes = shard.length_of(packet);
      if (2 * (bytes_ + bytes) > limit_bytes_) return;  // the other half is for packets that come
      Bytes ours = operation.contribution({shard.begin + shard.place_of(packet), bytes});
      if (!all_finite(wanted.descriptor.dtype, ours.data(), bytes / size_of(wanted.descriptor.dtype)))
        continue;
      wanted.loans.emplace(packet, std::move(ours));
      bytes_ += bytes;
    }
  });
}

void LateRepair::lend(const Operation& operation) const {
  for (auto entry = wanted_.lower_bound({operation.number(), 0});
       entry != wanted_.end() && entry->first.first == operation.number(); ++entry) {
    const Wanted& wanted = entry->second;
    for (const auto& [packet, ours] : wanted.loans)
      operation.correct({wanted.shard.begin + wanted.shard.place_of(packet), ours.size()}, ours.data(),
                        wanted.lent_share);
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
  if (wanted.flow.complete()) forget(found);
  return bytes;
}

void LateRepair::keep(Wanted& wanted, std::uint32_t packet, const std::byte* payload) {
  const std::uint32_t bytes = wanted.shard.length_of(packet);
  if (bytes_ + bytes > limit_bytes_) return;
  Correction& correction = corrections_[wanted.stream];
  if (correction.descriptor != wanted.descriptor) {  // the buffer has changed since
    for (const Piece& piece : correction.pieces) bytes_ -= piece.data.size();
    correction = {wanted.descriptor, {}};
  }
  const std::size_t begin = wanted.shard.begin + wanted.shard.place_of(packet);
  correction.pieces.push_back({begin, {payload, payload + bytes}, 1.0});
  bytes_ += bytes;
  if (auto loan = wanted.loans.extract(packet); !loan.empty())
    correction.pieces.push_back({begin, std::move(loan.mapped()), -wanted.lent_share});
}

std::uint64_t LateRepair::correct(const Operation& operation) {
  const auto found = corrections_.find(operation.stream());
  if (operation.stream() == 0 || found == corrections_.end()) return 0;
  const bool same_buffer = found->second.descriptor == operation.descriptor();
  std::uint64_t corrected = 0;
  for (const Piece& piece : found->second.pieces) {
    bytes_ -= piece.data.size();
    if (!same_buffer) continue;
    operation.correct({piece.begin, piece.data.size()}, piece.data.data(), piece.factor);
    if (piece.factor == 1.0) corrected += piece.data.size();
  }
  corrections_.erase(found);
  return corrected;
}

void LateRepair::give_up(std::uint64_t operation, Rank owner) {
  if (const auto found = wanted_.find({operation, owner}); found != wanted_.end()) forget(found);
}

void LateRepair::give_up_on(Rank owner) {
  for (auto entry = wanted_.begin(); entry != wanted_.end();)
    entry = entry->first.second == owner ? forget(entry) : std::next(entry);
}

void LateRepair::forget_below(std::uint64_t operation) {
  while (!wanted_.empty() && wanted_.begin()->first.first < operation) forget(wanted_.begin());
}

/// What was lent for packets that never come stays where it is.
LateRepair::Entries::iterator LateRepair::forget(Entries::iterator wanted) {
  for (const auto& [packet, loan] : wanted->second.loans) bytes_ -= loan.size();
  return wanted_.erase(wanted);
}

}  // namespace optireduce
