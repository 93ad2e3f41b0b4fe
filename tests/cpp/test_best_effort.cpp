// The papers' transport: what is missing at a deadline is lost. Its times, and training over it.
#include <algorithm>
#include <cmath>

#include "check.h"
#include "operation/best_effort.h"
#include "sim/network.h"

using namespace optireduce;

namespace {

constexpr std::size_t kBytes = 4 << 20;

Duration ms(std::int64_t value) {
  return Duration::millis(value);
}

BestEffortTimes times_of(BestEffortOptions options = {}) {
  options.least = 1.2;
  options.most = 1.4;
  return BestEffortTimes(options);
}

void learn(BestEffortTimes& times, Duration elapsed, int often, std::size_t bytes = kBytes) {
  for (int i = 0; i < often; ++i) times.learn({.bytes = bytes, .elapsed = elapsed, .skew = {}});
}

bool about(Duration value, Duration wanted) {
  return std::abs(value.seconds() - wanted.seconds()) < wanted.seconds() * 0.002;
}

// ---- Training

constexpr std::uint32_t kElements = 60'000;

sim::SimOptions network_of(Rank ranks) {
  sim::SimOptions options;
  options.ranks = ranks;
  options.seed = 3;
  options.egress = {1e9, 0};
  options.protocol.delivery = Delivery::BestEffort;
  options.protocol.best_effort.warmup_operations = 5;
  return options;
}

/// Rank r contributes 2^r; operations follow each other.
struct Training {
  sim::RunResult result;
  std::vector<std::vector<std::vector<float>>> values;  // by operation and rank, as they were at the report

