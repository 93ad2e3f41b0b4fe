#include "group/grid.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace optireduce {
namespace {

std::string name_of(Rank rank) {
  return "rank " + std::to_string(rank);
}

bool contains(const std::vector<Rank>& ranks, Rank rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::vector<Rank> scope_members(const GroupConfig& config, Scope scope) {
  std::vector<Rank> all(config.size), column;
  std::iota(all.begin(), all.end(), Rank{0});
  if (scope == Scope::All) return all;
  const auto row = std::find_if(config.rows.begin(), config.rows.end(),
                                [&](const std::vector<Rank>& each) { return contains(each, config.rank); });
  if (scope != Scope::Column) return *row;
  const auto place = std::find(row->begin(), row->end(), config.rank) - row->begin();
  for (const std::vector<Rank>& each : config.rows) column.push_back(each[static_cast<std::size_t>(place)]);
  return column;
}

Bucket whole_bucket(const Operation& row, std::byte* data, const WideMemory& wide) {
  Bucket whole(row.descriptor().dtype, row.bytes(), 1);
  whole.begin(data, wide);
  return whole;
}

}  // namespace

GroupConfig checked(GroupConfig config) {
  if (config.rows.empty()) return config;
  std::vector<bool> seen(std::max<std::size_t>(config.size, config.rank + 1u), false);
  for (const std::vector<Rank>& row : config.rows) {
    for (const Rank rank : row) {
      if (rank >= config.size || seen[rank])
        throw std::invalid_argument(name_of(rank) + " of the rows is not one of " +
                                    std::to_string(config.size) + " ranks, or stands in two places");
      seen[rank] = true;
    }
  }
  const auto missing = std::find(seen.begin(), seen.end(), false) - seen.begin();
  if (missing != std::ssize(seen))
    throw std::invalid_argument(name_of(static_cast<Rank>(missing)) + " is in no row of the grid");
  for (const std::vector<Rank>& row : config.rows) {
    if (row.size() != config.rows.front().size())
      throw std::invalid_argument("rows have " + std::to_string(config.rows.front().size()) + " and " +
                                  std::to_string(row.size()) + " ranks, must be equally long");
  }
  return config;
}

bool are_linked(const GroupConfig& config, Rank rank) {
  if (rank == config.rank || config.rows.empty()) return rank != config.rank;
  return contains(scope_members(config, Scope::Row), rank) ||
         contains(scope_members(config, Scope::Column), rank);
}

void set_scope(const GroupConfig& config, OperationSetup& setup) {
  setup.members = scope_members(config, setup.scope);
  setup.reduces = setup.scope != Scope::RowResult;
  setup.gathers = setup.scope != Scope::Row;
  if (setup.scope == Scope::Row) setup.fixed_divisor = static_cast<double>(setup.members.size());
  if (setup.scope == Scope::Column) setup.weight_unit = static_cast<double>(config.rows.front().size());
}

void round_call(const Operation& operation, LocalCall& call) {
  if (operation.setup().scope != Scope::Row || call.wide.values == nullptr) return;
  whole_bucket(operation, call.data, call.wide).round({0, operation.bytes()});
  call.grid_wide = std::exchange(call.wide, {});
}

void widen_result(const Operation& row) {
  if (row.call().grid_wide.values == nullptr) return;
  whole_bucket(row, row.call().data, row.call().grid_wide).widen_all();
}

std::optional<Stage> next_stage(const Operations& operations, const Operation& complete) {
  const Scope scope = complete.setup().scope == Scope::Row ? Scope::Column : Scope::RowResult;
  const Operation* const begun = operations.find_open(complete.number(), scope);
  if (begun != nullptr && begun->begun()) return std::nullopt;
  const Operation& row = *operations.find_open(complete.number(), Scope::Row);
  Stage stage{scope, row.descriptor(), row.call()};
  stage.call.weight = 1;
  if (scope == Scope::Column) {
    const Shard& shard = row.scatter().shard();
    stage.descriptor.elements = static_cast<std::uint32_t>(shard.bytes / size_of(row.descriptor().dtype));
    stage.call.data += shard.begin;
    stage.call.weight = static_cast<std::uint32_t>(row.scatter().contributed_weight());
  }
  return stage;
}

}  // namespace optireduce
