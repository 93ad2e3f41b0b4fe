#include "stage/all_gather.h"

namespace optireduce {

AllGather::AllGather(const OperationSetup& setup, const Schedule& schedule, Time now)
    : me_(setup.me),
      schedule_(schedule),
      inboxes_(setup.places()),
      details_(setup.places(), Decided(setup.usual_detail())) {
  for (Rank owner = 0; owner < setup.places(); ++owner) {
    shards_.push_back(schedule.shard(index(owner)));
    if (owner == me_) continue;
    inboxes_[owner] = Inbox(shards_[owner], now);
    if (!inboxes_[owner].complete()) ++incomplete_;
  }
  if (!setup.serves()) return;
  hand_outs_.emplace_back(setup, me_, index(me_), shards_[me_]);
  for (Rank owner = 0; owner < setup.places(); ++owner) {
    if (setup.relays(owner)) hand_outs_.emplace_back(setup, owner, index(owner), shards_[owner]);
  }
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
  if (hands_out(owner)) details_[owner].add(shard, chunk, fresh);
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

bool AllGather::hands_out(Rank owner) const {
  return find_in(hand_outs_, owner) != nullptr;
}

void AllGather::stop_sending_to(Rank place) {
  for (HandOut& each : hand_outs_) each.stop_sending_to(place);
}

void AllGather::note_received(Rank owner, Rank place, std::uint32_t chunks) {
  if (HandOut* const each = find_in(hand_outs_, owner)) each->note_received(place, chunks);
}

std::uint32_t AllGather::first_unreceived_chunk(Rank owner) const {
  const HandOut* const each = find_in(hand_outs_, owner);
  return each == nullptr ? shards_[owner].chunks() : each->first_unreceived_chunk();
}

bool AllGather::next(const Decided& decided, const std::vector<Peer>& peers, OutgoingBatch& batch) {
  for (std::size_t tried = 0; tried < hand_outs_.size(); ++tried) {
    turn_ = (turn_ + 1) % hand_outs_.size();
    if (hand_outs_[turn_].next(order_of(hand_outs_[turn_], decided), peers, batch)) return true;
  }
  return false;
}

/// There is no multicast in a grid.
bool AllGather::next_to_group(Time now, const Decided& decided, const std::vector<Peer>& peers,
                              OutgoingBatch& batch) {
  return !hand_outs_.empty() && hand_outs_.front().next_to_group(now, decided, peers, batch);
}

void AllGather::stamp(const OutgoingBatch& batch, Rank place, Rank rank, std::uint32_t timestamp) {
  const Rank owner = schedule_.owner_of(batch.shard_index);
  HandOut* const each = find_in(hand_outs_, owner);
  if (each != nullptr && each->is_sent_to(place)) return each->stamp(batch, place, timestamp);
  passed_on_at_[{rank, owner, batch.first_packet / batch.shard.chunk_packets}] = timestamp;
}

bool AllGather::holds_back(const Decided& decided, Rank place) const {
  return std::ranges::any_of(
      hand_outs_, [&](const HandOut& each) { return each.holds_back(order_of(each, decided), place); });
}

bool AllGather::all_sent(const Decided& decided) const {
  return std::ranges::all_of(hand_outs_,
                             [&](const HandOut& each) { return each.all_sent(order_of(each, decided)); });
}

std::uint64_t AllGather::to_repair(Rank owner, const RequestEntry& entry, const RequestContext& context,
                                   std::uint64_t held) const {
  const Shard& shard = shards_[owner];
  if (entry.chunk >= shard.chunks()) return 0;
  const HandOut* const each = find_in(hand_outs_, owner);
  if (each != nullptr && each->is_sent_to(context.from)) return each->to_repair(entry, context);
  const auto before = passed_on_at_.find({context.rank, owner, entry.chunk});
  if (before != passed_on_at_.end() && !context.is_lost(before->second)) return 0;
  return entry.missing & held & shard.full_mask(entry.chunk);
}

}  // namespace optireduce
