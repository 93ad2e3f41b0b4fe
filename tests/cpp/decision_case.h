// Training over the simulator: every rank makes the same bounded calls, step by step, and every value that
// went in is accounted for at the end.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "inspection.h"
#include "sim/network.h"

namespace decisioncase {

using namespace optireduce;

struct Training {
  std::size_t steps = 12;
  std::vector<std::uint32_t> buckets = {4000, 9000};  // elements
  std::vector<std::vector<Duration>> compute = {};    // by rank and step; missing: 1 ms
  bool bounded = true;
  bool stays_readable = true;
  std::size_t exact_steps = 0;             // at the beginning
  std::size_t exact_at = ~std::size_t{0};  // one more
  bool weighted = false;                   // see weighted_case.h
  /// Ranks that are left behind take over what the others have, so long after these captured it.
  std::optional<Duration> snapshots = {};
  bool gives_up_replay = false;  // ranks that are far behind take a snapshot instead of replaying
};

/// The samples of a weighted step; none in some.
inline std::uint32_t samples(Rank rank, std::size_t step) {
  return static_cast<std::uint32_t>((rank * 7 + step * 3) % 5 * (1 + step % 3));
}

/// Rank r contributes small integers that depend on rank, step and place: sums are exact in float32.
inline float contribution(Rank rank, std::size_t step, std::size_t element) {
  return static_cast<float>(1 + (rank * 3 + step * 5 + element) % 4);
}

class Run {
 public:
  Run(const sim::SimOptions& options, const Training& training)
      : network_(options), training_(training), piece_(options.protocol.path.payload_bytes / sizeof(float)) {
    for (const sim::Restart& restart : options.restarts) look_after(restart.rank, restart.at);
    for (const sim::Pause& pause : options.pauses) {
      if (training.snapshots) look_after(pause.rank, pause.end);
    }
  }

  /// Every rank runs its steps one after the other; false: no end within the limit.
  bool run(Duration limit = Duration::millis(600'000)) {
    const Rank ranks = network_.ranks();
    std::vector<sim::Collective> operations;
    for (std::size_t step = 0; step < training_.steps; ++step) {
      for (std::size_t bucket = 0; bucket < training_.buckets.size(); ++bucket) {
        sim::Collective operation;
        for (Rank rank = 0; rank < ranks; ++rank) {
          const std::size_t number = step * training_.buckets.size() + bucket;
          fill(number, rank);
          auto& values = values_[{number, rank}];
          const auto& compute =
              rank < training_.compute.size() ? training_.compute[rank] : std::vector<Duration>{};
          const Duration pause = bucket != 0             ? Duration{}
                                 : step < compute.size() ? compute[step]
                                                         : Duration::millis(1);
          const bool exact = step < training_.exact_steps || step == training_.exact_at;
          const ReduceOp op = training_.weighted ? ReduceOp::WeightedMean : ReduceOp::Sum;
          operation.calls.push_back(
              {.descriptor = {training_.buckets[bucket], DType::Float32, op, training_.bounded && !exact},
               .data = reinterpret_cast<std::byte*>(values.data()),
               .start = pause,
               .weight = training_.weighted ? samples(rank, step) : 1,
               .follows = step + bucket != 0,
               .stream = static_cast<std::uint32_t>(bucket + 1),
               .step = step,
               .stays_readable = training_.stays_readable});
        }
        operations.push_back(std::move(operation));
      }
    }
    result_ = network_.run(operations, limit, [this](std::size_t operation, Rank rank, const Report& report) {
      note_end(operation, rank, report);
    });
    return result_.finished;
  }

  const sim::RunResult& result() const { return result_; }
  sim::Network& network() { return network_; }
  const std::vector<float>& values(std::size_t operation, Rank rank) const {
    return results_.at({operation, rank});
  }
  bool reported(std::size_t operation, Rank rank) const {
    const auto& report = result_.reports[operation][rank];
    return report && report->error == ErrorCode::None;
  }
  /// By itself, or by a snapshot.
  bool completed(std::size_t operation, Rank rank) const {
    const auto restored = restored_.find(rank);
    const bool taken_over = restored != restored_.end() && operation < restored->second;
    return taken_over || reported(operation, rank);
  }
  std::size_t restores() const { return restores_; }
  const Training& training() const { return training_; }
  /// Values of a packet.
  std::size_t piece() const { return piece_; }
  std::size_t give_ups() const { return give_ups_; }
  /// Whether a rank was seen that replayed outside the view.
  bool learned() const { return learned_; }

  /// A rank that is not a member any more may have applied a decision that the others made void. It knows.
  bool counts(Rank rank) const {
    return !network_.crashed(rank) && !inspect(network_.group(rank)).left_behind;
  }

  /// The first operation whose result differs between two ranks that completed it; empty: none.
  std::string why_different() const {
    for (std::size_t operation = 0; operation < result_.reports.size(); ++operation) {
      int first = -1;
      for (Rank rank = 0; rank < network_.ranks(); ++rank) {
        if (!completed(operation, rank) || !counts(rank)) continue;
        if (first < 0) first = rank;
        const auto& a = values(operation, static_cast<Rank>(first));
        const auto& b = values(operation, rank);
        for (std::size_t i = 0; i < a.size(); ++i) {
          if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0)
            return "operation " + std::to_string(operation) + " value " + std::to_string(i) + ": rank " +
                   std::to_string(first) + " has " + std::to_string(a[i]) + ", rank " + std::to_string(rank) +
                   " has " + std::to_string(b[i]);
        }
      }
    }
    return "";
  }

