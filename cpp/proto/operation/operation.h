// One operation in the group's sequence: a reduce-scatter, an all-gather, or both, over the members of one
// scope. It exists from the first packet of it that comes, or from the local call, whatever is earlier, until
// every member has completed it: a rank serves as an owner for operations that its own process has not begun,
// and answers for those that it has completed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "operation/report.h"
#include "recovery/residual.h"
#include "stage/all_gather.h"
#include "stage/reduce_scatter.h"

namespace optireduce {

constexpr Rank kNoPlace = 0xffff;

/// What an operation is told when it is made.
struct OperationSetup {
  std::uint64_t number = 0;
  Scope scope = Scope::All;
  Descriptor descriptor;
  std::uint32_t stream = 0;
  Rank rank = 0;              // ours
  std::vector<Rank> members;  // owners of its shards, in rank order
  bool serves = true;         // we are an owner and contribute
  bool reduces = true;        // has the first stage
  bool gathers = true;        // has the second stage
  bool best_effort = false;
  double weight_unit = 1;
  double fixed_divisor = 0;  // 0: a mean divides by its weights
  std::uint32_t payload_bytes = 0;
  std::uint64_t order_seed = 0;  // 0: packets in the order of memory
};

/// The time limits of one operation in best effort; no hard one: it runs to completion.
struct BestEffortLimits {
  std::optional<Duration> hard;  // tB: it ends, whatever is missing
  Duration drain;                // how long sending a whole decided shard takes
  Duration margin;               // between the end of sending and the hard limit
  Duration early_wait;           // x * tC: from the last news to the end, once nearly all has been sent
  std::size_t bytes_ahead = 0;   // of operations that were under way when this one began
};

/// What the local process gives to it.
struct LocalCall {
  std::byte* data = nullptr;
  WideMemory wide = {};
  WideMemory grid_wide = {};  // of the whole bucket, where stages exchange the narrow data itself
  std::uint32_t weight = 1;
  std::uint64_t step = 0;
  float scale = 1;
  bool contributes = true;  // false: the gradient is dropped, because this rank was not a member in time
  bool intact = true;       // false: decisions that do not count any more have overwritten some of it
  bool stays_readable = false;
  Time called_at;
  Time fails_at = Time::never();
};

class Operation {
 public:
  Operation(OperationSetup setup, Time now);

  std::uint64_t number() const { return setup_.number; }
  const OperationSetup& setup() const { return setup_; }
  const Descriptor& descriptor() const { return setup_.descriptor; }
  std::size_t bytes() const { return schedule_.bytes(); }
  /// Whether excluded contributions are kept.
  bool carries() const { return descriptor().bounded && !setup_.best_effort && setup_.stream != 0; }
  Rank place_of(Rank rank) const;
  Rank rank_at(Rank place) const { return setup_.members[place]; }
  Rank places() const { return static_cast<Rank>(setup_.members.size()); }

  // ---- The local process

  bool begun() const { return call_.has_value(); }
  const LocalCall& call() const { return *call_; }
  /// The process has begun the operation: its memory is the bucket from now on. Residuals go along with what
  /// is not decided; contributions to what is decided become residuals.
  void begin(Time now, const LocalCall& call, Residuals& residuals);

  // ---- Packets in

  /// Whether a run's shard, place and lengths are right; nothing is touched otherwise.
  bool fits(const ReceivedRun& run) const;
  /// For runs that fit. Bytes that were new.
  std::uint32_t accept_contribution(Time now, const ReceivedRun& run);
  std::uint32_t accept_decision(Time now, const ReceivedRun& run, Residuals& residuals);
  void note_abstention(Time now, Rank from);

  // ---- Decisions

  /// Decides what is left of our shard with the contributions that are here.
  void close(Time now, ClosedBy reason, std::uint32_t undecided_packets = 0);
  ClosedBy closed_by() const { return closed_by_; }
  /// When a deadline closed our shard; never: none did.
  Time closed_at() const { return closed_at_; }
  /// A member that was removed contributes no more, and needs nothing.
  void remove_member(Rank rank);
  /// Packets of an owner that was removed, which nobody has.
  void make_void(Rank owner_rank, std::uint32_t chunk, std::uint64_t packets, Residuals& residuals);
  /// All decisions are here and ours have left.
  bool complete() const;
  /// Ends the local process's part. The operation stays to answer requests.
  void finish(Residuals& residuals);
  bool finished() const { return finished_; }

  // ---- Packets out

