// How an operation ended.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "proto/config.h"
#include "proto/packet.h"
#include "proto/time.h"

namespace optireduce {

enum class ErrorCode : std::uint8_t { None = 0, Timeout = 1, Mismatch = 2, Closed = 3, TooFewRanks = 4 };

/// What ended an operation that did not fail.
enum class ClosedBy : std::uint8_t { Complete = 0, Early = 1, Deadline = 2 };

/// A piece of the bucket that was not there when the operation ended.
struct Hole {
  PacketType stage = PacketType::Contribution;
  Rank peer = 0;          // whose contribution is missing in our shard; whose reduced shard is missing here
  std::size_t begin = 0;  // in bytes
  std::size_t bytes = 0;

  auto operator<=>(const Hole&) const = default;
};

/// Bytes that one peer owed us.
struct PeerLoss {
  Rank peer = 0;
  std::uint64_t contribution_bytes = 0;
  std::uint64_t reduced_bytes = 0;
};

/// What the policies said when the operation ended, so that every decision can be explained.
struct PolicySnapshot {
  Duration bound;             // tB of this operation; 0 when it was not bounded
  Duration early;             // tC of this operation
  double early_fraction = 0;  // x
  std::uint32_t incast = 0;
  std::uint64_t window_bytes = 0;  // the smallest towards any peer
  Duration rtt;                    // the largest smoothed one
  double bytes_per_second = 0;
};

struct Report {
  std::uint64_t operation = 0;
  std::uint64_t bytes = 0;
  Duration elapsed;
  Duration stood_still;              // of it: this process could not run
  Duration quorum_wait;              // of it: too few ranks were there to begin
  std::uint64_t repaired_bytes = 0;  // bytes that arrived only because we asked again
  bool bounded = false;
  ClosedBy closed_by = ClosedBy::Complete;
  std::uint64_t contributions_lost_bytes = 0;  // of the result, times missing contributions over ranks
  std::uint64_t reduced_lost_bytes = 0;        // of the result: never came, are zero
  std::uint64_t corrected_bytes = 0;           // of earlier operations, added to this one's result
  std::vector<Rank> non_finite;                // ranks whose contributions to our shard were no numbers
  std::vector<Hole> holes;
  std::vector<PeerLoss> lost_by_peer;
  std::vector<Rank> absent;  // not waited for
  Duration behind;           // started so much later than the median peer
  PolicySnapshot policy;
  std::uint64_t weight = 0;  // first stage alone: of all that contributed
  ErrorCode error = ErrorCode::None;
  std::string message;      // for people; empty without an error
  std::vector<Rank> ranks;  // at fault
};

}  // namespace optireduce