  /// The first value of which more than all contributions is in the results. And not more bytes are missing
  /// there than were dropped and counted, or never contributed. For runs in which no process was lost.
  std::string why_not_accounted() {
    const std::size_t buckets = training_.buckets.size(), operations = result_.reports.size();
    Rank full = 0;  // has everything
    const auto lacks = [&](Rank rank) {
      for (std::size_t operation = 0; operation < operations; ++operation)
        if (!completed(operation, rank) || !counts(rank)) return true;
      return false;
    };
    while (full < network_.ranks() && lacks(full)) ++full;
    if (full == network_.ranks()) return "";
    std::uint64_t missing = 0, accounted = 0;
    for (Rank rank = 0; rank < network_.ranks(); ++rank) {
      accounted += network_.stats(rank).dropped_bytes;
      for (std::size_t operation = 0; operation < operations; ++operation)
        accounted += reported(operation, rank) ? 0 : training_.buckets[operation % buckets] * sizeof(float);
    }
    for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
      std::vector<double> balance = contributed(bucket);
      for (std::size_t step = 0; step < training_.steps; ++step) {
        const auto& result = values(step * buckets + bucket, full);
        for (std::size_t i = 0; i < balance.size(); ++i) balance[i] -= static_cast<double>(result[i]);
      }
      for (std::size_t i = 0; i < balance.size(); ++i) {
        if (balance[i] < 0)
          return "bucket " + std::to_string(bucket) + " value " + std::to_string(i) +
                 " was counted twice: " + std::to_string(balance[i]);
        missing += static_cast<std::uint64_t>(std::ceil(balance[i] / 4)) * sizeof(float);
      }
    }
    return missing <= accounted ? ""
                                : std::to_string(missing) + " bytes are missing, " +
                                      std::to_string(accounted) + " are accounted for";
  }

