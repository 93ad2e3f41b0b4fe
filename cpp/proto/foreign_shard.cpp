#include "proto/foreign_shard.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/reduce.h"

namespace optireduce {
namespace {

/// The last percent of the packets, at least one, carries the mark.
bool is_last_percent(const Shard& shard, std::uint32_t end) {
  return end + shard.packets() / 100 >= shard.packets();
}

}  // namespace

ForeignShard::ForeignShard(const Shard& shard, std::byte* data, const Wide& wide, Time now, bool returns)
    : shard_(shard), data_(data + shard.begin), wide_(wide), sent_at_(shard.packets(), 0) {
  if (returns) flow_ = InboundFlow(shard, now);
}

bool ForeignShard::next_batch(const SendWindow& window, OutgoingBatch& batch) {
  // What its owner has reduced without us is overwritten here, and late there.
  while (!all_sent() && answered(next_packet_)) ++next_packet_;
  if (all_sent()) return false;
  const std::uint32_t chunk_end = (next_packet_ / shard_.chunk_packets + 1) * shard_.chunk_packets;
  const std::uint32_t most = std::min({shard_.packets(), chunk_end, next_packet_ + window.batch_packets()});
  std::uint32_t end = next_packet_ + 1;
  while (end < most && !answered(end)) ++end;
  batch.shard = shard_;
  batch.first_packet = next_packet_;
  batch.packets = end - next_packet_;
  if (!window.admits(PacketType::Contribution, batch.bytes())) return false;
  batch.data = data_;
  batch.data_begin = 0;
  batch.ack = flow_.whole_chunks();
  batch.flags = is_last_percent(shard_, end) ? kFlagLast : std::uint8_t{0};
  next_packet_ = end;
  if (wide_) narrow(batch);
  return true;
}

void ForeignShard::narrow(const OutgoingBatch& batch) {
  for (std::uint32_t packet = batch.first_packet; packet < batch.first_packet + batch.packets; ++packet)
    wide_.narrow(place_of(packet), data_ + shard_.place_of(packet));
}

void ForeignShard::stamp(const OutgoingBatch& batch, std::uint32_t timestamp) {
  std::fill_n(sent_at_.begin() + batch.first_packet, batch.packets, timestamp);
  last_sent_at_ = timestamp;
  sent_any_ = true;
}

std::uint64_t ForeignShard::to_repair(const RequestEntry& entry, const RequestContext& context) const {
  if (entry.chunk >= shard_.chunks()) return 0;
  std::uint64_t lost = 0;
  // What came back reduced has been overwritten, and its owner does not miss it.
  const std::uint64_t wanted = entry.missing & shard_.full_mask(entry.chunk) & ~flow_.received(entry.chunk);
  for (std::uint64_t rest = wanted; rest != 0; rest &= rest - 1) {
    const auto bit = static_cast<std::uint32_t>(std::countr_zero(rest));
    const std::uint32_t packet = entry.chunk * shard_.chunk_packets + bit;
    if (packet >= next_packet_) break;
    // To an owner that was absent nothing was sent, so nothing was rounded: there is nothing to send again.
    if (wide_ && sent_at_[packet] == 0) continue;
    if (context.is_lost(sent_at_[packet])) lost |= std::uint64_t{1} << bit;
  }
  return lost;
}

std::uint32_t ForeignShard::accept(Time now, std::uint32_t first_packet, const Run& run, bool stream) {
  const std::uint32_t chunk = first_packet / shard_.chunk_packets;
  const std::uint32_t first_bit = first_packet % shard_.chunk_packets;
  const std::uint64_t fresh = flow_.accept(now, chunk, Shard::mask_of(first_bit, run.packets));
  for (std::uint64_t rest = fresh; rest != 0; rest &= rest - 1) {
    const auto bit = static_cast<std::uint32_t>(std::countr_zero(rest));
    const std::uint32_t packet = chunk * shard_.chunk_packets + bit;
    put(packet, run.payload(bit - first_bit), stream);
  }
  if (stream || wide_) finish_streaming();
  return fresh == 0 ? 0 : shard_.bytes_of(chunk, fresh);
}

void ForeignShard::put(std::uint32_t packet, const std::byte* payload, bool stream) {
  std::byte* place = data_ + shard_.place_of(packet);
  if (wide_) {
    wide_.widen(place_of(packet), payload);
  } else if (stream) {
    copy_streaming(place, payload, shard_.length_of(packet));
  } else {
    std::memcpy(place, payload, shard_.length_of(packet));
  }
}

void ForeignShard::zero_missing() {
  flow_.for_each_hole([&](std::uint32_t first, std::uint32_t packets) {
    for (std::uint32_t packet = first; packet < first + packets; ++packet) {
      if (wide_) {
        wide_.zero(place_of(packet));
      } else {
        std::memset(data_ + shard_.place_of(packet), 0, shard_.length_of(packet));
      }
    }
  });
}

std::optional<std::uint32_t> ForeignShard::last_sent_at() const {
  return sent_any_ ? std::optional(last_sent_at_) : std::nullopt;
}

}  // namespace optireduce
