// What an endpoint is told once, before its first operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "proto/rank.h"
#include "proto/seal.h"
#include "proto/time.h"

namespace optireduce {

/// How operations with a deadline behave. The same on every rank but for `repair`.
struct BoundOptions {
  /// Operations that run to completion before the first one has a deadline.
  std::uint32_t warmup_operations = 20;
  /// The hard bound is this percentile of what operations took, between two multiples of what is usual.
  double percentile = 95;
  double least = 1.3;
  double most = 1.4;
  /// Ask for missing packets again while there is time. Without it the transport is the papers'.
  bool repair = true;
  /// Fetch what was missing at the deadline afterwards, unless there is no repair; see late_repair.h.
  bool late_repair = true;
  /// Send packets in another order each time; see packet_order.h.
  bool shuffle = true;
  /// A rank is no longer waited for after so many operations without anything from it.
  std::uint32_t absent_after = 3;
  /// Fewer ranks than this are an error. 0: a majority.
  Rank min_ranks = 0;
  /// Where fewer are there, operations wait so long for more before they fail; see quorum_gate.h.
  Duration quorum_wait = Duration::millis(30'000);
};

/// Which stages of an all-reduce an endpoint carries out; see grid.h.
enum class Stages : std::uint8_t {
  Both,    // all of it
  First,   // every rank ends with its own shard, reduced
  Second,  // every rank begins with its own shard reduced, and ends with all of them
};

struct EndpointConfig {
  Rank rank = 0;
  Rank size = 1;

  /// An endpoint of a part of a group: the ranks of that part by the names that the group has for them, and
  /// how many the group has. Empty and 0: the endpoint is the whole group's.
  std::vector<Rank> members;
  Rank group = 0;
  /// Told apart from the other endpoints of the same rank by this number in every packet.
  std::uint8_t lane = 0;
  Stages stages = Stages::Both;
  /// A mean divides by the sum of the weights, counted in this unit.
  double weight_unit = 1;

  Rank name_of(Rank place) const { return members.empty() ? place : members[place]; }
  Rank group_size() const { return group == 0 ? size : group; }
  /// Whether its operations are parts of those of a larger group.
  bool is_part() const { return size != group_size(); }

  /// What tells packets of this session from those of strangers and of older sessions.
  Seal seal;

  /// Bytes of gradient in one packet; the same on every rank, a multiple of 16 (better of 64, see
  /// payload_for_mtu).
  std::uint32_t payload_bytes = 1408;

  /// Stage-1 bytes that may be on their way to one peer. 2 to 4 chunks of 64 KB fill a fast link; more falls
  /// out of the caches and overflows stock socket buffers.
  std::size_t window_bytes = 256 * 1024;

  /// What each peer granted: an upper bound for window_bytes towards it (empty: no bound). Indexed by rank.
  std::vector<std::size_t> grants;

  /// Memory for packets of operations that this rank has not started yet. Beyond it they are dropped,
  /// counted, and repaired later.
  std::size_t early_bytes = 64 * 1024 * 1024;

  /// Memory for reduced packets of bounded operations that absent or late ranks may still ask for. Beyond it
  /// the oldest are forgotten.
  std::size_t archive_bytes = 64 * 1024 * 1024;

  /// Memory for reduced packets that came after their operation, until the next one takes them.
  std::size_t correction_bytes = 64 * 1024 * 1024;

  /// Bounds of the adaptive wait before missing packets are asked for again, and its value before any
  /// measurement.
  Duration repair_min = Duration::millis(5);
  Duration repair_max = Duration::millis(200);
  Duration repair_initial = Duration::millis(20);

  /// How long a gap may be explained by reordering before it counts as loss.
  Duration reorder_delay = Duration::micros(250);

  BoundOptions bound;

  /// Send reduced packets once, to the group, instead of once to each peer. The driver must have a group that
  /// everybody hears. The same on every rank is usual, but not needed.
  bool multicast = false;

  /// A peer whose window is full is told what has arrived after this time, unless a packet of ours that goes
  /// there anyway says so before.
  Duration answer_delay = Duration::millis(1);

  /// An absent rank is asked for a sign of life so often.
  Duration ping_interval = Duration::millis(100);

  /// An idle rank tells its peers after this time what it has completed, so that they can free memory.
  Duration ack_delay = Duration::millis(5);
};

}  // namespace optireduce
