#include "stage/all_gather.h"

#include <algorithm>
#include <limits>

namespace optireduce {

AllGather::AllGather(const OperationSetup& setup, const Schedule& schedule, Time now)
    : me_(setup.me),
      members_(setup.members),
      schedule_(schedule),
      inboxes_(setup.places()),
      details_(setup.places(), Decided(setup.usual_detail())),
      receives_(setup.places(), setup.gathers),
      position_(setup.places(), 0),
      received_chunks_(setup.places(), 0) {
  for (Rank owner = 0; owner < setup.places(); ++owner) {
    shards_.push_back(schedule.shard(index(owner)));
    if (owner == me_ || !setup.gathers) continue;
    inboxes_[owner] = Inbox(shards_[owner], now);
    if (!inboxes_[owner].complete()) ++incomplete_;
  }
  if (!setup.serves() || !setup.gathers) return;
  receives_[me_] = false;
  sent_.assign(std::size_t{setup.places()} * shards_[me_].chunks(), 0);
  sent_at_.assign(sent_.size(), 0);
}

// ---- Coming in

std::uint64_t AllGather::accept(Time now, Rank owner, const ReceivedRun& run) {
  Inbox& inbox = inboxes_[owner];
  if (inbox.complete()) return 0;
  const Shard& shard = shards_[owner];
  const std::uint32_t first = run.header.offset / shard.payload_bytes;
  const std::uint32_t chunk = first / shard.chunk_packets;
  const std::uint64_t packets = Shard::mask_of(first % shard.chunk_packets, run.packets);
  const std::uint64_t fresh = inbox.accept(now, chunk, packets);
  if (run.header.detail != details_[owner].usual() || !details_[owner].all_usual()) {
    shard.for_each_packet(chunk, fresh, [&](std::uint32_t packet) {
      details_[owner].set_detail(shard, packet, run.header.detail);
    });
  }
  if (fresh != 0 && inbox.complete()) --incomplete_;
  return fresh;
}

void AllGather::make_void(Rank owner, std::uint32_t chunk, std::uint64_t packets) {
  Inbox& inbox = inboxes_[owner];
  if (inbox.complete()) return;
  const std::uint64_t missing = packets & ~inbox.received(chunk);
  shards_[owner].for_each_packet(
      chunk, missing, [&](std::uint32_t packet) { details_[owner].set_detail(shards_[owner], packet, 0); });
  inbox.give_up(chunk, missing);
  if (inbox.complete()) --incomplete_;
}

// ---- Going out

bool AllGather::next(const Decided& decided, const std::vector<Peer>& peers, OutgoingBatch& batch) {
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
bool AllGather::next_to_group(Time now, const Decided& decided, const std::vector<Peer>& peers,
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
void AllGather::begin_batch(const Decided& decided, std::uint32_t position, std::uint32_t most,
                            OutgoingBatch& batch) const {
  const Decided::Stretch stretch = decided.from(position);
  batch.shard = shards_[me_];
  batch.first_packet = stretch.first_packet;
  batch.packets = decided.equal_run(stretch.first_packet, std::min(stretch.packets, most));
}

void AllGather::finish_batch(const Decided& decided, std::uint32_t position, OutgoingBatch& batch) {
  batch.shard_index = index(me_);
  batch.detail = decided.detail(batch.first_packet);
  batch.flags = is_last_percent(shards_[me_], position + batch.packets) ? kFlagLast : std::uint8_t{0};
  for (Rank place : batch.to) position_[place] = position + batch.packets;
}

void AllGather::stamp(const OutgoingBatch& batch, Rank place, Rank rank, std::uint32_t timestamp) {
  const std::uint32_t chunk = batch.first_packet / batch.shard.chunk_packets;
  const Rank owner = schedule_.owner_of(batch.shard_index);
  if (owner != me_ || !is_sent_to(place)) {
    passed_on_at_[{rank, owner, chunk}] = timestamp;
    return;
  }
  sent_[slot(place, chunk)] |= Shard::mask_of(batch.first_packet % batch.shard.chunk_packets, batch.packets);
  sent_at_[slot(place, chunk)] = timestamp;
}

bool AllGather::all_sent(const Decided& decided) const {
  for (Rank place = 0; place < members_.size(); ++place) {
    if (holds_back(decided, place)) return false;
  }
  return true;
}

void AllGather::note_received(Rank place, std::uint32_t chunks) {
  received_chunks_[place] = std::clamp(chunks, received_chunks_[place], shards_[me_].chunks());
}

std::uint32_t AllGather::first_unreceived_chunk() const {
  std::uint32_t first = shards_[me_].chunks();
  for (Rank place = 0; place < members_.size(); ++place) {
    if (place != me_ && receives_[place]) first = std::min(first, received_chunks_[place]);
  }
  return first;
}

std::uint64_t AllGather::to_repair(Rank owner, const RequestEntry& entry, const RequestContext& context,
                                   std::uint64_t held) const {
  const Shard& shard = shards_[owner];
  if (entry.chunk >= shard.chunks()) return 0;
  if (owner == me_ && is_sent_to(context.from)) {
    const std::size_t at = slot(context.from, entry.chunk);
    return context.is_lost(sent_at_[at]) ? entry.missing & sent_[at] : 0;
  }
  const auto before = passed_on_at_.find({context.rank, owner, entry.chunk});
  if (before != passed_on_at_.end() && !context.is_lost(before->second)) return 0;
  return entry.missing & held & shard.full_mask(entry.chunk);
}

}  // namespace optireduce
