#include "stage/outbox.h"

#include <algorithm>

namespace optireduce {

bool Outbox::next(const SendWindow& window, const Inbox& answers, const Weights& weights,
                  OutgoingBatch& batch) {
  while (!all_sent() && is_answered(answers, next_packet_)) ++next_packet_;
  if (all_sent()) return false;
  const std::uint32_t chunk_end = (next_packet_ / shard_.chunk_packets + 1) * shard_.chunk_packets;
  const std::uint32_t most = std::min({shard_.packets(), chunk_end, next_packet_ + window.batch_packets()});
  std::uint32_t end = next_packet_ + 1;
  while (end < most && !is_answered(answers, end)) ++end;
  batch.shard = shard_;
  batch.first_packet = next_packet_;
  batch.packets = weights.equal_run(shard_, next_packet_, end - next_packet_);
  end = next_packet_ + batch.packets;
  if (!window.admits(Stage::Contributions, batch.bytes())) return false;
  batch.flags = is_last_percent(shard_, end) ? kFlagLast : std::uint8_t{0};
  next_packet_ = end;
  return true;
}

void Outbox::stamp(const OutgoingBatch& batch, std::uint32_t timestamp) {
  std::fill_n(sent_at_.begin() + batch.first_packet, batch.packets, timestamp);
  last_sent_at_ = timestamp;
}

std::uint64_t Outbox::to_repair(const RequestEntry& entry, const RequestContext& context,
                                const Inbox& answers) const {
  if (entry.chunk >= shard_.chunks() || sent_at_.empty()) return 0;
  std::uint64_t lost = 0;
  // A decided packet has been overwritten, and its owner does not miss it.
  const std::uint64_t wanted = entry.missing & shard_.full_mask(entry.chunk) & ~answers.received(entry.chunk);
  shard_.for_each_packet(entry.chunk, wanted, [&](std::uint32_t packet) {
    // What was never sent has not been rounded either: there is nothing to send again.
    const bool was_sent = packet < next_packet_ && sent_at_[packet] != 0;
    if (was_sent && context.is_lost(sent_at_[packet]))
      lost |= std::uint64_t{1} << packet % shard_.chunk_packets;
  });
  return lost;
}

}  // namespace optireduce
