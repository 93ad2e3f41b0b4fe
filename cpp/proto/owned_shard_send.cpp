// The part of OwnedShard that sends what was reduced: to each peer at its own pace, or to all of them at
// once.
#include <algorithm>

#include "proto/owned_shard.h"

namespace optireduce {

bool OwnedShard::next_batch(const std::vector<Peer>& peers, OutgoingBatch& batch) {
  batch.to.clear();
  std::uint32_t position = 0;
  bool begun = false;
  for (Rank offset = 1; offset < size_; ++offset) {
    const auto peer = static_cast<Rank>((me_ + offset) % size_);
    if (!holds_back(peer)) continue;
    if (begun && sent_position_[peer] != position) continue;
    if (!begun) {
      begun = true;
      position = sent_position_[peer];
      begin_batch(position, peers[peer].window.batch_packets(), batch);
    }
    if (peers[peer].window.admits(PacketType::Reduced, batch.bytes())) {
      batch.to.push_back(peer);
    } else if (batch.to.empty()) {
      begun = false;  // perhaps others can be sent other packets
    }
  }
  if (batch.to.empty()) return false;
  finish_batch(position, batch);
  return true;
}

/// Whoever receives anything has been sent the same, so one position serves all. The slowest window sets the
/// pace, but only of peers that answer: to others the packets go as well, and they repair what they lost.
bool OwnedShard::next_group_batch(Time now, const std::vector<Peer>& peers, OutgoingBatch& batch) {
  batch.to.clear();
  std::uint32_t most = shard_.chunk_packets;
  for (Rank peer = 0; peer < size_; ++peer) {
    if (!holds_back(peer)) continue;
    batch.to.push_back(peer);
    if (peers[peer].sets_pace(now)) most = std::min(most, peers[peer].window.batch_packets());
  }
  if (batch.to.empty()) return false;
  const std::uint32_t position = sent_position_[batch.to.front()];
  begin_batch(position, most, batch);
  const bool waits = std::any_of(batch.to.begin(), batch.to.end(), [&](Rank peer) {
    return peers[peer].sets_pace(now) && !peers[peer].window.admits(PacketType::Reduced, batch.bytes());
  });
  if (waits) return false;
  batch.group = batch.to.size() > 1;  // a single one is better served by its own socket, with an echo
  finish_batch(position, batch);
  return true;
}

/// The packets from that position of the log on: as many as one batch can hold, at most so many.
void OwnedShard::begin_batch(std::uint32_t position, std::uint32_t most, OutgoingBatch& batch) const {
  const LogEntry& entry = entry_at(position);
  batch.shard = shard_;
  batch.first_packet = entry.first_packet + (position - entry.position);
  const std::uint32_t left = entry.packets - (position - entry.position);
  batch.packets = equal_run(batch.first_packet, std::min(left, most));
}

void OwnedShard::finish_batch(std::uint32_t position, OutgoingBatch& batch) {
  batch.data = data_;
  batch.data_begin = 0;
  batch.count = lost_in(batch.first_packet);
  batch.flags = sends_last_percent(position + batch.packets) ? kFlagLast : std::uint8_t{0};
  for (Rank peer : batch.to) sent_position_[peer] = position + batch.packets;
}

}  // namespace optireduce