  Training(sim::Network& network, std::size_t operations, Duration start = Duration::millis(1)) {
    values.resize(operations);
    std::vector<sim::Collective> collectives(operations);
    for (std::size_t i = 0; i < operations; ++i) {
      for (Rank rank = 0; rank < network.ranks(); ++rank) {
        values[i].emplace_back(kElements, static_cast<float>(1 << rank));
        collectives[i].calls.push_back({.descriptor = {kElements, DType::Float32, ReduceOp::Mean, true},
                                        .data = reinterpret_cast<std::byte*>(values[i][rank].data()),
                                        .start = i == 0 ? start : Duration::millis(1),
                                        .follows = i != 0});
      }
    }
    result = network.run(collectives, Duration::millis(600'000));
    CHECK(result.finished);
  }

  const Report& report(std::size_t operation, Rank rank) const { return *result.reports[operation][rank]; }
  /// Values that are zero, and those that are the mean of all.
  std::size_t count(std::size_t operation, Rank rank, float value) const {
    const auto& found = values[operation][rank];
    return static_cast<std::size_t>(std::count(found.begin(), found.end(), value));
  }
};

}  // namespace

TEST(warm_up_lasts_as_long_as_asked) {
  BestEffortOptions options;
  options.warmup_operations = 7;
  BestEffortTimes times = times_of(options);
  learn(times, ms(300), 6);
  CHECK(!times.warmed_up());
  learn(times, ms(300), 1);
  CHECK(times.warmed_up());
}

TEST(the_bound_is_a_percentile_between_two_multiples_of_what_is_usual) {
  BestEffortTimes calm = times_of();
  learn(calm, ms(1'000), 30);
  CHECK(about(calm.bound(kBytes), ms(1'200)));
  BestEffortTimes wild = times_of();
  for (int i = 0; i < 30; ++i) learn(wild, i % 3 == 2 ? ms(5'000) : ms(1'000), 1);
  CHECK(about(wild.bound(kBytes), ms(1'400)));
  BestEffortTimes between = times_of();
  for (int i = 0; i < 60; ++i) learn(between, i % 10 == 9 ? ms(1'300) : ms(1'000), 1);
  CHECK(about(between.bound(kBytes), ms(1'300)));
}

TEST(one_estimate_serves_every_size_and_small_buckets_do_not_speak_for_large_ones) {
  BestEffortTimes times = times_of();
  for (int i = 0; i < 30; ++i) {
    learn(times, ms(1'000), 1);
    learn(times, ms(20), 1, 4'096);  // twenty times slower per byte
  }
  CHECK(about(times.bound(2 * kBytes), ms(2'400)));
}

TEST(a_slower_network_is_followed_and_a_burst_is_not) {
  BestEffortTimes times = times_of();
  learn(times, ms(1'000), 100);
  learn(times, ms(3'000), 12);  // a burst
  CHECK(times.bound(kBytes) <= ms(1'403));
  learn(times, ms(1'000), 100);
  CHECK(about(times.bound(kBytes), ms(1'200)));
  learn(times, ms(2'000), 80);  // half the rate, for good
  CHECK(about(times.bound(kBytes), ms(2'400)));
}

TEST(the_early_fraction_grows_when_data_comes_too_late_and_shrinks_when_none_does) {
  BestEffortTimes times = times_of();
  const double before = times.early_fraction();
  times.learn({.bytes = kBytes, .elapsed = ms(100), .skew = {}, .late_share = 0.02});
  CHECK(times.early_fraction() > before);
  for (int i = 0; i < 10; ++i)
    times.learn({.bytes = kBytes, .elapsed = ms(100), .skew = {}, .late_share = 0.02});
  CHECK_EQ(times.early_fraction(), 1.0);
  learn(times, ms(100), 200);
  CHECK(times.early_fraction() < 0.1);
}

TEST(best_effort_on_a_quiet_network_loses_nothing) {
  sim::Network network(network_of(4));
  const Training training(network, 20);
  for (std::size_t i = 0; i < 20; ++i) {
    for (Rank rank = 0; rank < 4; ++rank) {
      CHECK_EQ(
          training.report(i, rank).lost.contribution_bytes + training.report(i, rank).lost.decision_bytes,
          0u);
      CHECK_EQ(training.count(i, rank, 15 / 4.0F), kElements);
    }
  }
}

TEST(best_effort_repairs_nothing_after_the_warm_up_and_reports_what_is_zero) {
  sim::SimOptions options = network_of(4);
  options.link.loss = 0.02;
  sim::Network network(options);
  const Training warm_up(network, 5);
  for (std::size_t i = 0; i < 5; ++i) CHECK_EQ(warm_up.count(i, 0, 15 / 4.0F), kElements);  // exact even so
  const std::uint64_t resent = network.stats(0).resent_bytes;
  const Training training(network, 40);
  std::uint64_t lost = 0;
  for (std::size_t i = 0; i < 40; ++i) {
    for (Rank rank = 0; rank < 4; ++rank) {
      const Report& report = training.report(i, rank);
      CHECK_EQ(report.message, std::string());
      CHECK(report.elapsed <= report.policy.deadline * 2 + ms(1));
      CHECK_EQ(training.count(i, rank, 0) * sizeof(float), report.lost.decision_bytes);
      std::uint64_t holes = 0;
      for (const Hole& hole : report.lost.holes) holes += hole.stage == PacketType::Decision ? hole.bytes : 0;
      CHECK_EQ(holes, report.lost.decision_bytes);
      CHECK_EQ(report.repaired_bytes, 0u);
      lost += report.lost.decision_bytes + report.lost.contribution_bytes;
    }
  }
  CHECK(lost > 0);
  CHECK(static_cast<double>(lost) / (40.0 * 4 * kElements * sizeof(float)) < 0.1);
  CHECK_EQ(network.stats(0).resent_bytes, resent);
}

TEST(best_effort_does_not_wait_for_a_rank_that_died) {
  sim::SimOptions options = network_of(4);
  const Time death = Time{} + ms(5'000);
  options.crashes.push_back({1, death});
  sim::Network network(options);
  const Training before(network, 8);
  CHECK(network.now() < death);
  const Training after(network, 5, death - network.now() + ms(1));
  for (std::size_t i = 0; i < 5; ++i) {
    for (const Rank rank : {Rank{0}, Rank{2}, Rank{3}}) {
      const Report& report = after.report(i, rank);
      CHECK(report.error == ErrorCode::None);
      CHECK(report.elapsed <= report.policy.deadline * 2 + ms(1));
      CHECK(report.lost.decision_bytes > 0);  // the shard that nobody reduces
    }
  }
}

RUN_TESTS()
