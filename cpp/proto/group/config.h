// What a group is told once, before its first operation.
#pragma once

#include <vector>

#include "geometry/routes.h"
#include "operation/best_effort.h"
#include "path/rtt.h"
#include "wire/seal.h"

namespace optireduce {

enum class Delivery : std::uint8_t {
  Carry,       // decisions are sent until every member has them; excluded contributions are carried over
  BestEffort,  // the papers' transport: what is missing at a deadline is lost
};

/// Decisions and views name at most so many ranks.
constexpr Rank kMostNamed = 64;

struct GroupConfig {
  Rank rank = 0;
  Rank size = 1;
  Rows rows;  // the way that packets take while all ranks are members; see geometry/routes.h
  Seal seal;  // tells packets of this session from those of strangers and of older sessions
  PathOptions path;

  /// What each peer granted: an upper bound for the window towards it (empty: no bound). Indexed by rank.
  std::vector<std::size_t> grants;

  /// Memory for operations that the local process has not begun. Beyond it packets are dropped, counted, and
  /// repaired later.
  std::size_t early_bytes = 64 * 1024 * 1024;
  /// Memory for decisions that members, or ranks that may return, still lack. Beyond it the oldest are
  /// forgotten, but for our own decisions that members lack.
  std::size_t log_bytes = 256 * 1024 * 1024;

  Delivery delivery = Delivery::Carry;
  /// Send the packets of bounded operations in another order each time; see PacketOrder.
  bool shuffle = true;
  /// A member may be so many steps behind before the others wait for it.
  std::uint32_t max_lag = 2;
  /// The share of contributions that deadlines may exclude.
  double exclude_at_most = 0.05;

  /// A rank that leaves or is silent ends operations with an error. Always so in best effort and above 64
  /// ranks.
  bool fixed_membership = false;
  /// Which process of this rank it is, counted from 0. A restarted one is no member: it is left behind, and a
  /// snapshot brings it in.
  std::uint32_t incarnation = 0;
  /// Fewer ranks than this do not go on. 0: a majority.
  Rank min_ranks = 0;
  /// Where fewer are there, operations wait so long for more before they fail.
  Duration quorum_wait = Duration::millis(30'000);
  /// While an exact operation is open, and always where membership is fixed, a rank may be silent for so
  /// long.
  Duration exact_silence = Duration::millis(10'000);

  BestEffortOptions best_effort;

  /// Send decisions once, to the multicast group, instead of once to each peer.
  bool multicast = false;

  bool elastic() const {
    return !fixed_membership && delivery == Delivery::Carry && size > 1 && size <= kMostNamed;
  }
  /// Whether a call fails without one of the ranks: they are neither removed nor left out.
  bool needs_everybody(bool bounded) const { return !elastic() && (delivery == Delivery::Carry || !bounded); }
};

}  // namespace optireduce
