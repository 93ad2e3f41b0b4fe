#include "proto/archive.h"

#include <algorithm>
#include <bit>

namespace optireduce {
namespace {

/// A rank that has fallen further behind than this is not helped by old gradients.
constexpr std::uint64_t kKeptOperations = 256;
/// Further ahead than this nobody takes packets, so nobody who is in step can be further behind: a rank that
/// never says what it has completed must not make memory grow for ever.
constexpr std::uint64_t kMostKeptOperations = 4096;

}  // namespace

void Archive::keep(const Operation& operation, std::uint32_t timestamp) {
  const OwnedShard& owned = operation.owned();
  const Shard& shard = owned.shard();
  const std::uint32_t first = owned.first_unacked_chunk();
  if (first >= shard.chunks()) return;
  Entry entry{operation.descriptor(), operation.owned_index(), shard, first, timestamp, {}, {}, {}};
  entry.shard.order = PacketOrder::in_place(shard.order.full);
  const std::uint32_t first_packet = first * shard.chunk_packets;
  entry.data.reserve(shard.bytes - shard.offset_of(first_packet));
  for (std::uint32_t packet = first_packet; packet < shard.packets(); ++packet) {
    const std::byte* data = owned.data() + shard.place_of(packet);
    entry.data.insert(entry.data.end(), data, data + shard.length_of(packet));
    entry.lost.push_back(owned.lost_in(packet));
  }
  bytes_ += entry.data.size();
  entries_.emplace(operation.number(), std::move(entry));
  while (entries_.begin()->first + kMostKeptOperations < operation.number()) forget(entries_.begin());
  shrink();
}

Archive::Entries::iterator Archive::forget(Entries::iterator entry) {
  bytes_ -= entry->second.data.size();
  return entries_.erase(entry);
}

void Archive::forget_below(std::uint64_t operation, bool bounded_too) {
  for (auto entry = entries_.begin(); entry != entries_.end() && entry->first < operation;) {
    const bool old = entry->first + kKeptOperations < operation;
    const bool keep = entry->second.descriptor.bounded && !bounded_too && !old;
    entry = keep ? std::next(entry) : forget(entry);
  }
}

void Archive::shrink() {
  for (auto entry = entries_.begin(); bytes_ > limit_bytes_ && entry != entries_.end();) {
    entry = entry->second.descriptor.bounded ? forget(entry) : std::next(entry);
  }
}

std::uint64_t Archive::to_repair(std::uint64_t operation, const RequestEntry& request,
                                 const RequestContext& context) const {
  const Entry& entry = entries_.at(operation);
  if (request.chunk < entry.first_chunk || request.chunk >= entry.shard.chunks()) return 0;
  const auto repaired = entry.repaired_at.find({context.from, request.chunk});
  const std::uint32_t sent_at = repaired != entry.repaired_at.end() ? repaired->second : entry.kept_at;
  return context.is_lost(sent_at) ? request.missing & entry.shard.full_mask(request.chunk) : 0;
}

bool Archive::fill_repair(const Repair& repair, OutgoingBatch& batch) const {
  const auto found = entries_.find(repair.operation);
  if (found == entries_.end() || repair.chunk < found->second.first_chunk) return false;
  const Entry& entry = found->second;
  const auto first_bit = static_cast<std::uint32_t>(std::countr_zero(repair.packets));
  const std::uint32_t first_kept = entry.first_chunk * entry.shard.chunk_packets;
  batch.type = PacketType::Reduced;
  batch.operation = repair.operation;
  batch.descriptor = entry.descriptor;
  batch.shard_index = entry.shard_index;
  batch.shard = entry.shard;
  batch.first_packet = repair.chunk * entry.shard.chunk_packets + first_bit;
  const auto lost = entry.lost.begin() + (batch.first_packet - first_kept);
  const auto run = std::countr_one(repair.packets >> first_bit);
  batch.packets = static_cast<std::uint32_t>(
      std::find_if(lost, lost + run, [&](std::uint16_t count) { return count != *lost; }) - lost);
  batch.count = *lost;
  batch.data = entry.data.data();
  batch.data_begin = entry.shard.offset_of(first_kept);
  batch.ack = 0;
  batch.flags = kFlagResent;
  batch.to.assign(1, repair.to);
  return true;
}

void Archive::stamp(const OutgoingBatch& batch, std::uint32_t timestamp) {
  const auto found = entries_.find(batch.operation);
  if (found == entries_.end()) return;
  found->second.repaired_at[{batch.to.front(), batch.first_packet / batch.shard.chunk_packets}] = timestamp;
}

}  // namespace optireduce
