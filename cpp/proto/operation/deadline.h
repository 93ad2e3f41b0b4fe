// When does an owner decide, and when does an operation end? The whole answer:
//
//   all contributions to a packet are here        its owner decides it
//   the deadline of the shard at its owner        it decides the rest with what is here; nothing at all: void
//   a rank has all decisions of an operation      the operation ends there
//   a rank is max_lag steps behind                the others begin nothing beyond until it has moved
//   an owner is silent                            the view changes; what nobody holds is void
//   fewer ranks than min_ranks                    wait for quorum_seconds, then an error
//   exact operation                               no deadline; a view change ends it with an error
//   timeout of the caller, mismatch, close        an error
//
// The deadline counts from when half of the members have begun. It never closes over a member whose residual
// is older than kOldestResidual steps, nor while this rank does not hear a quorum of its view.
#pragma once

#include <optional>

#include "base/time.h"

namespace optireduce {

/// Steps after which an excluded contribution is waited for.
constexpr std::uint8_t kOldestResidual = 3;

struct ShardState {
  Time half_begun_at = Time::never();
  std::optional<Duration> deadline;  // nothing: not known yet, or exact
  std::uint8_t oldest_missing = 0;   // age of the oldest residual of a member whose contribution is missing
  bool hears_quorum = true;
};

struct Act {
  bool close = false;
  Time ask_again = Time::never();  // when to decide anew, if nothing happens before
};

inline Act decide(Time now, const ShardState& shard) {
  if (!shard.deadline || shard.half_begun_at == Time::never()) return {};
  const Time due = shard.half_begun_at + *shard.deadline;
  if (now < due) return {false, due};
  const bool waits = shard.oldest_missing >= kOldestResidual || !shard.hears_quorum;
  if (waits) return {false, now + std::max(*shard.deadline / 4, Duration::micros(100))};
  return {true, Time::never()};
}

}  // namespace optireduce
