// What comes after its deadline: fetched, and added to the next result of the same buffer.
#include <algorithm>
#include <cmath>
#include <limits>

#include "check.h"
#include "proto/late_repair.h"
#include "sim/network.h"

using namespace optireduce;

namespace {

constexpr std::uint32_t kElements = 20'000;
constexpr std::uint32_t kWarmup = 5;

sim::SimOptions network(Rank ranks, sim::DoomOptions::Pattern pattern, double share) {
  sim::SimOptions options;
  options.ranks = ranks;
  options.egress = {1e9, 0};
  options.ingress = {1e9, 256 * 1024};
  options.protocol.bound.warmup_operations = kWarmup;
  options.doom.pattern = pattern;
  options.doom.share = share;
  options.doom.first_operation = kWarmup;
  return options;
}

/// A training loop of one buffer, in which every rank contributes the same: a mean of any of them is 1.
struct Training {
  sim::Network network;
  Rank ranks;
  std::uint32_t stream = 1;
  std::vector<std::vector<float>> totals;  // by rank and element: the sum of all results
  std::vector<std::vector<float>> last;    // by rank: the newest result
  std::vector<std::optional<Report>> reports;

  explicit Training(const sim::SimOptions& options)
      : network(options), ranks(options.ranks), totals(ranks, std::vector<float>(kElements, 0)) {}

