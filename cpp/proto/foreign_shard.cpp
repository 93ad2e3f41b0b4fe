#include "proto/foreign_shard.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/reduce.h"

namespace optireduce {

ForeignShard::ForeignShard(const Shard& shard, std::byte* data, Time now)
    : shard_(shard), data_(data + shard.begin), flow_(shard, now), sent_(shard.chunks()) {}

bool ForeignShard::next_batch(const SendWindow& window, OutgoingBatch& batch) {
  if (all_sent()) return false;
  const std::uint32_t chunk_end = (next_packet_ / shard_.chunk_packets + 1) * shard_.chunk_packets;
  const std::uint32_t end = std::min({shard_.packets(), chunk_end, next_packet_ + window.batch_packets()});
  const std::uint32_t bytes =
      shard_.offset_of(end - 1) + shard_.length_of(end - 1) - shard_.offset_of(next_packet_);
  if (!window.admits(bytes)) return false;
  batch.shard = shard_;
  batch.first_packet = next_packet_;
  batch.packets = end - next_packet_;
  batch.data = data_ + shard_.offset_of(next_packet_);
  batch.ack = flow_.whole_chunks();
  next_packet_ = end;
  sent_bytes_ += bytes;
  return true;
}

void ForeignShard::stamp(std::uint32_t first_packet, std::uint32_t timestamp, bool resent) {
  Sent& sent = sent_[first_packet / shard_.chunk_packets];
  sent = {timestamp, sent.again || resent};
}

std::uint64_t ForeignShard::to_repair(const RequestEntry& entry, const RequestContext& context) const {
  if (entry.chunk >= sent_.size() || entry.chunk * shard_.chunk_packets >= next_packet_) return 0;
  const std::uint32_t sent_packets =
      std::min(shard_.packets_in(entry.chunk), next_packet_ - entry.chunk * shard_.chunk_packets);
  if (!context.is_lost(sent_[entry.chunk].at)) return 0;
  // What came back reduced has been overwritten, and its owner cannot miss it.
  return entry.missing & Shard::mask_of(0, sent_packets) & ~flow_.received(entry.chunk);
}

const std::byte* ForeignShard::chunk_data(std::uint32_t chunk) const {
  return data_ + shard_.offset_of(chunk * shard_.chunk_packets);
}

std::uint32_t ForeignShard::accept(Time now, std::uint32_t first_packet, const Run& run, bool stream) {
  const std::uint32_t chunk = first_packet / shard_.chunk_packets;
  const std::uint32_t first_bit = first_packet % shard_.chunk_packets;
  const std::uint64_t fresh = flow_.accept(now, chunk, Shard::mask_of(first_bit, run.packets));
  for (std::uint64_t rest = fresh; rest != 0; rest &= rest - 1) {
    const auto bit = static_cast<std::uint32_t>(std::countr_zero(rest));
    const std::uint32_t packet = chunk * shard_.chunk_packets + bit;
    std::byte* place = data_ + shard_.offset_of(packet);
    const std::byte* payload = run.payload(bit - first_bit);
    if (stream) {
      copy_streaming(place, payload, shard_.length_of(packet));
    } else {
      std::memcpy(place, payload, shard_.length_of(packet));
    }
  }
  if (stream) finish_streaming();
  const std::uint32_t bytes = fresh == 0 ? 0 : shard_.bytes_of(chunk, fresh);
  received_bytes_ += bytes;
  return bytes;
}

std::optional<std::uint32_t> ForeignShard::clean_sent_at(std::uint32_t chunk) const {
  if (sent_[chunk].again) return std::nullopt;
  return sent_[chunk].at;
}

}  // namespace optireduce
