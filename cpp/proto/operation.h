// One all-reduce in flight: the shard this rank owns, and the shards of the others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "proto/foreign_shard.h"
#include "proto/outgoing.h"
#include "proto/owned_shard.h"
#include "proto/packet.h"
#include "proto/run.h"
#include "proto/schedule.h"

namespace optireduce {

class Operation {
 public:
  Operation(std::uint64_t number, const Descriptor& descriptor, std::byte* data, const EndpointConfig& config,
            Time now, Duration timeout);

  std::uint64_t number() const { return number_; }
  const Descriptor& descriptor() const { return descriptor_; }
  Time started() const { return started_; }
  Time deadline() const { return deadline_; }
  std::size_t bytes() const { return schedule_.bytes(); }

  Rank owned_index() const { return schedule_.shard_of(me_); }
  Rank foreign_index(Rank owner) const { return schedule_.shard_of(owner); }

  /// Whether a run's place and lengths are those of a shard; nothing is touched otherwise.
  bool fits(const Run& run) const;
  /// For runs that fit. Bytes that were new.
  std::uint32_t accept_contribution(Time now, const Run& run);
  std::uint32_t accept_reduced(Time now, const Run& run);

  bool next_reduced(OutgoingBatch& batch);
  /// A contribution to any owner whose window admits it, taking turns, starting with our neighbour so that
  /// ranks do not all send to the same owner at once. Owners that wait for more room are marked as blocked: a
  /// later operation that took the room left over could wait for us while we wait for it.
  bool next_contribution(const std::vector<Peer>& peers, std::vector<bool>& blocked, OutgoingBatch& batch);
  /// Describes the first packets of `repair` to send again.
  void fill_repair(const Repair& repair, OutgoingBatch& batch) const;
  void stamp(const OutgoingBatch& batch, std::uint32_t timestamp);

  bool complete() const;
  OwnedShard& owned() { return owned_; }
  const OwnedShard& owned() const { return owned_; }
  ForeignShard& foreign(Rank owner) { return foreign_[owner]; }
  const ForeignShard& foreign(Rank owner) const { return foreign_[owner]; }

  /// Peers that this operation waits for: those whose contributions are furthest behind (the others wait for
  /// the same ranks, with full windows) or, if none is missing, those whose reduced shards are.
  std::vector<Rank> waiting_for() const;
  bool waits_for_contributions() const;
  /// "rank 2 has sent nothing of it", for people.
  std::string describe_wait(Rank peer) const;

  std::uint64_t repaired_bytes = 0;

 private:
  void label(OutgoingBatch& batch, PacketType type, Rank shard_index) const;

  std::uint64_t number_;
  Descriptor descriptor_;
  Rank me_;
  Rank size_;
  Time started_;
  Time deadline_;
  Schedule schedule_;
  OwnedShard owned_;
  std::vector<ForeignShard> foreign_;  // by owner; ours stays empty
  Rank turn_;
  std::size_t foreign_incomplete_ = 0;
};

std::string describe(const Descriptor& descriptor);

}  // namespace optireduce
