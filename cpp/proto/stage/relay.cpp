#include "stage/relay.h"

#include <algorithm>

namespace optireduce {

bool Relay::next(const SendWindow& window, const Inbox& answers, OutgoingBatch& batch) {
  const Decided& order = sums_.decided();
  const Shard& shard = sums_.shard();
  while (!all_sent()) {
    const Decided::Stretch stretch = order.from(position_);
    const std::uint32_t chunk = stretch.first_packet / shard.chunk_packets;
    const std::uint64_t open = ~answers.received(chunk) >> stretch.first_packet % shard.chunk_packets;
    if ((open & 1) == 0) {
      ++position_;
      continue;
    }
    const auto unanswered = static_cast<std::uint32_t>(std::countr_one(open));
    const std::uint32_t most = std::min({stretch.packets, window.batch_packets(), unanswered});
    batch.shard = shard;
    batch.first_packet = stretch.first_packet;
    batch.packets = order.equal_run(stretch.first_packet, most);
    if (!window.admits(Stage::Contributions, batch.bytes())) return false;
    position_ += batch.packets;
    batch.flags = is_last_percent(shard, position_) ? kFlagLast : std::uint8_t{0};
    return true;
  }
  return false;
}

void Relay::stamp(const OutgoingBatch& batch, std::uint32_t timestamp) {
  std::fill_n(sent_at_.begin() + batch.first_packet, batch.packets, timestamp);
  last_sent_at_ = timestamp;
}

std::uint64_t Relay::to_repair(const RequestEntry& entry, const RequestContext& context,
                               const Inbox& answers) const {
  const Shard& shard = sums_.shard();
  if (entry.chunk >= shard.chunks() || stopped_) return 0;
  std::uint64_t lost = 0;
  const std::uint64_t wanted = entry.missing & sums_.decided(entry.chunk) & ~answers.received(entry.chunk);
  shard.for_each_packet(entry.chunk, wanted, [&](std::uint32_t packet) {
    const bool was_sent = sent_at_[packet] != 0;
    if (was_sent && context.is_lost(sent_at_[packet]))
      lost |= std::uint64_t{1} << packet % shard.chunk_packets;
  });
  return lost;
}

}  // namespace optireduce
