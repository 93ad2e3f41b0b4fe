// The pure part of a view change: what a rank answers to a proposal, and the view that follows from the
// answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "views/agreement.h"
#include "views/membership.h"
#include "views/view_messages.h"

namespace optireduce {

/// What the view change asks the data path. Called only from within ViewChange's own methods; changes
/// nothing.
struct Journal {
  std::function<std::uint64_t()> completed;  // C: everything below is handed over
  std::function<std::uint64_t()> floor;      // I can send my decisions from here on
  std::function<bool(std::uint64_t)>
      near;  // a rank that has completed so much is at most max_lag steps behind
  std::function<std::uint64_t()>
      touched_end;  // one past the highest operation contributed to, decided or held
  std::function<std::uint64_t(std::uint64_t)> digest;  // over everything below n, for floor <= n <= C
  std::function<std::vector<OpenOperation>()> open;    // operations from C on that are known here, in order
  /// Shards of these owners in this operation whose geometry is known here, with what others can get of them.
  std::function<std::vector<HeldShard>(std::uint64_t operation, RankMask owners)> held;
};

/// Whether a rank that asks to come in may replay from this rank's log.
Verdict judge(const Membership& membership, const Journal& journal, Rank rank, const Join& request);

/// This rank's answer to a proposal, with what it has adopted so far. Operations within its reach are
/// described.
State describe(const Membership& membership, const Journal& journal, const Propose& propose,
               const Agreement& agreement);

/// My view for others, with the older ones that a rank which joins needs.
Install views_to_tell(const ViewHistory& history, const Journal& journal);

/// The view that the answers of all ranks that stay lead to; none if it would undo what all have completed,
/// or would have fewer than `min_ranks`.
std::optional<View> next_view(const ViewHistory& history, const Propose& propose,
                              const std::map<Rank, State>& states, std::size_t min_ranks);

}  // namespace optireduce
