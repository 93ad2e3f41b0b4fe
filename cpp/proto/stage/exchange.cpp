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
      turn_(setup_.serves() ? setup_.me : Rank{0}) {}

// ---- Decisions

bool Exchange::fits(const ReceivedRun& run) const {
  const Rank shard = run.header.shard;
  if (shard >= setup_.places()) return false;
  if (run.header.type == PacketType::Contribution) {
    const bool wanted = setup_.adds() && shard == scatter_.index();
    return wanted && setup_.place_of(run.header.sender) != kNoPlace && scatter_.shard().fits(run);
  }
  const Rank owner = schedule_.owner_of(shard);
  if (!setup_.gathers || owner == setup_.me || !gather_.shard(owner).fits(run)) return false;
  // Without a deadline a sum that lacks our contribution cannot be.
  const std::uint32_t last = run.header.offset / setup_.payload_bytes + run.packets - 1;
  return setup_.descriptor.bounded || last < scatter_.outbox(owner).sent_packets();
}

void Exchange::remove_member(Rank rank) {
  const Rank place = setup_.place_of(rank);
  if (place == kNoPlace || place == setup_.me) return;
  gather_.stop_sending_to(place);
  scatter_.outbox(place).stop();
  if (setup_.descriptor.bounded) scatter_.stop_waiting_for(place, bucket_);
}

bool Exchange::complete() const {
  if (!gather_.complete() || scatter_.undecided_packets() != 0) return false;
  // Nothing comes back that would say that our part of a stage without results has left.
  return setup_.gathers ? gather_.all_sent(scatter_.decided()) : scatter_.all_sent();
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
  batch.data = bucket_.data(batch.shard_index, batch.shard);
}

/// See Header.
std::uint64_t Exchange::contribution_detail(Rank owner, std::uint32_t packet) const {
  const std::uint32_t weight = scatter_.own_weights().of(gather_.shard(owner), packet);
  return weight | std::uint64_t{gather_.inbox(owner).whole_chunks()} << 32;
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

bool Exchange::next_contribution(const std::vector<Peer>& peers, std::vector<bool>& blocked,
                                 OutgoingBatch& batch) {
  for (Rank tried = 0; tried < setup_.places(); ++tried) {
    turn_ = static_cast<Rank>((turn_ + 1) % setup_.places());
    const Rank to = setup_.members[turn_];
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
    // Only its owner has use for it.
    if (owner != context.from) return 0;
    return scatter_.outbox(owner).to_repair(entry, context, gather_.inbox(owner));
  }
  return setup_.gathers ? gather_.to_repair(owner, entry, context, held(owner, entry.chunk)) : 0;
}

bool Exchange::fill_repair(const Repair& repair, OutgoingBatch& batch) const {
  const bool decision = repair.type == PacketType::Decision;
  const Rank owner = schedule_.owner_of(repair.shard);
  if (!keeps(owner) || (!decision && owner != setup_.place_of(repair.to))) return false;
  if (owner == setup_.me && repair.chunk < kept_from_) return false;
  const auto first_bit = static_cast<std::uint32_t>(std::countr_zero(repair.packets));
  const auto run = static_cast<std::uint32_t>(std::countr_one(repair.packets >> first_bit));
  batch.shard = gather_.shard(owner);
  batch.shard_index = repair.shard;
  batch.first_packet = repair.chunk * batch.shard.chunk_packets + first_bit;
  batch.packets = decision ? details(owner).equal_run(batch.first_packet, run)
                           : scatter_.own_weights().equal_run(batch.shard, batch.first_packet, run);
  batch.detail =
      decision ? details(owner).detail(batch.first_packet) : contribution_detail(owner, batch.first_packet);
  batch.flags = kFlagResent;
  batch.group = false;
  batch.to.assign(1, repair.to);
  label(batch, repair.type);
  return true;
}

void Exchange::stamp(const OutgoingBatch& batch, std::uint32_t timestamp) {
  for (Rank to : batch.to) {
    const Rank place = setup_.place_of(to);
    if (batch.type == PacketType::Contribution) {
      scatter_.outbox(place).stamp(batch, timestamp);
    } else {
      gather_.stamp(batch, place, to, timestamp);
    }
  }
}

bool Exchange::holds_back(PacketType type, Rank rank) const {
  const Rank place = setup_.place_of(rank);
  if (place == kNoPlace) return false;
  return type == PacketType::Decision ? gather_.holds_back(scatter_.decided(), place)
                                      : !scatter_.outbox(place).all_sent();
}

// ---- Memory after the end

void Exchange::detach(bool whole, bool others, const std::vector<Rank>& orphans) {
  if (!bucket_.begun()) return;
  if (setup_.serves() && !whole) kept_from_ = gather_.first_unreceived_chunk();
  for (Rank owner = 0; setup_.gathers && owner < setup_.places(); ++owner) {
    const bool orphan = std::find(orphans.begin(), orphans.end(), setup_.members[owner]) != orphans.end();
    const std::uint32_t first = owner == setup_.me ? kept_from_ : 0;
    if (owner == setup_.me || others || orphan)
      bucket_.keep(gather_.index(owner), gather_.shard(owner), first);
  }
  bucket_.detach();
}

bool Exchange::keeps(Rank owner) const {
  // A small bucket has fewer shards than owners.
  return bucket_.holds(gather_.index(owner)) || gather_.shard(owner).packets() == 0;
}

}  // namespace optireduce
