// The grid: an all-reduce is a stage in this rank's row, one in its column, and one in its row again. Other
// files know the scopes of operations, and no more of it.
#pragma once

#include <vector>

#include "operation/operation.h"

namespace optireduce {

/// The ranks of every row of a grid, in the order of the columns. Empty: no grid.
using Rows = std::vector<std::vector<Rank>>;

class Grid {
 public:
  /// Throws std::invalid_argument unless every rank stands in one row and all rows are equally long.
  Grid(Rank rank, Rank size, const Rows& rows);

  /// Whether operations other than gathers exchange anything with that rank.
  bool links(Rank rank) const;
  /// Owners of the shards of a call.
  Rank owners() const { return static_cast<Rank>(row_.size()); }
  /// The scope that a call begins in. Gathers go to everybody, in a grid too.
  Scope first_scope(const Descriptor& descriptor) const {
    return column_.empty() || descriptor.op == ReduceOp::Gather ? Scope::All : Scope::Row;
  }
  /// Sets the members and the stages of an operation.
  void set_scope(OperationSetup& setup) const;

 private:
  Rank rank_, size_;
  std::vector<Rank> row_, column_;  // with this rank; without a grid everybody and nobody
};

/// A stage exchanges the narrow data itself: it is rounded before the first one, and widened after the last.
void round_for_grid(const Operation& row, LocalCall& call);
void widen_from_grid(const Operation& row);

/// What a later stage is called with, by its scope.
LocalCall call_after(const Operation& row, Scope scope);

}  // namespace optireduce