  void step(ReduceOp op = ReduceOp::Mean, float contribution = 1) {
    last.assign(ranks, std::vector<float>(kElements, contribution));
    sim::Collective collective;
    for (Rank rank = 0; rank < ranks; ++rank) {
      collective.calls.push_back({{kElements, DType::Float32, op, true},
                                  reinterpret_cast<std::byte*>(last[rank].data()),
                                  {},
                                  1,
                                  false,
                                  stream});
    }
    const sim::RunResult result = network.run({collective}, Duration::millis(600'000));
    CHECK(result.finished);
    reports = result.reports[0];
    for (Rank rank = 0; rank < ranks; ++rank) {
      for (std::uint32_t i = 0; i < kElements; ++i) totals[rank][i] += last[rank][i];
    }
  }

  /// Elements that the newest operation left out on this rank.
  std::vector<bool> missing(Rank rank) const {
    std::vector<bool> missing(kElements, false);
    for (const Hole& hole : reports[rank]->holes) {
      if (hole.stage != PacketType::Reduced) continue;
      for (std::size_t byte = hole.begin; byte < hole.begin + hole.bytes; byte += 4) missing[byte / 4] = true;
    }
    return missing;
  }

  /// Updates that a rank has missed for good, in the element that missed most. `lent`: what stands in for an
  /// update that may still come.
  double missed_for_good(int steps, double lent) const {
    double most = 0;
    for (Rank rank = 0; rank < ranks; ++rank) {
      const std::vector<bool> still_missing = missing(rank);
      for (std::uint32_t i = 0; i < kElements; ++i)
        most = std::max(most, std::abs(steps - (still_missing[i] ? 1 - lent : 0) - double{totals[rank][i]}));
    }
    return most;
  }
};

using Pattern = sim::DoomOptions::Pattern;

}  // namespace

TEST(what_was_lost_at_a_deadline_is_in_the_next_result) {
  for (const Pattern pattern : {Pattern::Random, Pattern::Tail, Pattern::Bursts}) {
    Training training(
        network(2, pattern, 0.1));  // with more, some means would be of less than half of the ranks
    constexpr int kSteps = 30;
    std::uint64_t lost = 0, corrected = 0;
    for (int step = 0; step < kSteps; ++step) {
      CHECK(training.network.settle(Duration::millis(10'000)));  // all that is late has come
      training.step();
      for (const auto& report : training.reports) {
        lost += report->reduced_lost_bytes;
        corrected += report->corrected_bytes;
      }
    }
    CHECK(lost > 0);
    CHECK(corrected > lost / 2);
    CHECK(training.missed_for_good(kSteps, std::sqrt(0.5)) < 1e-4);
  }
}

TEST(without_a_stream_or_late_repair_it_stays_lost) {
  for (const bool late_repair : {true, false}) {
    sim::SimOptions options = network(4, Pattern::Random, 0.1);
    options.protocol.bound.late_repair = late_repair;
    Training training(options);
    if (late_repair) training.stream = 0;
    for (int step = 0; step < 12; ++step) training.step();
    CHECK(training.missed_for_good(12, 0) >= 1);
    CHECK_EQ(training.network.stats(0).corrected_bytes, 0u);
  }
}

namespace {

/// What the first operation that loses anything leaves in the places of packets that may still come; NaN: not
/// the same everywhere.
double lent_in(Training& training, ReduceOp op = ReduceOp::Mean, float contribution = 1) {
  for (std::uint32_t step = 0; step < kWarmup; ++step) training.step();
  training.step(op, contribution);
  std::optional<double> lent;
  for (Rank rank = 0; rank < training.ranks; ++rank) {
    const std::vector<bool> missing = training.missing(rank);
    for (std::uint32_t i = 0; i < kElements; ++i) {
      if (!missing[i]) continue;
      if (lent.value_or(training.last[rank][i]) != training.last[rank][i]) return std::nan("");
      lent = training.last[rank][i];
    }
  }
  CHECK(lent.has_value());  // something was lost
  return lent.value_or(std::nan(""));
}

}  // namespace

TEST(a_share_of_our_own_contribution_stands_in_for_what_may_still_come) {
  for (const Rank ranks : {Rank{4}, Rank{9}}) {
    Training training(network(ranks, Pattern::Random, 0.1));
    CHECK(std::abs(lent_in(training) - 1 / std::sqrt(ranks)) < 1e-6);
  }
}

TEST(nothing_stands_in_where_nothing_can_be_taken_back) {
  sim::SimOptions options = network(4, Pattern::Random, 0.1);
  Training sums(options);
  CHECK_EQ(lent_in(sums, ReduceOp::Sum), 0.0);
  Training no_numbers(options);
  CHECK_EQ(lent_in(no_numbers, ReduceOp::Mean, std::numeric_limits<float>::infinity()), 0.0);
  Training no_stream(options);
  no_stream.stream = 0;
  CHECK_EQ(lent_in(no_stream), 0.0);
  options.protocol.correction_bytes = 2 * 1'000;  // not one packet
  Training no_room(options);
  CHECK_EQ(lent_in(no_room), 0.0);
}

TEST(loans_for_packets_that_never_come_give_their_memory_back) {
  EndpointConfig config;
  config.size = 2;
  std::vector<float> data(kElements, 1);
  StartOptions options;
  options.stream = 1;
  const Operation operation(7, {kElements, DType::Float32, ReduceOp::Mean, true},
                            reinterpret_cast<std::byte*>(data.data()), config, Time{}, options);
  LateRepair late(1 << 20);
  const auto loses_them = [&](auto forget) {
    late.want(operation);
    CHECK_EQ(late.bytes(), sizeof(float) * kElements / 2);  // the other rank's shard
    forget();
    CHECK(!late.wants_any());
    CHECK_EQ(late.bytes(), std::size_t{0});
  };
  loses_them([&] { late.give_up(7, 1); });
  loses_them([&] { late.give_up_on(1); });
  loses_them([&] { late.forget_below(8); });
}

TEST(owners_forget_when_nobody_wants_anything_any_more) {
  sim::SimOptions options = network(3, Pattern::Random, 0.1);
  Training training(options);
  for (int step = 0; step < 12; ++step) training.step();
  CHECK(training.network.settle(Duration::millis(10'000)));
  for (Rank rank = 0; rank < 3; ++rank) CHECK(!training.network.protocol(rank).wants_late_packets());
  for (Rank rank = 0; rank < 3; ++rank) CHECK_EQ(training.network.protocol(rank).archived_bytes(), 0u);
}

TEST(a_gather_gives_everybody_all_parts_and_keeps_what_does_not_come) {
  constexpr Rank kRanks = 4;
  for (const double share : {0.0, 0.2}) {
    Training training(network(kRanks, Pattern::Random, share));
    for (std::uint32_t step = 0; step < kWarmup; ++step) training.step();
    std::vector<std::vector<float>> data(kRanks);
    sim::Collective collective;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      data[rank].assign(kElements, static_cast<float>(rank + 1));
      collective.calls.push_back({{kElements, DType::Float32, ReduceOp::Gather, true},
                                  reinterpret_cast<std::byte*>(data[rank].data())});
    }
    const sim::RunResult result = training.network.run({collective}, Duration::millis(60'000));
    CHECK(result.finished);
    for (Rank rank = 0; rank < kRanks; ++rank) {
      const Report& report = *result.reports[0][rank];
      CHECK_EQ(report.reduced_lost_bytes > 0, share > 0);
      std::vector<bool> missing(kElements, false);
      for (const Hole& hole : report.holes) {
        for (std::size_t byte = hole.begin; byte < hole.begin + hole.bytes; byte += 4)
          missing[byte / 4] = true;
      }
      std::size_t wrong = 0;
      for (std::uint32_t i = 0; i < kElements; ++i) {
        const auto owner = static_cast<float>(i / (kElements / kRanks) + 1);
        wrong += data[rank][i] != (missing[i] ? static_cast<float>(rank + 1) : owner) ? 1 : 0;
      }
      CHECK_EQ(wrong, std::size_t{0});
    }
  }
}

TEST(the_rank_that_sends_no_numbers_is_named) {
  sim::Network network(::network(3, Pattern::Random, 0));
  std::vector<std::vector<float>> data(3, std::vector<float>(kElements, 1));
  std::fill(data[1].begin(), data[1].end(), std::numeric_limits<float>::quiet_NaN());
  sim::Collective collective;
  for (auto& mine : data) {
    collective.calls.push_back(
        {{kElements, DType::Float32, ReduceOp::Mean, true}, reinterpret_cast<std::byte*>(mine.data())});
  }
  const sim::RunResult result = network.run({collective}, Duration::millis(60'000));
  for (const auto& report : result.reports[0]) CHECK(report->non_finite == std::vector<Rank>{1});
}

TEST(operations_under_way_together_count_as_one_absence) {
  // A rank that stands still for a step of many buckets has missed one step, not many.
  constexpr Rank kRanks = 3;
  constexpr std::size_t kBuckets = 6;
  sim::SimOptions options = network(kRanks, Pattern::Random, 0);
  options.protocol.bound.absent_after = 2;
  options.pauses = {{2, Time{} + Duration::millis(20'000), Time{} + Duration::millis(20'150)}};
  Training training(options);
  for (std::uint32_t step = 0; step < kWarmup + 3; ++step) training.step();
  std::vector<std::vector<float>> data(kRanks * kBuckets, std::vector<float>(kElements, 1));
  std::vector<sim::Collective> buckets(kBuckets);
  for (std::size_t i = 0; i < kBuckets; ++i) {
    for (Rank rank = 0; rank < kRanks; ++rank) {
      buckets[i].calls.push_back({{kElements, DType::Float32, ReduceOp::Mean, true},
                                  reinterpret_cast<std::byte*>(data[i * kRanks + rank].data()),
                                  Time{} + Duration::millis(20'010) - training.network.now()});
    }
  }
  const sim::RunResult result = training.network.run(buckets, Duration::millis(60'000));
  CHECK(result.finished);
  for (const auto& row : result.reports) {
    CHECK(row[0]->lost_by_peer.size() == 1 && row[0]->lost_by_peer[0].peer == 2);  // all ended without it
    CHECK(row[0]->absent.empty());
  }
  CHECK_EQ(training.network.stats(0).absences, 0u);
}

TEST(losses_that_no_time_can_mend_do_not_lengthen_the_bound) {
  for (const Pattern pattern : {Pattern::Random, Pattern::Tail, Pattern::Bursts}) {
    Training training(network(8, pattern, 0.3));
    Duration first, longest;
    for (int step = 0; step < 300; ++step) {
      training.step();
      const Duration bound = training.reports[0]->policy.bound;
      if (step == kWarmup + 1) first = bound;
      if (step >= 200) longest = std::max(longest, bound);
    }
    CHECK(longest < first * 3);  // with what ranks start late, which differs from step to step
  }
}

RUN_TESTS()
