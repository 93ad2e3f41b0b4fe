#include "proto/owned_shard.h"

#include <algorithm>
#include <bit>

#include "kernels/reduce.h"

namespace optireduce {

OwnedShard::OwnedShard(const Shard& shard, Rank me, Rank size, const Descriptor& descriptor, std::byte* data,
                       Time now)
    : shard_(shard),
      me_(me),
      size_(size),
      descriptor_(descriptor),
      data_(data + shard.begin),
      flows_(size, InboundFlow(shard, now)),
      acked_chunks_(size, 0),
      chunks_(shard.chunks()),
      sent_at_(shard.chunks(), 0),
      inputs_(size, nullptr) {
  if (size == 1) reduced_packets_ = shard_.packets();  // alone: the sum is there already
}

std::uint32_t OwnedShard::accept(Time now, Rank from, std::uint32_t first_packet, const Run& run) {
  const std::uint32_t chunk = first_packet / shard_.chunk_packets;
  const std::uint32_t first_bit = first_packet % shard_.chunk_packets;
  const std::uint64_t fresh = flows_[from].accept(now, chunk, Shard::mask_of(first_bit, run.packets));
  if (fresh == 0) return 0;
  chunks_[chunk].pieces.push_back({run, from, first_bit});
  reduce_ready(chunk);
  return shard_.bytes_of(chunk, fresh);
}

void OwnedShard::reduce_ready(std::uint32_t index) {
  Chunk& chunk = chunks_[index];
  std::uint64_t ready = shard_.full_mask(index) & ~chunk.reduced;
  for (Rank rank = 0; rank < size_ && ready != 0; ++rank) {
    if (rank != me_) ready &= flows_[rank].received(index);
  }
  if (ready == 0) return;
  if ((chunk.reduced & ~chunk.sent) == 0) ready_.push_back(index);
  for (std::uint64_t rest = ready; rest != 0; rest &= rest - 1) {
    reduce_packet(index, static_cast<std::uint32_t>(std::countr_zero(rest)));
  }
  chunk.reduced |= ready;
  reduced_packets_ += static_cast<std::uint32_t>(std::popcount(ready));
  if (chunk.reduced == shard_.full_mask(index)) std::vector<Piece>().swap(chunk.pieces);
}

void OwnedShard::reduce_packet(std::uint32_t chunk, std::uint32_t bit) {
  const std::uint32_t packet = chunk * shard_.chunk_packets + bit;
  std::byte* own = data_ + shard_.offset_of(packet);
  inputs_[me_] = own;
  for (const Piece& piece : chunks_[chunk].pieces) {
    if (bit >= piece.first_bit && bit - piece.first_bit < piece.run.packets) {
      inputs_[piece.from] = piece.run.payload(bit - piece.first_bit);
    }
  }
  const double divisor = descriptor_.op == ReduceOp::Mean ? static_cast<double>(size_) : 1.0;
  reduce(descriptor_.dtype, inputs_, divisor, own, shard_.length_of(packet) / size_of(descriptor_.dtype));
}

void OwnedShard::note_ack(Rank peer, std::uint32_t chunks) {
  acked_chunks_[peer] = std::clamp(chunks, acked_chunks_[peer], shard_.chunks());
}

bool OwnedShard::next_batch(OutgoingBatch& batch) {
  if (ready_.empty()) return false;
  const std::uint32_t index = ready_.front();
  Chunk& chunk = chunks_[index];
  const std::uint64_t unsent = chunk.reduced & ~chunk.sent;
  const auto first_bit = static_cast<std::uint32_t>(std::countr_zero(unsent));
  const auto packets = static_cast<std::uint32_t>(std::countr_one(unsent >> first_bit));
  chunk.sent |= Shard::mask_of(first_bit, packets);
  if (chunk.sent == chunk.reduced) ready_.pop_front();
  batch.shard = shard_;
  batch.first_packet = index * shard_.chunk_packets + first_bit;
  batch.packets = packets;
  batch.data = data_ + shard_.offset_of(batch.first_packet);
  return true;
}

void OwnedShard::stamp(std::uint32_t first_packet, std::uint32_t timestamp) {
  sent_at_[first_packet / shard_.chunk_packets] = timestamp;
}

std::uint64_t OwnedShard::to_repair(const RequestEntry& entry, const RequestContext& context) const {
  if (entry.chunk >= chunks_.size()) return 0;
  const auto repaired = repaired_at_.find({context.from, entry.chunk});
  const std::uint32_t sent_at = repaired != repaired_at_.end() ? repaired->second : sent_at_[entry.chunk];
  return context.is_lost(sent_at) ? entry.missing & chunks_[entry.chunk].sent : 0;
}

const std::byte* OwnedShard::chunk_data(std::uint32_t chunk) const {
  return data_ + shard_.offset_of(chunk * shard_.chunk_packets);
}

std::uint32_t OwnedShard::first_unacked_chunk() const {
  std::uint32_t first = shard_.chunks();
  for (Rank rank = 0; rank < size_; ++rank) {
    if (rank != me_) first = std::min(first, acked_chunks_[rank]);
  }
  return first;
}

}  // namespace optireduce
