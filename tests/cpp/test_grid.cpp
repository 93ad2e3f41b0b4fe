// Grids: the same results as flat, on every rank the same, and the same deadlines.
#include <cmath>
#include <set>
#include <stdexcept>

#include "decision_case.h"
#include "sim_case.h"

using namespace simcase;

namespace {

struct Shape {
  Rank ranks;
  Rank groups;
};
constexpr Shape kShapes[] = {{4, 2}, {6, 2}, {6, 3}, {8, 4}, {9, 3}, {16, 4}};

/// Consecutive ranks in so many rows.
sim::SimOptions grid_of(Rank ranks, Rank groups, std::uint64_t seed = 1) {
  sim::SimOptions options;
  options.ranks = ranks;
  options.protocol.rows.resize(groups);
  for (Rank rank = 0; rank < ranks; ++rank) options.protocol.rows[rank / (ranks / groups)].push_back(rank);
  options.seed = seed;
  return options;
}

/// One operation on values of its own for each rank; the results by rank.
struct Run {
  std::vector<std::vector<float>> values;
  std::vector<Report> reports;
};

Run run_once(const sim::SimOptions& options, ReduceOp op, std::uint32_t elements, bool bounded,
             const std::vector<std::uint32_t>& weights) {
  Run run;
  sim::Network network(options);
  sim::Random random(options.seed);
  for (Rank rank = 0; rank < options.ranks; ++rank) {
    auto& bucket = run.values.emplace_back(elements);
    for (float& value : bucket) value = static_cast<float>(random.uniform() * 4 - 2);
  }
  sim::Collective collective;
  for (Rank rank = 0; rank < options.ranks; ++rank) {
    collective.calls.push_back({.descriptor = {elements, DType::Float32, op, bounded},
                                .data = reinterpret_cast<std::byte*>(run.values[rank].data()),
                                .weight = weights.empty() ? 1 : weights[rank],
                                .stream = bounded ? 1u : 0u});
  }
  const sim::RunResult result = network.run({collective}, Duration::millis(60'000));
  CHECK(result.finished);
  for (Rank rank = 0; rank < options.ranks; ++rank)
    run.reports.push_back(result.reports[0][rank].value_or(Report{}));
  return run;
}

void check_like_flat(const sim::SimOptions& options, ReduceOp op, std::uint32_t elements,
                     const std::vector<std::uint32_t>& weights = {}, bool bounded = false) {
  sim::SimOptions flat = options;
  flat.protocol.rows.clear();
  const Run expected = run_once(flat, op, elements, false, weights);
  const Run run = run_once(options, op, elements, bounded, weights);
  for (Rank rank = 0; rank < options.ranks; ++rank) {
    CHECK_EQ(run.reports[rank].message, std::string());
    CHECK_EQ(run.reports[rank].bytes, elements * sizeof(float));
    CHECK(run.values[rank] == run.values[0]);
    std::size_t wrong = 0;
    for (std::size_t e = 0; e < elements; ++e)
      wrong += std::abs(run.values[rank][e] - expected.values[rank][e]) < 1e-5f * options.ranks ? 0 : 1;
    CHECK_EQ(wrong, 0u);
  }
}

}  // namespace

TEST(a_grid_gives_what_flat_gives_and_all_ranks_the_same) {
  for (const Shape& shape : kShapes) {
    for (const std::uint32_t elements : {0u, 1u, 100u, 5'000u, 60'001u}) {
      check_like_flat(grid_of(shape.ranks, shape.groups), ReduceOp::Mean, elements);
      check_like_flat(grid_of(shape.ranks, shape.groups), ReduceOp::Sum, elements);
    }
  }
}

TEST(weights_count_as_in_flat_also_where_ranks_or_rows_abstain) {
  check_like_flat(grid_of(6, 3), ReduceOp::Mean, 5'000, {1, 7, 300, 2, 5, 10'000});
  check_like_flat(grid_of(6, 3), ReduceOp::Mean, 5'000, {1, 0, 300, 2, 5, 0});
  check_like_flat(grid_of(6, 3), ReduceOp::Mean, 5'000, {0, 0, 300, 2, 5, 4});
  check_like_flat(grid_of(6, 3), ReduceOp::Sum, 5'000, {0, 0, 1, 1, 1, 0});
}

TEST(a_bounded_call_has_no_deadline_before_owners_know_what_is_usual) {
  sim::SimOptions options = grid_of(6, 3, 7);
  options.link.loss = 0.05;
  check_like_flat(options, ReduceOp::Mean, 20'000, {}, true);
}

TEST(loss_is_repaired) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Shape& shape = kShapes[seed % std::size(kShapes)];
    sim::SimOptions options = grid_of(shape.ranks, shape.groups, seed);
    options.link.loss = 0.1;
    options.link.duplicate = options.link.reorder = 0.05;
    options.link.jitter = Duration::micros(200);
    check_like_flat(options, ReduceOp::Mean, 1'000 + 3'000 * static_cast<std::uint32_t>(seed));
  }
}

TEST(every_type_goes_through_a_grid) {
  for (const DType dtype : {DType::Float64, DType::BFloat16, DType::Float16, DType::Int8Block}) {
    sim::SimOptions options = grid_of(6, 3);
    sim::Random random(3);
    sim::Network network(options);
    const Descriptor descriptor{3'000, dtype, ReduceOp::Mean, false};
    std::vector<Bytes> buckets;
    for (Rank rank = 0; rank < options.ranks; ++rank) buckets.push_back(random_bucket(descriptor, random));
    const Bytes expected = expected_of(descriptor, buckets);
    sim::Collective collective;
    for (Rank rank = 0; rank < options.ranks; ++rank)
      collective.calls.push_back({.descriptor = descriptor, .data = buckets[rank].data()});
    CHECK(network.run({collective}, Duration::millis(60'000)).finished);
    for (Rank rank = 1; rank < options.ranks; ++rank) CHECK(buckets[rank] == buckets[0]);
    if (dtype != DType::Float64) continue;  // the others are rounded once more than flat
    for (std::size_t at = 0; at < expected.size(); at += 8) {
      double value, right;
      std::memcpy(&value, buckets[0].data() + at, 8);
      std::memcpy(&right, expected.data() + at, 8);
      CHECK(std::abs(value - right) < 1e-12);
    }
  }
}

TEST(gathers_run_flat_between_all_reduces) {
  const sim::SimOptions options = grid_of(4, 2);
  sim::Network network(options);
  constexpr std::uint32_t kElements = 4'000;
  std::vector<std::vector<std::vector<float>>> buckets(3);
  std::vector<sim::Collective> collectives(3);
  for (std::size_t i = 0; i < 3; ++i) {
    const ReduceOp op = i == 1 ? ReduceOp::Gather : ReduceOp::Mean;
    for (Rank rank = 0; rank < 4; ++rank) {
      buckets[i].emplace_back(kElements, static_cast<float>(rank));
      collectives[i].calls.push_back({.descriptor = {kElements, DType::Float32, op, false},
                                      .data = reinterpret_cast<std::byte*>(buckets[i][rank].data())});
    }
  }
  const sim::RunResult result = network.run(collectives, Duration::millis(60'000));
  CHECK(result.finished);
  for (Rank rank = 0; result.finished && rank < 4; ++rank) {
    for (std::uint64_t i = 0; i < 3; ++i) CHECK_EQ(result.reports[i][rank]->operation, i);
    CHECK(buckets[0][rank] == std::vector<float>(kElements, 1.5f));
    CHECK_EQ(buckets[1][rank][0], 0.0f);
    CHECK_EQ(buckets[1][rank][kElements - 1], 3.0f);
    CHECK(buckets[2][rank] == std::vector<float>(kElements, 1.5f));
  }
}

TEST(many_buckets_are_under_way_at_once) {
  sim::SimOptions options = grid_of(9, 3, 11);
  options.link.loss = 0.01;
  sim::Network network(options);
  constexpr std::uint32_t kElements = 9'000;
  std::vector<std::vector<std::vector<float>>> buckets(40);
  std::vector<sim::Collective> collectives(40);
  for (std::size_t i = 0; i < 40; ++i) {
    for (Rank rank = 0; rank < 9; ++rank) {
      buckets[i].emplace_back(kElements, static_cast<float>(rank + i));
      collectives[i].calls.push_back({.descriptor = {kElements, DType::Float32, ReduceOp::Mean, false},
                                      .data = reinterpret_cast<std::byte*>(buckets[i][rank].data()),
                                      .start = Duration::millis(5) * static_cast<int>(i / 8)});
    }
  }
  CHECK(network.run(collectives, Duration::millis(60'000)).finished);
  for (std::size_t i = 0; i < 40; ++i) {
    for (Rank rank = 0; rank < 9; ++rank)
      CHECK(buckets[i][rank] == std::vector<float>(kElements, static_cast<float>(4 + i)));
  }
  CHECK(network.settle(Duration::millis(120'000)));
}

// Its relays close their sums over it, and hand on those of the rest of its row.
TEST(a_late_rank_delays_nobody_and_nobody_else_is_excluded_from_that_step) {
  constexpr std::size_t kLateStep = 20;
  for (const Shape& shape : {Shape{6, 3}, Shape{8, 2}, Shape{9, 3}}) {
    const Rank late = shape.ranks / 2;
    decisioncase::Training training;
    training.steps = 30;
    training.compute.assign(shape.ranks, std::vector<Duration>(training.steps, Duration::millis(2)));
    training.compute[late][kLateStep] = Duration::millis(200);
    decisioncase::Run run(grid_of(shape.ranks, shape.groups, 3), training);
    CHECK(run.run());
    CHECK_EQ(run.why_different(), std::string());
    CHECK_EQ(run.why_not_conserved(), std::string());
    const std::size_t first = kLateStep * training.buckets.size();
    for (Rank rank = 0; rank < shape.ranks; ++rank) {
      const Report& report = *run.result().reports[first][rank];
      CHECK(report.bounded);
      CHECK(report.excluded == std::vector<Excluded>({{late, report.bytes}}));
      if (rank != late) CHECK(report.elapsed < Duration::millis(50));
    }
  }
}

TEST(a_rank_that_is_late_in_every_step_is_waited_for_when_its_residual_is_old) {
  decisioncase::Training training;
  training.steps = 40;
  training.compute.assign(6, std::vector<Duration>(training.steps, Duration::millis(5)));
  for (std::size_t step = 15; step < training.steps; ++step) training.compute[4][step] = Duration::millis(25);
  decisioncase::Run run(grid_of(6, 3, 3), training);
  CHECK(run.run());
  CHECK_EQ(run.why_different(), std::string());
  CHECK_EQ(run.why_not_conserved(), std::string());
  std::uint32_t oldest = 0;
  std::size_t excluded = 0;
  for (const auto& reports : run.result().reports) {
    oldest = std::max(oldest, reports[4]->own.oldest_steps);
    excluded += reports[4]->own.residual != 0 ? 1 : 0;
  }
  CHECK(excluded > 5);
  CHECK(oldest >= 3);
  CHECK(oldest <= 6);  // as in a flat group: others may be max_lag steps ahead when they hear of it
}

// As a rank of a flat group serves for a process that is late.
TEST(a_relay_serves_for_a_process_that_has_not_begun) {
  decisioncase::Training training;
  training.steps = 24;
  training.stays_readable = false;
  training.compute.assign(4, std::vector<Duration>(training.steps, Duration::millis(2)));
  for (const Rank rank : {Rank{0}, Rank{3}}) training.compute[rank][18] = Duration::millis(300);
  sim::SimOptions options = grid_of(4, 2, 5);
  options.link.loss = 0.02;
  decisioncase::Run run(options, training);
  CHECK(run.run());
  CHECK_EQ(run.why_different(), std::string());
  CHECK_EQ(run.why_not_conserved(), std::string());
  for (const Rank rank : {Rank{1}, Rank{2}})
    CHECK(run.result().reports[18 * training.buckets.size()][rank]->elapsed < Duration::millis(150));
}

// A member that is away would leave its row without a relay.
TEST(without_a_rank_the_others_go_on_flat_and_in_rows_again_when_it_is_back) {
  decisioncase::Training training;
  training.steps = 150;
  training.stays_readable = false;
  training.snapshots = Duration::millis(10);
  training.compute.assign(6, std::vector<Duration>(training.steps, Duration::millis(8)));
  sim::SimOptions options = grid_of(6, 3, 3);
  options.crashes.push_back({4, Time{} + Duration::millis(100)});
  options.restarts.push_back({4, Time{} + Duration::millis(200)});
  decisioncase::Run run(options, training);
  CHECK(run.run());
  CHECK_EQ(run.restores(), 1u);
  CHECK_EQ(run.why_different(), std::string());
  std::set<std::size_t> sizes;
  for (const auto& reports : run.result().reports) {
    CHECK(reports[0]->error == ErrorCode::None);
    sizes.insert(reports[0]->members.size());
  }
  CHECK((sizes == std::set<std::size_t>{5, 6}));
  for (Rank rank = 0; rank < 6; ++rank) {
    CHECK_EQ(inspect(run.network().group(rank)).members.size(), 6u);
    CHECK(inspect(run.network().group(rank)).routed);
  }
}

// For ever: the run ends with five.
TEST(what_a_dead_relay_had_is_excluded_and_what_its_row_lacks_comes_from_the_owners) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    decisioncase::Training training;
    training.steps = 40;
    training.compute.assign(6, std::vector<Duration>(training.steps, Duration::millis(3)));
    sim::SimOptions options = grid_of(6, 2, seed);
    options.link.loss = 0.01;
    options.crashes.push_back({static_cast<Rank>(seed % 6), Time{} + Duration::micros(60'000 + 37 * seed)});
    decisioncase::Run run(options, training);
    CHECK(run.run());
    CHECK_EQ(run.why_different(), std::string());
    for (const auto& reports : run.result().reports) {
      for (Rank rank = 0; rank < 6; ++rank) {
        if (rank != seed % 6) CHECK_EQ(reports[rank]->message, std::string());
      }
    }
  }
}

TEST(a_rank_that_dies_ends_operations_at_their_timeout_on_every_rank) {
  sim::SimOptions options = grid_of(6, 3);
  options.crashes.push_back({1, Time{}});
  Case test(options);
  test.add(floats(20'000), {}, Duration::millis(500));
  CHECK(test.run(Duration::millis(10'000)).finished);
  for (const Rank rank : {Rank{0}, Rank{2}, Rank{3}, Rank{4}, Rank{5}}) {
    CHECK(test.report(0, rank).error == ErrorCode::Timeout);
    CHECK(!test.report(0, rank).ranks.empty());
  }
}

TEST(a_rank_in_no_row_is_refused) {
  bool refused = false;
  try {
    sim::SimOptions options = grid_of(4, 2);
    options.protocol.rows[1].pop_back();
    sim::Network network(options);
  } catch (const std::invalid_argument& error) {
    refused = std::string(error.what()).find("3") != std::string::npos;
  }
  CHECK(refused);
}

RUN_TESTS()
