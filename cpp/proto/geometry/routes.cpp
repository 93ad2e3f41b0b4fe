#include "geometry/routes.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace optireduce {
namespace {

void check(Rank size, const Rows& rows) {
  std::vector<bool> seen(size, false);
  for (const std::vector<Rank>& row : rows) {
    for (const Rank rank : row) {
      if (rank >= size || seen[rank])
        throw std::invalid_argument("rank " + std::to_string(rank) + " of the rows is not one of " +
                                    std::to_string(size) + " ranks, or stands in two places");
      seen[rank] = true;
    }
  }
  const auto missing = std::find(seen.begin(), seen.end(), false);
  if (missing != seen.end())
    throw std::invalid_argument("rank " + std::to_string(missing - seen.begin()) +
                                " is in no row of the grid");
  for (const std::vector<Rank>& row : rows) {
    if (row.size() != rows.front().size())
      throw std::invalid_argument("rows have " + std::to_string(rows.front().size()) + " and " +
                                  std::to_string(row.size()) + " ranks, must be equally long");
  }
}

}  // namespace

Routes::Routes(Rank size, const Rows& rows) : rows_(rows), row_of_(size), column_of_(size) {
  if (rows.empty()) return;
  check(size, rows);
  for (Rank row = 0; row < rows.size(); ++row) {
    for (Rank column = 0; column < rows[row].size(); ++column) {
      row_of_[rows[row][column]] = row;
      column_of_[rows[row][column]] = column;
    }
  }
}

}  // namespace optireduce
