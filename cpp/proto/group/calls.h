// The calls of the local process, from their numbers to their ends, and the operations that serve them.
// calls.cpp begins them, ends.cpp ends them, failures.cpp fails them.
#pragma once

#include <string>
#include <vector>

#include "group/requests.h"
#include "operation/deadline.h"
#include "operation/time_model.h"

namespace optireduce {

/// An operation that is known from packets alone.
struct Uncalled {
  std::uint64_t number = 0;
  Descriptor descriptor;
  std::uint32_t stream = 0;
};

class Calls {
 public:
  Calls(Core& core, Members& members, Requests& requests)
      : core_(core),
        members_(members),
        requests_(requests),
        times_(core.config.exclude_at_most),
        row_times_(core.config.exclude_at_most) {}

  /// Takes the next number for a call, which waits then. Throws std::invalid_argument before it has changed
  /// anything.
  std::uint64_t take(Time now, const Call& call);
  /// Of the next number.
  std::optional<Uncalled> uncalled() const;
  /// Begins the calls that may begin.
  void begin_waiting(Time now);
  /// An operation that nothing was known of, for its first packet or for the call.
  Operation& make_operation(Time now, std::uint64_t number, const Descriptor& descriptor,
                            std::uint32_t stream);

  /// The process's part of it begins. Owners do not wait for a contribution that will not come.
  void begin_operation(Time now, Operation& operation, const LocalCall& local);
  /// An operation ends here without a report of its own: what it did to our contributions counts all the
  /// same.
  void count_own(Time now, const Operation& operation) { count_own(report_of(now, operation)); }

  /// Something happened to an operation: ends it, if that is all. It need not exist after that.
  void advance(Time now, Operation& operation);
  /// Closes our shard of an operation if its deadline has passed.
  void check_shard(Time now, std::uint64_t number);
  /// Ends what is complete, in the order of the numbers.
  void complete_ready(Time now);
  /// Forgets what everybody has. Ranks that were removed may return: what they lack is kept while there is
  /// room.
  void forget_old();
  /// The data of finished calls that stayed readable is about to be overwritten.
  void release();

  /// Of a call that has no end yet, or of an operation that is known from its packets; null: neither.
  const Descriptor* descriptor_of(std::uint64_t number);

  /// Ends one call with an error.
  void fail(Time now, std::uint64_t number, ErrorCode code, std::string message, std::vector<Rank> ranks);
  /// The same with what a peer said, or is told.
  void fail(Time now, std::uint64_t number, const RejectBody& body);
  /// Fails it on all ranks.
  void reject(Time now, std::uint64_t number, const RejectBody& body) {
    announce(number, body);
    fail(now, number, body);
  }
  /// A rank that a call needs is gone. Others may not need it, but wait for us.
  void reject_deserted(Time now, std::uint64_t number, const Descriptor& what, Rank gone);
  /// Exact operations that needed a removed rank fail on all members. One that was not called yet fails when
  /// it is.
  void fail_lost_exact(Time now, const View& view);
  void fail_rank_lost(Time now, std::uint64_t number, const View& view);
  /// Tells the others that a rank is lost.
  void announce_lost(Rank rank);
  void check_timeout(Time now, std::uint64_t number);

  PolicySnapshot policy(std::size_t bytes) const;

 private:
  void check(const Call& call) const;
  bool may_begin(const LocalCall& call) const;
  void begin(Time now, LocalCall call);
  bool refuse(Time now, const LocalCall& call, const Operation& operation);
  Act check_own(Time now, const Operation& operation) const;
  Act check_relays(Time now, const Operation& operation) const;
  void note_oldest(Rank rank, ShardState& state) const;
  void check_best_effort(Time now, Operation& operation);
  void finish(Time now, Operation& operation);
  void let_go(Operation& operation);
  std::uint64_t wanted_by_removed() const;
  bool is_kept_whole(std::uint64_t number) const;
  void note_completed(Time now, Report report);
  void count(const Report& report);
  void count_own(const Report& report);
  void check_multicast();
  void learn(Time now, const Operation& operation);
  Report report_of(Time now, const Operation& operation) const;
  void announce(std::uint64_t number, const RejectBody& body);
  void fail_late(Time now, std::uint64_t number);

  Core& core_;
  Members& members_;
  Requests& requests_;
  TimeModel times_;      // of contributions to our shards
  TimeModel row_times_;  // of our row's to the shards that we relay
};

}  // namespace optireduce
