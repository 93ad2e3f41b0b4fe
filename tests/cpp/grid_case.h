// Grids over the simulator.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "bounded_case.h"

namespace gridcase {

using namespace boundedcase;

/// Consecutive ranks in so many rows.
inline Rows rows_of(Rank ranks, Rank groups) {
  Rows rows(groups);
  for (Rank rank = 0; rank < ranks; ++rank) rows[rank / (ranks / groups)].push_back(rank);
  return rows;
}

inline sim::SimOptions grid_of(Rank ranks, Rank groups, std::uint64_t seed = 1) {
  sim::SimOptions options;
  options.ranks = ranks;
  options.rows = rows_of(ranks, groups);
  options.seed = seed;
  options.protocol.bound.warmup_operations = 5;
  return options;
}

/// What every rank contributes to an element: every mean of it is the same, whoever is missing.
inline float common(std::size_t element) {
  return static_cast<float>(1 + element % 7);
}

struct GridLoop {
  std::uint32_t elements = 20'000;
  std::size_t operations = 10;
  Duration compute = Duration::millis(1);
  Duration first_start{};
  std::uint32_t stream = 0;
  std::size_t at_once = 1;  // operations that are started together
};

/// A training loop in which every value can be told from a wrong one.
class CommonLoop : public TrainingLoop {
 public:
  using TrainingLoop::TrainingLoop;

  const sim::RunResult& run(const GridLoop& loop) {
    loop_ = loop;
    const Descriptor descriptor{loop.elements, DType::Float32, ReduceOp::Mean, true};
    const auto call_of = [&](std::size_t operation, Rank) {
      const bool follows = loop.at_once == 1 && operation != 0;
      const auto batch = static_cast<int>(operation / loop.at_once);
      const Duration start = follows ? loop.compute : loop.first_start + loop.compute * batch;
      return sim::Call{descriptor, nullptr, start, 1, follows, loop.stream};
    };
    const auto same_of_all = [](Rank, std::size_t element) { return common(element); };
    return run_calls(loop.operations, call_of, same_of_all, Duration::millis(600'000));
  }

  std::string why_wrong() const override {
    for (Rank rank = 0; rank < options().ranks; ++rank) {
      std::vector<double> behind(loop_.elements, 0);
      for (std::size_t i = 0; i < loop_.operations; ++i) {
        if (!has_report(i, rank) || report(i, rank).error != ErrorCode::None) continue;
        const std::string why = why_wrong(i, rank, behind);
        if (!why.empty()) return "operation " + std::to_string(i) + " on rank " + std::to_string(rank) + why;
      }
      // What comes late makes up for what was missing, never for more.
      for (std::size_t e = 0; e < loop_.elements && complete_on(rank); ++e) {
        if (behind[e] < -1e-3) return "rank " + std::to_string(rank) + " got more than was given";
      }
    }
    return "";
  }

 private:
  /// What a row lacks makes means smaller where less than half of it came; only that row reports it.
  bool lacks_contributions(std::size_t operation) const {
    for (Rank rank = 0; rank < options().ranks; ++rank) {
      if (!has_report(operation, rank)) return true;
      const Report& told = report(operation, rank);
      if (told.contributions_lost_bytes != 0 || !told.absent.empty() || told.error != ErrorCode::None)
        return true;
    }
    return false;
  }

  bool complete_on(Rank rank) const {
    for (std::size_t i = 0; i < loop_.operations; ++i) {
      if (!has_report(i, rank) || report(i, rank).error != ErrorCode::None) return false;
    }
    return true;
  }

  std::string why_wrong(std::size_t operation, Rank rank, std::vector<double>& behind) const {
    const Report& told = report(operation, rank);
    std::vector<bool> lost(loop_.elements, false);
    for (const Hole& hole : told.holes) {
      if (hole.stage != PacketType::Reduced) continue;
      for (std::size_t e = hole.begin / 4; e < (hole.begin + hole.bytes) / 4; ++e) lost[e] = true;
    }
    const bool weakened = lacks_contributions(operation);
    for (std::size_t e = 0; e < loop_.elements; ++e) {
      const double value = values(operation, rank)[e], right = common(e);
      behind[e] += right - value;
      const bool exact = std::abs(value - right) <= 1e-5 * right;
      const bool less = value >= 0 && value < right;
      const bool corrected = loop_.stream != 0 && value > right;
      if (exact || corrected || (less && (lost[e] || weakened))) continue;
      return ", element " + std::to_string(e) + ": " + std::to_string(value) + " instead of " +
             std::to_string(right) + (lost[e] ? " (lost)" : "") + (weakened ? " (weakened)" : "");
    }
    return "";
  }

  GridLoop loop_;
};

}  // namespace gridcase