  /// The first value at which results and residuals do not add up to the contributions; empty: none. For runs
  /// in which every rank completed everything.
  std::string why_not_conserved() {
    const std::size_t buckets = training_.buckets.size();
    for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
      std::vector<double> balance = contributed(bucket);
      for (std::size_t step = 0; step < training_.steps; ++step) {
        const auto& result = values(step * buckets + bucket, 0);
        for (std::size_t i = 0; i < balance.size(); ++i) balance[i] -= static_cast<double>(result[i]);
      }
      for (std::size_t i = 0; i < balance.size(); ++i) {
        if (balance[i] != 0)
          return "bucket " + std::to_string(bucket) + " value " + std::to_string(i) + " is off by " +
                 std::to_string(balance[i]);
      }
    }
    return "";
  }

 private:
  /// By all ranks, without the residuals that they still have.
  std::vector<double> contributed(std::size_t bucket) {
    std::vector<double> sums(training_.buckets[bucket], 0.0);
    for (Rank rank = 0; rank < network_.ranks(); ++rank) {
      for (std::size_t step = 0; step < training_.steps; ++step)
        for (std::size_t i = 0; i < sums.size(); ++i)
          sums[i] += static_cast<double>(contribution(rank, step, i));
      const auto kept = network_.group(rank).take_residual(static_cast<std::uint32_t>(bucket + 1)).values;
      for (std::size_t i = 0; i * sizeof(float) < kept.size(); ++i) {
        float value;
        std::memcpy(&value, kept.data() + i * sizeof(float), sizeof value);
        sums[i] -= static_cast<double>(value);
      }
    }
    return sums;
  }

  // ---- Snapshots

  /// A restarted process has no call that could tell that it is left behind.
  void look_after(Rank rank, Time since) {
    constexpr Duration kInterval = Duration::millis(5);
    network_.plan(since + kInterval, rank, [this, rank] {
      Group& group = network_.group(rank);
      const bool at_boundary = group.completed() % training_.buckets.size() == 0 && group.idle();
      if (training_.gives_up_replay && at_boundary && group.behind().value_or(0) > 0)
        give_ups_ += group.give_up_replay(network_.now()) ? 1 : 0;
      learned_ = learned_ || group.behind().value_or(0) > 0;
      if (group.left_behind()) want_snapshot(rank);
      look_after(rank, network_.now());
    });
  }
  /// Of the step after the next one that anybody begins, as all others can still see it coming.
  void want_snapshot(Rank rank) {
    if (training_.snapshots && !wanted_.contains(rank)) wanted_[rank] = {furthest_ + 2, {}, {}};
  }
  /// A rank has completed all before this step: all of them capture what they have at the same step.
  void capture(Rank donor, std::size_t step) {
    furthest_ = std::max(furthest_, step);
    for (auto& [rank, wanted] : wanted_) {
      if (wanted.step != step || rank == donor || network_.group(donor).left_behind()) continue;
      const Position position = network_.group(donor).position();
      if (!wanted.results.empty()) continue;
      wanted.position = position;
      for (std::size_t i = 0; i < position.completed; ++i) wanted.results.push_back(results_.at({i, donor}));
      network_.plan(network_.now() + *training_.snapshots, rank, [this, to = rank] { take_over(to); });
    }
  }
  void take_over(Rank rank) {
    const Wanted taken = wanted_.at(rank);
    wanted_.erase(rank);
    if (!network_.group(rank).left_behind()) return;
    ++restores_;
    restored_[rank] = taken.results.size();
    for (std::size_t i = 0; i < taken.results.size(); ++i) results_[{i, rank}] = taken.results[i];
    for (std::size_t i = taken.results.size(); i < training_.steps * training_.buckets.size(); ++i)
      fill(i, rank);  // what was called in vain is called again
    network_.restore(rank, taken.position, taken.step);
  }
  void fill(std::size_t operation, Rank rank) {
    auto& values = values_[{operation, rank}];
    const std::size_t step = operation / training_.buckets.size();
    values.assign(training_.buckets[operation % training_.buckets.size()], 0.0F);
    if (training_.weighted && samples(rank, step) == 0)  // they do not matter
      std::fill(values.begin(), values.end(), std::numeric_limits<float>::quiet_NaN());
    for (std::size_t i = rank * training_.steps + step; training_.weighted && i < values.size(); i += piece_)
      values[i] = static_cast<float>(samples(rank, step));
    if (training_.weighted) return;
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = contribution(rank, step, i);
  }

  /// Takes the result, and overwrites the memory as soon as a training loop would.
  void note_end(std::size_t operation, Rank rank, const Report& report) {
    results_[{operation, rank}] = values_[{operation, rank}];
    if (report.error == ErrorCode::LeftBehind) want_snapshot(rank);
    if (report.error != ErrorCode::None) return;
    const std::size_t buckets = training_.buckets.size();
    if (!training_.stays_readable) spoil(operation, rank);
    if (operation % buckets + 1 != buckets) return;
    if (training_.stays_readable) network_.group(rank).release(network_.now());
    for (std::size_t bucket = 0; training_.stays_readable && bucket < buckets; ++bucket)
      spoil(operation - bucket, rank);
    capture(rank, operation / buckets + 1);
  }
  void spoil(std::size_t operation, Rank rank) {
    auto& values = values_[{operation, rank}];
    std::fill(values.begin(), values.end(), std::numeric_limits<float>::quiet_NaN());
  }

  struct Wanted {
    std::size_t step = 0;
    Position position;
    std::vector<std::vector<float>> results;
  };

  sim::Network network_;
  Training training_;
  std::size_t piece_;
  std::map<std::pair<std::size_t, Rank>, std::vector<float>> values_, results_;
  sim::RunResult result_;
  std::map<Rank, Wanted> wanted_;         // by ranks that are left behind
  std::map<Rank, std::size_t> restored_;  // how many results are of a snapshot
  std::size_t furthest_ = 0, restores_ = 0, give_ups_ = 0;
  bool learned_ = false;
};

}  // namespace decisioncase
