// The grid: an all-reduce is a stage in this rank's row, one in its column, and one in its row again.
// All that other files know of it are the scopes of operations.
#pragma once

#include <optional>
#include <vector>

#include "group/config.h"
#include "group/operations.h"

namespace optireduce {

/// The configuration as it is. Throws std::invalid_argument unless every rank stands in one row and all rows
/// are equally long.
GroupConfig checked(GroupConfig config);

/// Whether operations other than gathers exchange anything with that rank.
bool are_linked(const GroupConfig& config, Rank rank);

/// Owners of the shards of a call.
inline Rank owners_of_call(const GroupConfig& config) {
  return config.rows.empty() ? config.size : static_cast<Rank>(config.rows.front().size());
}
/// The scope that a call begins in. Gathers go to everybody, in a grid too.
inline Scope first_scope(const GroupConfig& config, const Descriptor& descriptor) {
  return config.rows.empty() || descriptor.op == ReduceOp::Gather ? Scope::All : Scope::Row;
}
/// The members and the stages of an operation of this scope.
void set_scope(const GroupConfig& config, OperationSetup& setup);

/// The stages of a grid exchange the narrow data itself: it is rounded before the first and widened after the
/// last.
void round_call(const Operation& operation, LocalCall& call);
void widen_result(const Operation& row);

/// The stage whose end is the end of the call; null: nothing is known of it.
inline Operation* last_stage(const GroupConfig& config, const Operations& operations, std::uint64_t number) {
  Operation* const grid = config.rows.empty() ? nullptr : operations.find_open(number, Scope::RowResult);
  return grid != nullptr ? grid : operations.find_open(number);
}

struct Stage {
  Scope scope = Scope::Row;
  Descriptor descriptor;
  LocalCall call;
};
/// The stage after one that is complete, unless it has begun.
std::optional<Stage> next_stage(const Operations& operations, const Operation& complete);

}  // namespace optireduce
