// One operation in the group's sequence: a reduce-scatter and an all-gather, over the members of its view. It
// exists from the first packet of it that comes, or from the local call, whatever is earlier, until
// every member has completed it: a rank serves as an owner for operations that its own process has not begun,
// and answers for those that it has completed.
//
// Other ranks are served by its Exchange. The rest is the local process's part: its call, when members began
// and the shard was closed, and what becomes of our contribution.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "operation/call.h"
#include "recovery/residual.h"
#include "stage/exchange.h"

namespace optireduce {

/// The time limits of one operation in best effort; no hard one: it runs to completion.
struct BestEffortLimits {
  std::optional<Duration> hard;  // tB: it ends, whatever is missing
  Duration drain;                // how long sending a whole decided shard takes
  Duration margin;               // between the end of sending and the hard limit
  Duration early_wait;           // x * tC: from the last news to the end, once nearly all has been sent
  std::size_t bytes_ahead = 0;   // of operations that were under way when this one began
};

class Operation {
 public:
  Operation(OperationSetup setup, Time now);

  Exchange& exchange() { return exchange_; }
  const Exchange& exchange() const { return exchange_; }
  const ReduceScatter& scatter() const { return exchange_.scatter(); }
  const AllGather& gather() const { return exchange_.gather(); }
  const OperationSetup& setup() const { return exchange_.setup(); }
  const Descriptor& descriptor() const { return setup().descriptor; }
  std::uint64_t number() const { return setup().number; }
  std::size_t bytes() const { return exchange_.bytes(); }
  Rank place_of(Rank rank) const { return setup().place_of(rank); }
  Rank rank_at(Rank place) const { return setup().members[place]; }
  Rank places() const { return setup().places(); }

  // ---- The local process

  bool begun() const { return call_.has_value(); }
  const LocalCall& call() const { return *call_; }
  /// The process has begun the operation: its memory is the bucket from now on. Residuals go along with what
  /// is not decided; contributions to what is decided become residuals.
  void begin(Time now, const LocalCall& call, Residuals& residuals);
  /// Decisions that may not count any more have been placed in the caller's memory.
  void note_overwritten();
  bool complete() const { return begun() && exchange_.complete(); }
  /// Ends the local process's part. The operation stays to answer requests.
  void finish(Residuals& residuals);
  /// It has failed: what went along with it, if it is exact, is kept again.
  void give_back(Residuals& residuals);
  bool finished() const { return finished_; }
  /// What became of our contribution so far.
  const OwnBytes& own() const { return own_; }

  // ---- Packets in

  /// For runs that fit the exchange. Bytes that were new.
  std::uint32_t accept_contribution(Time now, const ReceivedRun& run);
  std::uint32_t accept_decision(Time now, const ReceivedRun& run, Residuals& residuals);
  void note_abstention(Time now, Rank from);

  // ---- Decisions

  /// Decides what is left of our shard with the contributions that are here.
  void close(Time now, ClosedBy reason, std::uint32_t undecided_packets = 0);
  /// As a relay: our row is not waited for any longer.
  void close_relays(Time now);
  ClosedBy closed_by() const { return closed_by_; }
  /// When a deadline closed our shard; never: none did.
  Time closed_at() const { return closed_at_; }
  /// The same of what we relay.
  Time relays_closed_at() const { return relays_closed_at_; }
  /// Packets of an owner that was removed, which nobody has.
  void make_void(Rank owner_rank, std::uint32_t chunk, std::uint64_t packets, Residuals& residuals);

  // ---- Times

  /// When a member, by place, was first seen to have begun; never: not yet.
  Time begun_at(Rank place) const { return begun_at_[place]; }
  /// When half of those who give us contributions to our shard had begun, we among them: deadlines count from
  /// here. Never: not yet.
  Time half_begun_at() const { return half_begun_at_; }
  /// The same of our row, for what we relay.
  Time half_row_begun_at() const { return half_row_begun_at_; }

  std::uint64_t repaired_bytes = 0;
  BestEffortLimits limits;  // best effort only
  Time progress_at;         // when the last packet came that was of use

 private:
  void note_begun(Time now, Rank place);
  template <typename Counts>
  bool half_have_begun(Counts counts) const;
  /// Whether our contribution, if there is one, is kept where it is excluded.
  bool carries_along() const { return begun() && call_->adds() && setup().carries(); }
  bool takes_residual(const Residuals& residuals) const;
  void prepare_for_residual(const Residuals& residuals);
  void add_residual(const Shard& shard, std::uint32_t packet, Residuals& residuals);
  void keep_excluded(Rank owner, std::uint32_t packet, Residuals& residuals);
  void take_over_shard(Rank owner, const Bucket::Memory& before, bool takes, Residuals& residuals);
  ValueSpace value_space() const;

  Exchange exchange_;
  std::optional<LocalCall> call_;
  std::vector<Time> begun_at_;  // by place
  Time half_begun_at_ = Time::never(), half_row_begun_at_ = Time::never();
  ClosedBy closed_by_ = ClosedBy::Complete;
  Time closed_at_ = Time::never(), relays_closed_at_ = Time::never();
  bool finished_ = false;
  OwnBytes own_;
};

std::string describe(const Descriptor& descriptor);

}  // namespace optireduce
