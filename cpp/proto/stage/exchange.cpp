#include "stage/exchange.h"

#include <algorithm>
#include <bit>

namespace optireduce {

Exchange::Exchange(OperationSetup setup, Time now)
    : setup_(std::move(setup)),
      schedule_(setup_.descriptor, setup_.number, setup_.places(), setup_.payload_bytes, setup_.order_seed),
      bucket_(setup_.descriptor.dtype, schedule_.bytes(), setup_.places()),
      scatter_(setup_, schedule_, now),
      gather_(setup_, schedule_, now),
      turn_(setup_.serves() ? setup_.me : Rank{0}),
      kept_from_(setup_.places(), 0) {
  for (Rank owner = 0; owner < setup_.places(); ++owner) {
    if (setup_.relays(owner)) relays_.emplace_back(setup_, schedule_, owner, now);
  }
}

Relay* Exchange::relay_for(Rank owner) {
  const auto found = std::ranges::find(relays_, owner, &Relay::owner);
  return found == relays_.end() ? nullptr : &*found;
}

const Relay* Exchange::relay_for(Rank owner) const {
  const auto found = std::ranges::find(relays_, owner, &Relay::owner);
  return found == relays_.end() ? nullptr : &*found;
}

template <typename Visit>
void Exchange::for_each_owner_above(Rank place, Visit visit) const {
  const Routes* const routes = setup_.routes;
  if (routes == nullptr || !setup_.serves() || routes->same_column(setup_.me, place)) return visit(place);
  if (!routes->same_row(setup_.me, place)) return;
  for (Rank row = 0; row < routes->rows().size(); ++row) visit(routes->in_row(row, place));
}

// ---- Contributions

ReduceScatter* Exchange::collector(Rank index) {
  if (!setup_.serves() || index >= setup_.places()) return nullptr;
  if (index == scatter_.index()) return &scatter_;
  Relay* const relay = relay_for(schedule_.owner_of(index));
  return relay == nullptr ? nullptr : &relay->sums();
}

void Exchange::begin(const Weights& weights) {
  scatter_.begin(weights, bucket_);
  for (Relay& relay : relays_) relay.sums().begin(weights, bucket_);
}

void Exchange::note_abstention(Rank place) {
  if (scatter_.takes_from(place)) scatter_.note_abstention(place, bucket_);
  for (Relay& relay : relays_) {
    if (relay.sums().takes_from(place)) relay.sums().note_abstention(place, bucket_);
  }
}

void Exchange::close_relays() {
  for (Relay& relay : relays_) relay.sums().close(bucket_);
}

bool Exchange::lacks(Rank place) const {
  return scatter_.lacks(place) ||
         std::ranges::any_of(relays_, [place](const Relay& relay) { return relay.sums().lacks(place); });
}

std::uint32_t Exchange::missing_from(Rank place) const {
  std::uint32_t missing = scatter_.lacks(place) ? scatter_.inbox(place).missing_packets() : 0;
  for (const Relay& relay : relays_)
    missing += relay.sums().lacks(place) ? relay.sums().inbox(place).missing_packets() : 0;
  return missing;
}

bool Exchange::lacks_decisions_from(Rank place) const {
  bool lacks = false;
  for_each_owner_above(place, [&](Rank owner) { lacks = lacks || !gather_.complete(owner); });
  return lacks;
}

std::set<Rank> Exchange::non_finite() const {
  std::set<Rank> places = scatter_.non_finite();
  for (const Relay& relay : relays_)
    places.insert(relay.sums().non_finite().begin(), relay.sums().non_finite().end());
  return places;
}

std::uint32_t Exchange::sent_at(Rank owner, std::uint32_t packet) const {
  const Relay* const relay = relay_for(owner);
  return relay != nullptr ? relay->sent_at(packet) : scatter_.outbox(owner).sent_at(packet);
}

std::optional<std::uint32_t> Exchange::last_sent_to(Rank place) const {
  std::optional<std::uint32_t> last;
  for_each_owner_above(place, [&](Rank owner) {
    const Relay* const relay = relay_for(owner);
    const auto sent = relay != nullptr ? relay->last_sent_at() : scatter_.outbox(owner).last_sent_at();
    if (sent && (!last || not_before(*sent, *last))) last = sent;
  });
  return last;
}

// ---- Decisions

std::uint64_t Exchange::accept_decisions(Time now, const ReceivedRun& run) {
  const Rank owner = schedule_.owner_of(run.header.shard);
  const std::uint64_t fresh = gather_.accept(now, owner, run);
  // Our contribution is about to be overwritten: what was not added up before comes too late.
  const std::uint32_t chunk = run.header.offset / setup_.payload_bytes / gather_.shard(owner).chunk_packets;
  if (Relay* const relay = relay_for(owner)) relay->sums().give_up(chunk, fresh);
  return fresh;
}

void Exchange::make_void(Rank owner, std::uint32_t chunk, std::uint64_t packets) {
  gather_.make_void(owner, chunk, packets);
  if (Relay* const relay = relay_for(owner)) relay->sums().give_up(chunk, packets);
}

bool Exchange::fits(const ReceivedRun& run) const {
  const Rank shard = run.header.shard;
  if (shard >= setup_.places()) return false;
  if (run.header.type == PacketType::Contribution) {
    const Rank from = setup_.place_of(run.header.sender), to = schedule_.owner_of(shard);
    const bool wanted = setup_.adds() && from != kNoPlace && setup_.takes_from(from, to);
    return wanted && gather_.shard(to).fits(run);
  }
  const Rank owner = schedule_.owner_of(shard);
  if (owner == setup_.me || !gather_.shard(owner).fits(run)) return false;
  // Without a deadline a sum that lacks our contribution cannot be.
  return setup_.descriptor.bounded || has_added(owner, run);
}

bool Exchange::has_added(Rank owner, const ReceivedRun& run) const {
  const Shard& shard = gather_.shard(owner);
  const std::uint32_t first = run.header.offset / setup_.payload_bytes;
  const std::uint64_t packets = Shard::mask_of(first % shard.chunk_packets, run.packets);
  const Relay* const relay = relay_for(owner);
  if (relay != nullptr) return relay->has(first / shard.chunk_packets, packets);
  return first + run.packets - 1 < scatter_.outbox(owner).sent_packets();
}

void Exchange::remove_member(Rank rank) {
  const Rank place = setup_.place_of(rank);
  if (place == kNoPlace || place == setup_.me) return;
  gather_.stop_sending_to(place);
  for_each_owner_above(place, [&](Rank owner) { scatter_.outbox(owner).stop(); });
  if (Relay* const relay = relay_for(place)) relay->stop();
  if (!setup_.descriptor.bounded) return;
  scatter_.stop_waiting_for(place, bucket_);
  for (Relay& relay : relays_) relay.sums().stop_waiting_for(place, bucket_);
}

bool Exchange::complete() const {
  return gather_.complete() && scatter_.undecided_packets() == 0 && gather_.all_sent(scatter_.decided());
}

void Exchange::zero_missing() {
  for (Rank owner = 0; owner < setup_.places(); ++owner) {
    gather_.inbox(owner).for_each_missing(
        [&](std::uint32_t packet) { bucket_.zero(gather_.index(owner), gather_.shard(owner), packet); });
  }
}

// ---- Packets out

void Exchange::label(OutgoingBatch& batch, PacketType type) const {
  batch.type = type;
  batch.setup = &setup_;
  const Relay* const relay =
      type == PacketType::Contribution ? relay_for(schedule_.owner_of(batch.shard_index)) : nullptr;
  batch.data = relay != nullptr ? relay->sums().sums() : bucket_.data(batch.shard_index, batch.shard);
}

/// See Header.
std::uint64_t Exchange::contribution_detail(Rank owner, std::uint32_t packet) const {
  const Relay* const relay = relay_for(owner);
  if (relay != nullptr && setup_.tells_sets()) return relay->sums().decided().detail(packet);
  const std::uint64_t weight = relay != nullptr ? relay->sums().contributed_weight()
                                                : scatter_.own_weights().of(gather_.shard(owner), packet);
  return static_cast<std::uint32_t>(weight) | std::uint64_t{gather_.inbox(owner).whole_chunks()} << 32;
}

bool Exchange::next_decision(Time now, const std::vector<Peer>& peers, bool to_group, OutgoingBatch& batch) {
  const Decided& decided = scatter_.decided();
  const bool any =
      to_group ? gather_.next_to_group(now, decided, peers, batch) : gather_.next(decided, peers, batch);
  if (!any) return false;
  for (Rank& to : batch.to) to = setup_.members[to];
  label(batch, PacketType::Decision);
  return true;
}

bool Exchange::next_sums(const std::vector<Peer>& peers, OutgoingBatch& batch) {
  for (Relay& relay : relays_) {
    const Rank owner = relay.owner(), to = setup_.members[owner];
    if (!relay.next(peers[to].window, gather_.inbox(owner), batch)) continue;
    batch.detail = contribution_detail(owner, batch.first_packet);
    batch.shard_index = schedule_.shard_of(owner);
    batch.to.assign(1, to);
    label(batch, PacketType::Contribution);
    return true;
  }
  return false;
}

bool Exchange::next_contribution(const std::vector<Peer>& peers, std::vector<bool>& blocked,
                                 OutgoingBatch& batch) {
  for (Rank tried = 0; tried < setup_.places(); ++tried) {
    turn_ = static_cast<Rank>((turn_ + 1) % setup_.places());
    if (setup_.serves() && turn_ == setup_.me) continue;
    const Rank to = setup_.members[setup_.above(setup_.me, turn_)];
    Outbox& outbox = scatter_.outbox(turn_);
    if (blocked[to]) continue;
    if (!outbox.next(peers[to].window, gather_.inbox(turn_), scatter_.own_weights(), batch)) {
      blocked[to] = !outbox.all_sent();
      continue;
    }
    for (std::uint32_t i = 0; bucket_.narrow() && i < batch.packets; ++i)
      bucket_.round(place_of(batch.shard, batch.first_packet + i));
    batch.detail = contribution_detail(turn_, batch.first_packet);
    batch.shard_index = schedule_.shard_of(turn_);
    batch.to.assign(1, to);
    label(batch, PacketType::Contribution);
    return true;
  }
  return false;
}

std::uint64_t Exchange::to_repair(PacketType wanted, Rank shard, const RequestEntry& entry,
                                  const RequestContext& context) const {
  if (shard >= setup_.places()) return 0;
  const Rank owner = schedule_.owner_of(shard);
  if (wanted == PacketType::Contribution) {
    // Nobody else has use for it.
    if (setup_.above(setup_.me, owner) != context.from) return 0;
    const Relay* const relay = relay_for(owner);
    if (relay != nullptr) return relay->to_repair(entry, context, gather_.inbox(owner));
    return scatter_.outbox(owner).to_repair(entry, context, gather_.inbox(owner));
  }
  return gather_.to_repair(owner, entry, context, held(owner, entry.chunk));
}

bool Exchange::fill_repair(const Repair& repair, OutgoingBatch& batch) const {
  const bool decision = repair.type == PacketType::Decision;
  const Rank owner = schedule_.owner_of(repair.shard);
  if (!decision && setup_.above(setup_.me, owner) != setup_.place_of(repair.to)) return false;
  if (decision && (!keeps(owner) || repair.chunk < kept_from_[owner])) return false;
  const auto first_bit = static_cast<std::uint32_t>(std::countr_zero(repair.packets));
  const auto run = static_cast<std::uint32_t>(std::countr_one(repair.packets >> first_bit));
  batch.shard = gather_.shard(owner);
  batch.shard_index = repair.shard;
  batch.first_packet = repair.chunk * batch.shard.chunk_packets + first_bit;
  batch.packets = equal_run(repair, owner, batch.first_packet, run);
  batch.detail =
      decision ? details(owner).detail(batch.first_packet) : contribution_detail(owner, batch.first_packet);
  batch.flags = kFlagResent;
  batch.group = false;
  batch.to.assign(1, repair.to);
  label(batch, repair.type);
  return batch.data != nullptr;
}

/// How many of these packets can say the same in their header.
std::uint32_t Exchange::equal_run(const Repair& repair, Rank owner, std::uint32_t first,
                                  std::uint32_t most) const {
  if (repair.type == PacketType::Decision) return details(owner).equal_run(first, most);
  const Relay* const relay = relay_for(owner);
  if (relay != nullptr) return relay->sums().decided().equal_run(first, most);
  return scatter_.own_weights().equal_run(gather_.shard(owner), first, most);
}

void Exchange::stamp(const OutgoingBatch& batch, std::uint32_t timestamp) {
  const Rank owner = schedule_.owner_of(batch.shard_index);
  for (Rank to : batch.to) {
    if (batch.type == PacketType::Decision) {
      gather_.stamp(batch, setup_.place_of(to), to, timestamp);
    } else if (Relay* const relay = relay_for(owner)) {
      relay->stamp(batch, timestamp);
    } else {
      scatter_.outbox(owner).stamp(batch, timestamp);
    }
  }
}

bool Exchange::holds_back(PacketType type, Rank rank) const {
  const Rank place = setup_.place_of(rank);
  if (place == kNoPlace) return false;
  if (type == PacketType::Decision) return gather_.holds_back(scatter_.decided(), place);
  const Relay* const relay = relay_for(place);
  if (relay != nullptr && !relay->all_sent()) return true;
  bool waits = false;
  for_each_owner_above(place, [&](Rank owner) { waits = waits || !scatter_.outbox(owner).all_sent(); });
  return waits;
}

// ---- Memory after the end

void Exchange::detach(bool whole, bool others, const std::vector<Rank>& orphans) {
  if (!bucket_.begun()) return;
  for (Rank owner = 0; owner < setup_.places(); ++owner) {
    const bool orphan = std::find(orphans.begin(), orphans.end(), setup_.members[owner]) != orphans.end();
    const bool ours = gather_.hands_out(owner);
    if (ours && !whole) kept_from_[owner] = gather_.first_unreceived_chunk(owner);
    if (ours || others || orphan) bucket_.keep(gather_.index(owner), gather_.shard(owner), kept_from_[owner]);
  }
  bucket_.detach();
}

std::size_t Exchange::engine_bytes() const {
  std::size_t bytes = bucket_.engine_bytes();
  for (const Relay& relay : relays_) bytes += relay.sums().engine_bytes();
  return bytes;
}

bool Exchange::keeps(Rank owner) const {
  // A small bucket has fewer shards than owners.
  return bucket_.holds(gather_.index(owner)) || gather_.shard(owner).packets() == 0;
}

}  // namespace optireduce
