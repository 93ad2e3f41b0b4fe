#include "stage/hand_out.h"

#include <algorithm>
#include <limits>

namespace optireduce {

HandOut::HandOut(const OperationSetup& setup, Rank owner, Rank index, const Shard& shard)
    : me_(setup.me),
      owner_(owner),
      index_(index),
      members_(setup.members),
      shard_(shard),
      receives_(setup.places(), false),
      position_(setup.places(), 0),
      received_chunks_(setup.places(), 0),
      sent_(std::size_t{setup.places()} * shard_.chunks(), 0),
      sent_at_(sent_.size(), 0) {
  for (Rank place = 0; place < setup.places(); ++place) receives_[place] = setup.takes_from(place, owner);
}

void HandOut::note_received(Rank place, std::uint32_t chunks) {
  received_chunks_[place] = std::clamp(chunks, received_chunks_[place], shard_.chunks());
}

std::uint32_t HandOut::first_unreceived_chunk() const {
  std::uint32_t first = shard_.chunks();
  for (Rank place = 0; place < members_.size(); ++place) {
    if (receives_[place]) first = std::min(first, received_chunks_[place]);
  }
  return first;
}

bool HandOut::next(const Decided& decided, const std::vector<Peer>& peers, OutgoingBatch& batch) {
  batch.to.clear();
  std::uint32_t position = 0;
  bool begun = false;
  const auto places = static_cast<Rank>(members_.size());
  for (Rank offset = 1; offset < places; ++offset) {
    const auto place = static_cast<Rank>((me_ + offset) % places);
    if (!holds_back(decided, place)) continue;
    if (begun && position_[place] != position) continue;
    const SendWindow& window = peers[members_[place]].window;
    if (!begun) {
      begun = true;
      position = position_[place];
      begin_batch(decided, position, window.batch_packets(), batch);
    }
    if (window.admits(Stage::Decisions, batch.bytes())) {
      batch.to.push_back(place);
    } else if (batch.to.empty()) {
      begun = false;  // perhaps others can be sent other packets
    }
  }
  if (batch.to.empty()) return false;
  finish_batch(decided, position, batch);
  return true;
}

/// Whoever receives anything has been sent the same, so one position serves all. The slowest window sets the
/// pace, but only of peers that answer: to others the packets go as well, and they repair what they lost.
bool HandOut::next_to_group(Time now, const Decided& decided, const std::vector<Peer>& peers,
                            OutgoingBatch& batch) {
  batch.to.clear();
  std::uint32_t most = std::numeric_limits<std::uint32_t>::max();
  for (Rank place = 0; place < members_.size(); ++place) {
    if (!holds_back(decided, place)) continue;
    batch.to.push_back(place);
    const Peer& peer = peers[members_[place]];
    if (peer.sets_pace(now)) most = std::min(most, peer.window.batch_packets());
  }
  if (batch.to.empty()) return false;
  const std::uint32_t position = position_[batch.to.front()];
  begin_batch(decided, position, most, batch);
  const bool waits = std::any_of(batch.to.begin(), batch.to.end(), [&](Rank place) {
    const Peer& peer = peers[members_[place]];
    return peer.sets_pace(now) && !peer.window.admits(Stage::Decisions, batch.bytes());
  });
  if (waits) return false;
  batch.group = batch.to.size() > 1;  // a single one is better served by its own socket, with an echo
  finish_batch(decided, position, batch);
  return true;
}

/// The packets from that position on: as many as one batch can hold, at most so many.
void HandOut::begin_batch(const Decided& decided, std::uint32_t position, std::uint32_t most,
                          OutgoingBatch& batch) const {
  const Decided::Stretch stretch = decided.from(position);
  batch.shard = shard_;
  batch.first_packet = stretch.first_packet;
  batch.packets = decided.equal_run(stretch.first_packet, std::min(stretch.packets, most));
}

void HandOut::finish_batch(const Decided& decided, std::uint32_t position, OutgoingBatch& batch) {
  batch.shard_index = index_;
  batch.detail = decided.detail(batch.first_packet);
  batch.flags = is_last_percent(shard_, position + batch.packets) ? kFlagLast : std::uint8_t{0};
  for (Rank place : batch.to) position_[place] = position + batch.packets;
}

void HandOut::stamp(const OutgoingBatch& batch, Rank place, std::uint32_t timestamp) {
  const std::uint32_t chunk = batch.first_packet / batch.shard.chunk_packets;
  sent_[slot(place, chunk)] |= Shard::mask_of(batch.first_packet % batch.shard.chunk_packets, batch.packets);
  sent_at_[slot(place, chunk)] = timestamp;
}

bool HandOut::all_sent(const Decided& decided) const {
  for (Rank place = 0; place < members_.size(); ++place) {
    if (holds_back(decided, place)) return false;
  }
  return true;
}

std::uint64_t HandOut::to_repair(const RequestEntry& entry, const RequestContext& context) const {
  const std::size_t at = slot(context.from, entry.chunk);
  return context.is_lost(sent_at_[at]) ? entry.missing & sent_[at] : 0;
}

}  // namespace optireduce
