// The part of Operation that serves other ranks: sends, repairs, and keeps what they may still ask for.
#include <algorithm>
#include <bit>

#include "operation/operation.h"

namespace optireduce {

void Operation::label(OutgoingBatch& batch, PacketType type) const {
  batch.type = type;
  batch.scope = setup_.scope;
  batch.operation = setup_.number;
  batch.descriptor = descriptor();
  batch.stream = setup_.stream;
}

bool Operation::next_decision(Time now, const std::vector<Peer>& peers, bool to_group, OutgoingBatch& batch) {
  if (!scatter_ || !gather_) return false;
  const Decided& decided = scatter_->decided();
  const bool any =
      to_group ? gather_->next_to_group(now, decided, peers, batch) : gather_->next(decided, peers, batch);
  if (!any) return false;
  for (Rank& to : batch.to) to = rank_at(to);
  batch.data = bucket_.data(scatter_->index(), scatter_->shard());
  label(batch, PacketType::Decision);
  return true;
}

bool Operation::next_contribution(const std::vector<Peer>& peers, std::vector<bool>& blocked,
                                  OutgoingBatch& batch) {
  if (!begun() || me_ == kNoPlace || finished_) return false;
  static const Inbox kNoAnswers;
  for (Rank tried = 0; tried < places(); ++tried) {
    turn_ = static_cast<Rank>((turn_ + 1) % places());
    const Rank to = rank_at(turn_);
    if (turn_ == me_ || blocked[to]) continue;
    Outbox& outbox = scatter_->outbox(turn_);
    if (!outbox.next(peers[to].window, gather_ ? gather_->inbox(turn_) : kNoAnswers, batch)) {
      blocked[to] = !outbox.all_sent();
      continue;
    }
    batch.shard_index = schedule_.shard_of(turn_);
    batch.data = bucket_.data(batch.shard_index, batch.shard);
    for (std::uint32_t i = 0; bucket_.narrow() && i < batch.packets; ++i)
      bucket_.round(optireduce::place_of(batch.shard, batch.first_packet + i));
    batch.detail = call_->weight;
    batch.to.assign(1, to);
    label(batch, PacketType::Contribution);
    return true;
  }
  return false;
}

std::uint64_t Operation::to_repair(PacketType wanted, Rank shard, const RequestEntry& entry,
                                   const RequestContext& context) const {
  if (shard >= places()) return 0;
  const Rank owner = schedule_.owner_of(shard);
  if (wanted == PacketType::Contribution) {
    static const Inbox kNoAnswers;
    // Only its owner has use for it.
    if (!begun() || finished_ || !scatter_ || owner == me_ || owner != context.from) return 0;
    return scatter_->outbox(owner).to_repair(entry, context, gather_ ? gather_->inbox(owner) : kNoAnswers);
  }
  const bool ours = owner == me_ && entry.chunk < scatter_->shard().chunks();
  return gather_ ? gather_->to_repair(owner, entry, context, ours ? scatter_->decided(entry.chunk) : 0) : 0;
}

const Decided& Operation::details(Rank owner) const {
  return owner == me_ ? scatter_->decided() : gather_->details(owner);
}

bool Operation::fill_repair(const Repair& repair, OutgoingBatch& batch) const {
  const bool decision = repair.type == PacketType::Decision;
  const Rank owner = schedule_.owner_of(repair.shard);
  batch.shard = schedule_.shard(repair.shard);
  batch.shard_index = repair.shard;
  batch.data = attached() || !finished_ ? bucket_.data(repair.shard, batch.shard) : nullptr;
  if (batch.data == nullptr) {
    const auto kept = kept_.find(owner);
    if (!decision || kept == kept_.end()) return false;
    batch.shard.order = PacketOrder::in_place(batch.shard.order.full);
    batch.data = kept->second.data();
  }
  if (!decision && (!scatter_ || owner != place_of(repair.to))) return false;
  const auto first_bit = static_cast<std::uint32_t>(std::countr_zero(repair.packets));
  const auto run = static_cast<std::uint32_t>(std::countr_one(repair.packets >> first_bit));
  batch.first_packet = repair.chunk * batch.shard.chunk_packets + first_bit;
  batch.packets = decision ? details(owner).equal_run(batch.first_packet, run) : run;
  batch.detail = decision ? details(owner).detail(batch.first_packet) : call_->weight;
  batch.flags = kFlagResent;
  batch.group = false;
  batch.to.assign(1, repair.to);
  label(batch, repair.type);
  return true;
}

void Operation::stamp(const OutgoingBatch& batch, std::uint32_t timestamp) {
  for (Rank to : batch.to) {
    const Rank place = place_of(to);
    if (batch.type == PacketType::Contribution) {
      scatter_->outbox(place).stamp(batch, timestamp);
    } else {
      gather_->stamp(batch, place, to, timestamp);
    }
  }
}

bool Operation::holds_back_contributions(Rank rank) const {
  const Rank place = place_of(rank);
  return begun() && !finished_ && scatter_ && place != kNoPlace && place != me_ &&
         !scatter_->outbox(place).all_sent();
}

bool Operation::holds_back_decisions(Rank rank) const {
  const Rank place = place_of(rank);
  return scatter_ && gather_ && place != kNoPlace && gather_->holds_back(scatter_->decided(), place);
}

// ---- Memory after the end

void Operation::detach(const Keep& keep) {
  if (!attached()) return;
  for (Rank owner = 0; gather_ && owner < places(); ++owner) {
    const auto& orphans = keep.orphans;
    const bool orphan = std::find(orphans.begin(), orphans.end(), rank_at(owner)) != orphans.end();
    if (owner == me_ || keep.others || orphan) keep_copy(owner);
  }
  bucket_.detach();
}

void Operation::keep_copy(Rank owner) {
  const Rank index = schedule_.shard_of(owner);
  const Shard shard = schedule_.shard(index);
  std::vector<std::byte>& kept = kept_[owner];
  kept.reserve(shard.bytes);
  const std::byte* const data = bucket_.data(index, shard);
  for (std::uint32_t packet = 0; packet < shard.packets(); ++packet) {
    const std::byte* from = data + shard.place_of(packet);
    kept.insert(kept.end(), from, from + shard.length_of(packet));
  }
}

std::size_t Operation::engine_bytes() const {
  std::size_t bytes = bucket_.engine_bytes();
  for (const auto& [_, kept] : kept_) bytes += kept.size();
  return bytes;
}

void Operation::note_overwritten() {
  if (!begun()) return;
  bool placed = scatter_ && scatter_->decided().packets() != 0;
  for (Rank owner = 0; gather_ && owner < places(); ++owner) {
    const Inbox& inbox = gather_->inbox(owner);
    placed = placed || (owner != me_ && inbox.missing_packets() != gather_->shard(owner).packets());
  }
  if (placed) call_->intact = false;
}

bool Operation::keeps(Rank owner) const {
  // A small bucket has fewer shards than owners.
  if (!finished_ || attached() || schedule_.shard(schedule_.shard_of(owner)).packets() == 0) return true;
  return kept_.contains(owner);
}

}  // namespace optireduce
