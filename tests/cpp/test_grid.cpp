// Grids of endpoints: the same results as flat, with losses too.
#include "grid_case.h"
#include "sim_case.h"

using namespace gridcase;

namespace {

struct Shape {
  Rank ranks;
  Rank groups;
};
constexpr Shape kShapes[] = {{4, 2}, {6, 2}, {6, 3}, {8, 4}, {9, 3}, {16, 4}};

/// One operation on values of its own for each rank; the results by rank.
struct Run {
  std::vector<std::vector<float>> values;
  std::vector<Report> reports;
};

Run run_once(const sim::SimOptions& options, ReduceOp op, std::uint32_t elements, bool bounded = false,
             const std::vector<std::uint16_t>& weights = {}) {
  Run run;
  sim::Network network(options);
  sim::Random random(options.seed);
  for (Rank rank = 0; rank < options.ranks; ++rank) {
    auto& bucket = run.values.emplace_back(elements);
    for (float& value : bucket) value = static_cast<float>(random.uniform() * 4 - 2);
  }
  sim::Collective collective;
  for (Rank rank = 0; rank < options.ranks; ++rank) {
    collective.calls.push_back({{elements, DType::Float32, op, bounded},
                                reinterpret_cast<std::byte*>(run.values[rank].data()),
                                Duration{},
                                weights.empty() ? std::uint16_t{1} : weights[rank]});
  }
  const sim::RunResult result = network.run({collective}, Duration::millis(60'000));
  CHECK(result.finished);
  for (Rank rank = 0; rank < options.ranks; ++rank) run.reports.push_back(result.reports[0][rank].value());
  return run;
}

void check_like_flat(const sim::SimOptions& options, ReduceOp op, std::uint32_t elements,
                     const std::vector<std::uint16_t>& weights = {}) {
  sim::SimOptions flat = options;
  flat.rows.clear();
  const Run expected = run_once(flat, op, elements, false, weights);
  const Run run = run_once(options, op, elements, false, weights);
  for (Rank rank = 0; rank < options.ranks; ++rank) {
    CHECK_EQ(run.reports[rank].message, std::string());
    CHECK(run.values[rank] == run.values[0]);
    for (std::size_t e = 0; e < elements; ++e)
      CHECK(std::abs(run.values[rank][e] - expected.values[rank][e]) < 1e-5f * options.ranks);
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

TEST(a_weight_that_rows_cannot_add_up_is_refused) {
  bool refused = false;
  try {
    run_once(grid_of(4, 2), ReduceOp::Mean, 100, false, {40'000, 1, 1, 1});
  } catch (const std::invalid_argument& error) {
    refused = std::string(error.what()).find("weight 40000 is more than 32767") != std::string::npos;
  }
  CHECK(refused);
}

TEST(loss_is_repaired_where_an_operation_has_no_deadline) {
  sim::SimOptions options = grid_of(9, 3, 5);
  options.link.loss = 0.1;
  options.link.duplicate = options.link.reorder = 0.05;
  check_like_flat(options, ReduceOp::Mean, 60'000);
}

TEST(every_type_goes_through_a_grid) {
  for (const DType dtype : {DType::Float64, DType::BFloat16, DType::Float16, DType::Int8Block}) {
    sim::SimOptions options = grid_of(6, 3);
    sim::Random random(3);
    sim::Network network(options);
    const Descriptor descriptor{3'000, dtype, ReduceOp::Mean, false};
    std::vector<simcase::Bytes> buckets;
    sim::Collective collective;
    for (Rank rank = 0; rank < options.ranks; ++rank) {
      buckets.push_back(simcase::random_bucket(descriptor, random));
    }
    const simcase::Bytes expected = simcase::expected_of(descriptor, buckets);
    for (Rank rank = 0; rank < options.ranks; ++rank)
      collective.calls.push_back({descriptor, buckets[rank].data(), Duration{}});
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
      collectives[i].calls.push_back(
          {{kElements, DType::Float32, op, false}, reinterpret_cast<std::byte*>(buckets[i][rank].data())});
    }
  }
  const sim::RunResult result = network.run(collectives, Duration::millis(60'000));
  CHECK(result.finished);
  for (Rank rank = 0; rank < 4; ++rank) {
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
  CommonLoop loop(options);
  GridLoop plan;
  plan.operations = 40;
  plan.at_once = 8;
  plan.compute = Duration::millis(5);
  loop.run(plan);
  CHECK(loop.result().finished);
  CHECK_EQ(loop.why_wrong(), std::string());
  CHECK(loop.network().settle(Duration::millis(20'000)));
}

TEST(a_dead_rank_costs_its_row_its_piece_and_the_others_its_contribution) {
  sim::SimOptions options = grid_of(4, 2);
  options.crashes.push_back({1, Time{} + Duration::millis(10'000)});
  CommonLoop loop(options);
  loop.run({});
  GridLoop after;
  after.first_start = Duration::millis(11'000);
  after.operations = 20;
  loop.run(after);
  CHECK(loop.result().finished);
  CHECK_EQ(loop.why_wrong(), std::string());
  const std::size_t last = after.operations - 1;
  const std::size_t piece = after.elements * sizeof(float) / 2;
  for (const Rank rank : {Rank{0}, Rank{2}, Rank{3}}) {
    CHECK_EQ(loop.report(last, rank).message, std::string());  // a row of one is enough
  }
  CHECK_EQ(loop.report(last, 0).reduced_lost_bytes, piece);
  CHECK(loop.report(last, 0).absent == std::vector<Rank>{1});
  CHECK(loop.report(last, 3).absent == std::vector<Rank>{1});
  // The other row lacks what the dead rank would have reduced in its column, in whole packets.
  CHECK(loop.report(last, 2).reduced_lost_bytes >= piece / 2);
  CHECK(loop.report(last, 2).reduced_lost_bytes < piece / 2 + 2 * options.protocol.payload_bytes);
  for (const Hole& hole : loop.report(last, 0).holes) CHECK_EQ(hole.peer, Rank{1});
  CHECK(loop.network().protocol(0).absent(1));
  CHECK(loop.network().protocol(3).absent(1));
}

TEST(the_mean_is_over_the_contributions_that_came) {
  sim::SimOptions options = grid_of(4, 2);
  options.crashes.push_back({1, Time{} + Duration::millis(10'000)});
  CommonLoop warm(options);
  warm.run({});
  // Rank r contributes r: without rank 1, which has crashed, the piece that rank 0 and 2 reduce is the mean
  // of 0, 2 and 3. The other one is lost in the first row; in the second half of it is the mean of 2 and 3,
  // and half is lost with rank 1, which would have reduced it.
  constexpr std::uint32_t kElements = 4'000;
  std::vector<std::vector<std::vector<float>>> buckets(10);
  std::vector<sim::Collective> collectives(10);
  for (std::size_t i = 0; i < 10; ++i) {
    for (Rank rank = 0; rank < 4; ++rank) {
      buckets[i].emplace_back(kElements, static_cast<float>(rank));
      collectives[i].calls.push_back({{kElements, DType::Float32, ReduceOp::Mean, true},
                                      reinterpret_cast<std::byte*>(buckets[i][rank].data()),
                                      i == 0 ? Duration::millis(11'000) : Duration::millis(1),
                                      1,
                                      i != 0});
    }
  }
  CHECK(warm.network().run(collectives, Duration::millis(60'000)).finished);
  const auto& first_row = buckets[9][0];
  const auto& second_row = buckets[9][2];
  CHECK(buckets[9][3] == second_row);
  std::size_t lost_in_first = 0, lost_in_second = 0;
  for (std::size_t e = 0; e < kElements; ++e) {
    const bool mine = first_row[e] != 0, theirs = second_row[e] != 0;
    lost_in_first += mine ? 0 : 1;
    lost_in_second += theirs ? 0 : 1;
    if (mine) CHECK(std::abs(first_row[e] - 5.0f / 3) < 1e-6f);
    if (theirs) CHECK(std::abs(second_row[e] - (mine ? 5.0f / 3 : 2.5f)) < 1e-6f);
  }
  const auto about = [](std::size_t value, std::size_t right) {
    return value > right - 20 && value < right + 20;
  };
  CHECK(about(lost_in_first, kElements / 2));
  CHECK(about(lost_in_second, kElements / 4));
}

TEST(a_packet_that_lacks_contributions_weighs_as_much_as_the_others) {
  sim::SimOptions options = grid_of(8, 2, 9);
  options.doom.share = 0.03;
  options.doom.hopeless = sim::DoomOptions::Hopeless::Contributions;
  options.doom.first_operation = 5;
  CommonLoop loop(options);
  loop.run({});
  GridLoop plan;
  loop.run(plan);
  CHECK(loop.result().finished);
  std::uint64_t lost = 0, less = 0;
  for (std::size_t i = 0; i < plan.operations; ++i) {
    for (Rank rank = 0; rank < 8; ++rank) {
      lost += loop.report(i, rank).contributions_lost_bytes;
      for (std::size_t e = 0; e < plan.elements; ++e)
        less += std::abs(loop.values(i, rank)[e] - common(e)) > 1e-5f * common(e) ? 1 : 0;
    }
  }
  CHECK(lost > 0);
  // Only where more than half of a row is missing.
  CHECK(less < plan.elements * plan.operations * 8 / 500);
}

TEST(too_few_ranks_are_an_error_for_the_whole_group_only) {
  sim::SimOptions options = grid_of(4, 2);
  options.protocol.bound.min_ranks = 4;
  options.crashes.push_back({1, Time{} + Duration::millis(10'000)});
  CommonLoop loop(options);
  loop.run({});
  GridLoop after;
  after.first_start = Duration::millis(11'000);
  loop.run(after);
  CHECK(loop.result().finished);
  CHECK(loop.report(9, 0).error == ErrorCode::TooFewRanks);
  CHECK(loop.report(9, 0).ranks == std::vector<Rank>{1});
}

TEST(a_mismatch_reaches_every_rank_with_the_right_names) {
  const sim::SimOptions options = grid_of(6, 3);
  sim::Network network(options);
  std::vector<std::vector<float>> buckets(6, std::vector<float>(5'000, 1.0f));
  sim::Collective collective;
  for (Rank rank = 0; rank < 6; ++rank) {
    const std::uint32_t elements = rank == 3 ? 4'000 : 5'000;
    collective.calls.push_back({{elements, DType::Float32, ReduceOp::Mean, false},
                                reinterpret_cast<std::byte*>(buckets[rank].data())});
  }
  const sim::RunResult result = network.run({collective}, Duration::millis(60'000));
  CHECK(result.finished);
  CHECK(result.elapsed < Duration::millis(1'000));
  for (Rank rank = 0; rank < 6; ++rank) {
    const Report& report = result.reports[0][rank].value();
    CHECK(report.error == ErrorCode::Mismatch);
    CHECK(report.message.find("rank 3") != std::string::npos);
  }
}

TEST(a_rank_that_never_comes_is_named_everywhere_and_the_next_operation_works) {
  const sim::SimOptions options = grid_of(6, 3);
  sim::Network network(options);
  std::vector<std::vector<float>> buckets(6, std::vector<float>(5'000, 1.0f));
  std::vector<std::vector<float>> next(6, std::vector<float>(5'000, 2.0f));
  std::vector<sim::Collective> collectives(2);
  const Descriptor descriptor{5'000, DType::Float32, ReduceOp::Mean, false};
  collectives[0].timeout = Duration::millis(1'000);
  for (Rank rank = 0; rank < 6; ++rank) {
    const Duration late = rank == 4 ? Duration::millis(5'000) : Duration{};
    collectives[0].calls.push_back({descriptor, reinterpret_cast<std::byte*>(buckets[rank].data()), late});
    collectives[1].calls.push_back(
        {descriptor, reinterpret_cast<std::byte*>(next[rank].data()), Duration::millis(6'000)});
  }
  const sim::RunResult result = network.run(collectives, Duration::millis(60'000));
  CHECK(result.finished);
  for (Rank rank = 0; rank < 6; ++rank) {
    const Report& report = result.reports[0][rank].value();
    CHECK(report.error == ErrorCode::Timeout);
    CHECK(report.ranks == std::vector<Rank>{4});
    CHECK(rank == 4 || report.elapsed < Duration::millis(2'500));
    CHECK_EQ(result.reports[1][rank]->message, std::string());
    CHECK(next[rank] == std::vector<float>(5'000, 2.0f));
    CHECK_EQ(network.protocol(rank).completed(0), std::uint64_t{2});  // no lane holds on to the first one
  }
}

TEST(leaving_fails_what_is_under_way_in_every_lane) {
  sim::SimOptions options = grid_of(4, 2);
  options.departures.push_back({3, Time{} + Duration::millis(5)});
  sim::Network network(options);
  std::vector<std::vector<float>> buckets(8, std::vector<float>(5'000, 1.0f));
  std::vector<sim::Collective> collectives(2);
  for (std::size_t i = 0; i < 2; ++i) {
    for (Rank rank = 0; rank < 4; ++rank) {
      const Duration start = i == 1 && rank != 3 ? Duration::millis(10) : Duration{};
      collectives[i].calls.push_back({{5'000, DType::Float32, ReduceOp::Mean, false},
                                      reinterpret_cast<std::byte*>(buckets[i * 4 + rank].data()),
                                      start});
    }
  }
  const sim::RunResult result = network.run(collectives, Duration::millis(60'000));
  CHECK(result.finished);
  for (Rank rank = 0; rank < 4; ++rank) {
    CHECK(result.reports[0][rank]->error == ErrorCode::None);
    CHECK(result.reports[1][rank]->error == ErrorCode::Closed);
  }
}

TEST(rows_that_are_no_grid_are_refused) {
  const auto refused = [](Rank ranks, const Rows& rows) {
    sim::SimOptions options;
    options.ranks = ranks;
    options.rows = rows;
    try {
      sim::Network network(options);
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  CHECK(refused(4, {{0, 1, 2, 3}}));
  CHECK(refused(4, {{0}, {1}, {2}, {3}}));
  CHECK(refused(4, {{0, 1}, {2, 2}}));
  CHECK(refused(5, {{0, 1}, {2, 3}}));
  CHECK(refused(5, {{0, 1, 2}, {3, 4}}));
  CHECK(!refused(4, {{0, 2}, {3, 1}}));
}

TEST(what_the_rows_lack_comes_late_and_is_added) {
  sim::SimOptions options = grid_of(8, 4, 7);
  options.doom.share = 0.02;
  options.doom.first_operation = 5;
  CommonLoop loop(options);
  loop.run({});
  GridLoop plan;
  plan.stream = 3;
  plan.operations = 40;
  loop.run(plan);
  CHECK(loop.result().finished);
  CHECK_EQ(loop.why_wrong(), std::string());
  std::uint64_t lost = 0, corrected = 0;
  for (std::size_t i = 0; i < plan.operations; ++i) {
    for (Rank rank = 0; rank < 8; ++rank) {
      lost += loop.report(i, rank).reduced_lost_bytes;
      corrected += loop.report(i, rank).corrected_bytes;
    }
  }
  CHECK(lost > 0);
  CHECK(corrected > lost / 2);
}

RUN_TESTS()
