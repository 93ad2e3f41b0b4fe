#include "proto/operation.h"

#include <algorithm>
#include <bit>

namespace optireduce {
namespace {

/// From here on the bucket does not fit the caches, and placing results past them saves reading the old
/// values.
constexpr std::size_t kStreamAboveBytes = 4 * 1024 * 1024;

}  // namespace

std::string describe(const Descriptor& descriptor) {
  return std::to_string(descriptor.elements) + " " + name_of(descriptor.dtype) + " (" +
         name_of(descriptor.op) + ")";
}

Operation::Operation(std::uint64_t number, const Descriptor& descriptor, std::byte* data,
                     const EndpointConfig& config, Time now, Duration timeout)
    : number_(number),
      descriptor_(descriptor),
      me_(config.rank),
      size_(config.size),
      started_(now),
      deadline_(now + timeout),
      schedule_(descriptor, number, config.size, config.payload_bytes),
      owned_(schedule_.shard(schedule_.shard_of(me_)), me_, size_, descriptor, data, now),
      foreign_(size_),
      turn_(me_) {
  for (Rank owner = 0; owner < size_; ++owner) {
    if (owner == me_) continue;
    foreign_[owner] = ForeignShard(schedule_.shard(schedule_.shard_of(owner)), data, now);
    if (!foreign_[owner].complete()) ++foreign_incomplete_;
  }
}

bool Operation::fits(const Run& run) const {
  const Rank owner = run.header.type == PacketType::Contribution ? me_ : run.header.sender;
  if (run.header.shard != schedule_.shard_of(owner)) return false;
  const Shard& shard = owner == me_ ? owned_.shard() : foreign_[owner].shard();
  if (run.header.offset >= shard.bytes || run.header.offset % shard.payload_bytes != 0) return false;
  const std::uint32_t first = run.header.offset / shard.payload_bytes;
  const std::uint32_t last = first + run.packets - 1;
  if (last >= shard.packets() || first / shard.chunk_packets != last / shard.chunk_packets) return false;
  // A sum that lacks our contribution cannot be.
  if (owner != me_ && last >= foreign_[owner].sent_packets()) return false;
  return run.last_length == shard.length_of(last) &&
         (run.packets == 1 || run.header.length == shard.payload_bytes);
}

std::uint32_t Operation::accept_contribution(Time now, const Run& run) {
  owned_.note_ack(run.header.sender, run.header.ack);
  return owned_.accept(now, run.header.sender, run.header.offset / owned_.shard().payload_bytes, run);
}

std::uint32_t Operation::accept_reduced(Time now, const Run& run) {
  ForeignShard& shard = foreign_[run.header.sender];
  if (shard.complete()) return 0;
  const std::uint32_t packet = run.header.offset / shard.shard().payload_bytes;
  const std::uint32_t bytes = shard.accept(now, packet, run, schedule_.bytes() >= kStreamAboveBytes);
  if (shard.complete()) --foreign_incomplete_;
  return bytes;
}

bool Operation::next_reduced(OutgoingBatch& batch) {
  if (!owned_.next_batch(batch)) return false;
  label(batch, PacketType::Reduced, owned_index());
  batch.resent = false;
  batch.ack = 0;
  batch.to.clear();
  for (Rank offset = 1; offset < size_; ++offset)
    batch.to.push_back(static_cast<Rank>((me_ + offset) % size_));
  return true;
}

bool Operation::next_contribution(const std::vector<Peer>& peers, std::vector<bool>& blocked,
                                  OutgoingBatch& batch) {
  for (Rank tried = 0; tried < size_; ++tried) {
    turn_ = static_cast<Rank>((turn_ + 1) % size_);
    if (turn_ == me_ || blocked[turn_]) continue;
    if (!foreign_[turn_].next_batch(peers[turn_].window, batch)) {
      blocked[turn_] = !foreign_[turn_].all_sent();
      continue;
    }
    label(batch, PacketType::Contribution, foreign_index(turn_));
    batch.resent = false;
    batch.to.assign(1, turn_);
    return true;
  }
  return false;
}

void Operation::fill_repair(const Repair& repair, OutgoingBatch& batch) const {
  const bool reduced = repair.type == PacketType::Reduced;
  const Rank owner = reduced ? me_ : repair.to;
  batch.shard = reduced ? owned_.shard() : foreign_[owner].shard();
  const std::byte* chunk =
      reduced ? owned_.chunk_data(repair.chunk) : foreign_[owner].chunk_data(repair.chunk);
  const auto first_bit = static_cast<std::uint32_t>(std::countr_zero(repair.packets));
  batch.first_packet = repair.chunk * batch.shard.chunk_packets + first_bit;
  batch.packets = static_cast<std::uint32_t>(std::countr_one(repair.packets >> first_bit));
  batch.data = chunk + batch.shard.offset_of(first_bit);
  batch.ack = reduced ? 0 : foreign_[owner].flow().whole_chunks();
  batch.resent = true;
  batch.to.assign(1, repair.to);
  label(batch, repair.type, schedule_.shard_of(owner));
}

void Operation::label(OutgoingBatch& batch, PacketType type, Rank shard_index) const {
  batch.type = type;
  batch.operation = number_;
  batch.descriptor = descriptor_;
  batch.shard_index = shard_index;
}

void Operation::stamp(const OutgoingBatch& batch, std::uint32_t timestamp) {
  if (batch.type == PacketType::Contribution) {
    foreign_[batch.to.front()].stamp(batch.first_packet, timestamp, batch.resent);
  } else if (batch.resent) {
    owned_.stamp_repair(batch.to.front(), batch.first_packet / batch.shard.chunk_packets, timestamp);
  } else {
    owned_.stamp(batch.first_packet, timestamp);
  }
}

bool Operation::complete() const {
  return foreign_incomplete_ == 0 && owned_.complete();
}

std::vector<Rank> Operation::waiting_for() const {
  std::vector<Rank> furthest_behind, reduced;
  std::uint32_t most_missing = 1;
  for (Rank peer = 0; peer < size_; ++peer) {
    if (peer == me_) continue;
    const std::uint32_t missing = owned_.flow(peer).missing_packets();
    if (missing > most_missing) furthest_behind.clear();
    if (missing >= most_missing) furthest_behind.push_back(peer);
    most_missing = std::max(most_missing, missing);
    if (!foreign_[peer].complete()) reduced.push_back(peer);
  }
  return furthest_behind.empty() ? reduced : furthest_behind;
}

bool Operation::waits_for_contributions() const {
  for (Rank peer = 0; peer < size_; ++peer) {
    if (peer != me_ && !owned_.flow(peer).complete()) return true;
  }
  return false;
}

std::string Operation::describe_wait(Rank peer) const {
  const auto progress = [](const InboundFlow& flow, const Shard& shard) {
    if (flow.empty()) return std::string("nothing");
    return std::to_string(shard.packets() - flow.missing_packets()) + " of " +
           std::to_string(shard.packets()) + " packets";
  };
  const std::string name = "rank " + std::to_string(peer);
  if (!owned_.flow(peer).complete())
    return name + " (received of its part: " + progress(owned_.flow(peer), owned_.shard()) + ")";
  return name + " (received of what it reduces: " + progress(foreign_[peer].flow(), foreign_[peer].shard()) +
         ")";
}

}  // namespace optireduce
