#include "operation/grid.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace optireduce {
namespace {

bool contains(const std::vector<Rank>& ranks, Rank rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

void check(Rank self, Rank size, const Rows& rows) {
  std::vector<bool> seen(std::max<std::size_t>(size, self + 1u), false);
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

std::vector<Rank> first_ranks_of(Rank size) {
  std::vector<Rank> ranks(size);
  std::iota(ranks.begin(), ranks.end(), Rank{0});
  return ranks;
}

Bucket whole_bucket(const Operation& row, std::byte* data, const WideMemory& wide) {
  Bucket whole(row.descriptor().dtype, row.bytes(), 1);
  whole.begin(data, wide);
  return whole;
}

}  // namespace

Grid::Grid(Rank rank, Rank size, const Rows& rows) : rank_(rank), size_(size) {
  if (rows.empty()) {
    row_ = first_ranks_of(size);
    return;
  }
  check(rank, size, rows);
  for (const std::vector<Rank>& row : rows) {
    if (contains(row, rank)) row_ = row;
  }
  const auto place = std::find(row_.begin(), row_.end(), rank) - row_.begin();
  for (const std::vector<Rank>& row : rows) column_.push_back(row[static_cast<std::size_t>(place)]);
}

bool Grid::links(Rank rank) const {
  return rank != rank_ && (contains(row_, rank) || contains(column_, rank));
}

void Grid::set_scope(OperationSetup& setup) const {
  setup.reduces = setup.scope != Scope::RowResult;
  setup.gathers = setup.scope != Scope::Row;
  if (setup.scope == Scope::All) {
    setup.members = first_ranks_of(size_);
  } else if (setup.scope == Scope::Column) {
    setup.members = column_;
    setup.weight_unit = static_cast<double>(row_.size());
  } else {
    setup.members = row_;
    if (setup.scope == Scope::Row) setup.fixed_divisor = static_cast<double>(row_.size());
  }
}

void round_for_grid(const Operation& row, LocalCall& call) {
  if (row.setup().scope != Scope::Row || call.wide.values == nullptr) return;
  whole_bucket(row, call.data, call.wide).round({0, row.bytes()});
  call.grid_wide = std::exchange(call.wide, {});
}

void widen_from_grid(const Operation& row) {
  if (row.call().grid_wide.values == nullptr) return;
  whole_bucket(row, row.call().data, row.call().grid_wide).widen_all();
}

LocalCall call_after(const Operation& row, Scope scope) {
  LocalCall call = row.call();
  call.stream = 0;
  call.weights = Weights(1);
  if (scope == Scope::Column) {
    const Shard& shard = row.scatter().shard();
    call.descriptor.elements = static_cast<std::uint32_t>(shard.bytes / size_of(call.descriptor.dtype));
    call.data += shard.begin;
    call.weights = Weights(static_cast<std::uint32_t>(row.scatter().contributed_weight()));
  }
  return call;
}

}  // namespace optireduce