  bool next_decision(Time now, const std::vector<Peer>& peers, bool to_group, OutgoingBatch& batch);
  /// A contribution to any owner whose window admits it, taking turns, starting with our neighbour. Owners
  /// that wait for more room are marked as blocked: an older operation always goes first.
  bool next_contribution(const std::vector<Peer>& peers, std::vector<bool>& blocked, OutgoingBatch& batch);
  std::uint64_t to_repair(PacketType wanted, Rank shard, const RequestEntry& entry,
                          const RequestContext& context) const;
  /// Describes the first packets of `repair` to send again; false if we do not have them any more.
  bool fill_repair(const Repair& repair, OutgoingBatch& batch) const;
  void stamp(const OutgoingBatch& batch, std::uint32_t timestamp);
  bool holds_back_contributions(Rank rank) const;
  bool holds_back_decisions(Rank rank) const;

  // ---- Memory after the end

  /// The caller's memory is about to change: copies the packets that somebody may still ask for.
  struct Keep {
    bool others = false;             // not our shard only, but also those of other owners
    std::vector<Rank> orphans = {};  // owners that were removed: somebody may have to pass on their shards
  };
  void detach(const Keep& keep);
  bool attached() const { return bucket_.begun(); }
  std::size_t engine_bytes() const;
  /// Whether the engine's memory already stands in for that shard of the caller's.
  bool stands_in_for(Rank shard) const { return !bucket_.standing_in(shard).empty(); }
  /// Decisions that may not count any more have been placed in the caller's memory.
  void note_overwritten();
  /// Whether we could send all of our own shard to a rank that returns.
  bool keeps_own() const { return me_ == kNoPlace || keeps(me_); }
  /// Whether we could pass on that owner's packets; they are gone otherwise.
  bool keeps(Rank owner) const;

  // ---- Getters

  bool reduces() const { return scatter_ != nullptr; }
  bool gathers() const { return gather_ != nullptr; }
  ReduceScatter& scatter() { return *scatter_; }
  const ReduceScatter& scatter() const { return *scatter_; }
  AllGather& gather() { return *gather_; }
  const AllGather& gather() const { return *gather_; }
  /// When a member, by place, was first seen to have begun; never: not yet.
  Time begun_at(Rank place) const { return begun_at_[place]; }
  /// When half of the members had begun: deadlines count from here. Never: not yet.
  Time half_begun_at() const { return half_begun_at_; }
  void fill(Time now, Report& report) const;
  void zero_missing();
  std::uint64_t digest() const;
  /// Ranks that the operation waits for: those whose contributions are furthest behind (the others wait for
  /// the same ranks) or, if none is missing, those whose decisions are.
  std::vector<Rank> waiting_for() const;
  bool waits_for_contributions() const;
  std::string describe_wait(Rank rank) const;

  std::uint64_t repaired_bytes = 0;
  BestEffortLimits limits;  // best effort only
  Time progress_at;         // when the last packet came that was of use

 private:
  void note_begun(Time now, Rank place);
  void keep_excluded(Rank owner, std::uint32_t packet, Residuals& residuals);
  void take_over_shard(Rank owner, Residuals& residuals);
  bool is_held(Rank owner, std::uint32_t packet) const;
  ValueSpace value_space() const;
  bool excludes_me(std::uint64_t detail) const {
    return carries() && (detail >> (setup_.rank & 63u) & 1) == 0;
  }
  const Decided& details(Rank owner) const;
  void keep_copy(Rank owner);
  void label(OutgoingBatch& batch, PacketType type) const;
  void fill_ledger(Report& report) const;
  void fill_holes(Rank owner, Report& report) const;

  OperationSetup setup_;
  Rank me_;  // our place, or kNoPlace
  Schedule schedule_;
  Bucket bucket_;
  std::unique_ptr<ReduceScatter> scatter_;
  std::unique_ptr<AllGather> gather_;
  std::optional<LocalCall> call_;
  std::vector<Time> begun_at_;  // by place
  Time half_begun_at_ = Time::never();
  Rank turn_;
  ClosedBy closed_by_ = ClosedBy::Complete;
  Time closed_at_ = Time::never();
  bool finished_ = false;
  std::map<Rank, std::vector<std::byte>> kept_;  // shards by owner, in the order of packets
  std::uint64_t carried_bytes_ = 0, residual_bytes_ = 0, dropped_bytes_ = 0;
};

std::string describe(const Descriptor& descriptor);

}  // namespace optireduce
