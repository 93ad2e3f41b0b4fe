// Whether the members' parameters are equal. Between two steps each member hashes some of its parameters and
// tells the others. Nothing waits for it, and nothing is sent again.
//
// Invariant: two hashes are compared only if both ranks had completed the same operations, and were members
// of the same view when they told them. Then they are equal, or something outside the group has changed
// values.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "group/members.h"

namespace optireduce {

/// What was heard of one step.
struct CheckedStep {
  std::uint64_t step = 0;
  std::vector<std::pair<Rank, std::uint64_t>> hashes;  // in rank order, this rank's among them
};

class Checks {
 public:
  Checks(Core& core, const Members& members)
      : core_(core), members_(members), kept_(core.config.max_lag + 2), told_(core.config.size) {}

  /// This rank's hash before a step; the steps that are settled by now. Does nothing while an operation is
  /// open, while this rank is no member, and a second time at the same position.
  std::vector<CheckedStep> tell(std::uint64_t step, std::uint64_t hash);
  /// A peer's.
  void handle(const ReceivedRun& run);

 private:
  /// When it was told: the view, and the operations that are completed.
  using Place = std::pair<std::uint64_t, std::uint64_t>;
  struct Told {
    Place place;
    std::uint64_t step = 0;  // of our own
    std::uint64_t hash = 0;
  };

  bool compares_with(Rank rank) const;
  bool is_settled(const CheckedStep& heard) const;
  CheckedStep heard_of(const Told& own) const;

  Core& core_;
  const Members& members_;
  /// Members are at most max_lag steps apart.
  const std::size_t kept_;
  std::vector<std::deque<Told>> told_;  // by rank, the last of each, in order
};

}  // namespace optireduce
