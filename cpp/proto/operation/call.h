// What the local process asks for, what its group knows of that, and how it ended.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "recovery/residual.h"
#include "stage/bucket.h"
#include "stage/weights.h"

namespace optireduce {

struct Call {
  Descriptor descriptor;
  std::byte* data = nullptr;  // valid until the report; with `stays_readable` until Group::release
  Duration timeout;           // it fails if it is not complete then
  std::uint32_t weight = 1;   // samples behind the contribution; 0: it has none, and its values do not matter
  /// Names the bucket and its layout, alike on all ranks; 0: none. Excluded contributions are kept by it, so
  /// that bounded calls need one. An exact call includes what is kept.
  std::uint32_t stream = 0;
  std::uint64_t step = 0;  // of training; members may differ by max_lag
  float scale = 1;         // the values are multiplied by it (a loss scale)
  /// The caller does not write to the data before Group::release, so that nothing has to be copied for
  /// members that are behind.
  bool stays_readable = false;
  /// Data of a narrow type that stands for these float32: they are what is contributed, they get the result,
  /// and the data is room to round to, with whatever it holds. Not for gathers.
  WideMemory wide = {};
};

/// A call from when it is made until its operation ends.
struct LocalCall : Call {
  std::uint64_t number = 0;
  Time called_at;
  bool contributes = true;    // false: the gradient is dropped, because this rank was not a member in time
  bool intact = true;         // false: decisions that do not count any more have overwritten some of it
  Weights weights = {};       // behind the contribution, with the residuals that go along
  Residuals::Loan lent = {};  // what goes along with an exact operation

  bool adds() const { return contributes && !weights.abstains(); }
  Time fails_at() const { return called_at + timeout; }
};

// ---- How it ended

enum class ErrorCode : std::uint8_t {
  None = 0,
  Timeout = 1,
  Mismatch = 2,
  Closed = 3,
  TooFewRanks = 4,
  LeftBehind = 5,     // this rank was removed and cannot return without a snapshot
  RankLost = 6,       // an exact operation needed a rank that was removed
  GroupFinished = 7,  // this rank is no member, and all others have left: there is nobody to return to
};

/// What closed our own shard.
enum class ClosedBy : std::uint8_t { Complete = 0, Early = 1, Deadline = 2 };

/// Bytes of one rank's contribution that no decision includes. The same on all members.
struct Excluded {
  Rank rank = 0;
  std::uint64_t bytes = 0;

  bool operator==(const Excluded&) const = default;
};

/// Best effort: a piece of the bucket that was not there when the operation ended.
struct Hole {
  PacketType stage = PacketType::Contribution;
  Rank peer = 0;          // whose contribution is missing in our shard; whose decisions are missing here
  std::size_t begin = 0;  // in bytes
  std::size_t bytes = 0;

  auto operator<=>(const Hole&) const = default;
};

/// What the policies said when the operation ended, so that every decision can be explained.
struct PolicySnapshot {
  Duration deadline;          // of our shard, from when half of the members had begun; 0: none
  Duration usual;             // what collecting contributions usually takes
  Duration early;             // best effort: tC
  double early_fraction = 0;  // best effort: x
  std::uint32_t incast = 0;
  std::uint64_t window_bytes = 0;  // the smallest towards any peer
  Duration rtt;                    // the largest smoothed one
  double bytes_per_second = 0;
};

/// What became of our contribution.
struct OwnBytes {
  std::uint64_t carried = 0;       // had a residual added
  std::uint64_t residual = 0;      // excluded, kept for the next one
  std::uint64_t dropped = 0;       // neither counted nor kept
  std::uint32_t oldest_steps = 0;  // age of our oldest residual
};

/// Who was late.
struct Lateness {
  std::optional<Rank> waited_for;  // whose contribution to our shard came last ...
  Duration waited;                 // ... and how much later than the median one
  Duration behind;                 // we began so much later than the median member
};

/// Best effort only.
struct Losses {
  std::uint64_t contribution_bytes = 0;  // of the bucket, times missing over all
  std::uint64_t decision_bytes = 0;      // of the bucket, zero here
  std::vector<Hole> holes;
};

struct Report {
  std::uint64_t operation = 0;
  std::uint64_t bytes = 0;
  Duration elapsed;
  Duration stood_still;              // of it: this process could not run
  std::uint64_t repaired_bytes = 0;  // bytes that arrived only because we asked again
  bool bounded = false;
  ClosedBy closed_by = ClosedBy::Complete;
  std::uint64_t view = 0;
  std::vector<Rank> members;
  std::vector<Excluded> excluded;
  std::uint64_t void_bytes = 0;  // of the bucket: no contribution was in time, the result is zero
  OwnBytes own;
  std::vector<Rank> non_finite;  // ranks whose contributions that we added up were not finite
  Lateness late;
  PolicySnapshot policy;
  Losses lost;
  ErrorCode error = ErrorCode::None;
  std::string message;      // for people; empty without an error
  std::vector<Rank> ranks;  // at fault
};

}  // namespace optireduce
