// The ways of packets through a grid, as data. The ranks stand in rows; those at the same place of all rows
// are a column. Every rank talks to its row and to its column only, and every shard has a tree:
//
//   owner            its row and its column are below it
//   column mate      relays: it adds up its row's contributions for the owner, and hands on decisions to its
//   row everybody else   is below the relay of its own row
//
// Contributions go up the tree of their shard, decisions go down. A flat group has no routes: everybody is
// directly below every owner. Pure functions; nothing here waits, sends or remembers.
#pragma once

#include <vector>

#include "base/rank.h"

namespace optireduce {

/// The ranks of every row of a grid, in the order of the columns. Empty: no grid.
using Rows = std::vector<std::vector<Rank>>;

class Routes {
 public:
  /// Throws std::invalid_argument unless every rank stands in one row and all rows are equally long.
  Routes(Rank size, const Rows& rows);

  bool flat() const { return rows_.empty(); }
  const Rows& rows() const { return rows_; }
  Rank row_of(Rank rank) const { return row_of_[rank]; }
  std::size_t row_size() const { return rows_.front().size(); }
  bool same_row(Rank a, Rank b) const { return row_of_[a] == row_of_[b]; }
  bool same_column(Rank a, Rank b) const { return column_of_[a] == column_of_[b]; }
  /// The rank of that row that stands in the same column as this one.
  Rank in_row(Rank row, Rank rank) const { return rows_[row][column_of_[rank]]; }
  /// Whether two ranks exchange anything.
  bool links(Rank a, Rank b) const { return a != b && (flat() || same_row(a, b) || same_column(a, b)); }
  /// Who takes that rank's contributions to the owner's shard, and hands it the decisions.
  Rank above(Rank rank, Rank owner) const {
    if (flat() || same_row(rank, owner) || same_column(rank, owner)) return owner;
    return in_row(row_of_[rank], owner);
  }
  /// Whether that rank adds up its row's contributions to the owner's shard.
  bool relays(Rank rank, Rank owner) const { return !flat() && rank != owner && same_column(rank, owner); }

 private:
  Rows rows_;
  std::vector<Rank> row_of_, column_of_;  // by rank
};

}  // namespace optireduce
