// Every owner decides once, every member gets the decision, and excluded contributions are carried over.
#include "check.h"
#include "decision_case.h"

using namespace optireduce;
using namespace decisioncase;

namespace {

sim::SimOptions network_of(Rank ranks, std::uint64_t seed = 1) {
  sim::SimOptions options;
  options.ranks = ranks;
  options.seed = seed;
  options.egress = {1e8, 0};
  options.ingress = {1e8, 256 * 1024};
  return options;
}

double excluded_share(const Run& run) {
  double excluded = 0, all = 0;
  for (const auto& row : run.result().reports) {
    for (const Excluded& each : row[0]->excluded) excluded += static_cast<double>(each.bytes);
    all += static_cast<double>(row[0]->bytes * row.size());
  }
  return excluded / all;
}

}  // namespace

TEST(a_quiet_network_includes_everybody) {
  Run run(network_of(4), {});
  CHECK(run.run());
  CHECK_EQ(run.why_different(), std::string());
  CHECK(excluded_share(run) < 0.02);  // small buckets: a jitter of microseconds is more than usual
  CHECK_EQ(run.why_not_conserved(), std::string());
}

TEST(a_late_rank_is_excluded_and_its_contribution_comes_later) {
  Training training{.steps = 40};
  training.compute.resize(4);
  for (std::size_t step = 0; step < 40; ++step)
    training.compute[2].push_back(Duration::millis(step > 15 && step % 6 == 0 ? 60 : 1));
  Run run(network_of(4), training);
  CHECK(run.run());
  CHECK_EQ(run.why_different(), std::string());
  std::uint64_t late = 0, others = 0;
  for (const auto& row : run.result().reports) {
    for (const Excluded& each : row[0]->excluded) (each.rank == 2 ? late : others) += each.bytes;
  }
  CHECK(late > 4 * others);
  CHECK(run.network().stats(2).carried_bytes > 0);
  CHECK_EQ(run.why_not_conserved(), std::string());
}

TEST(a_deadline_counts_from_the_owner_s_own_beginning_too) {
  // One shard: after the owner has begun no packet tells it to look at the time.
  constexpr std::size_t kLate[] = {49, 56, 63};  // each rank owns the shard of one of them
  Training training{.steps = 70, .buckets = {100}};
  training.compute.assign(3, std::vector<Duration>(70, Duration::millis(1)));
  for (std::size_t step : kLate) training.compute[2][step] = Duration::millis(1000);
  Run run(network_of(3), training);
  CHECK(run.run());
  for (std::size_t step : kLate) {
    for (Rank rank : {Rank{0}, Rank{1}})
      CHECK(run.result().reports[step][rank]->elapsed < Duration::millis(500));
  }
  CHECK_EQ(run.why_different(), std::string());
  CHECK_EQ(run.why_not_conserved(), std::string());
}

TEST(loss_changes_nothing) {
  sim::SimOptions options = network_of(4);
  options.link.loss = 0.03;
  options.link.duplicate = 0.01;
  options.link.reorder = 0.02;
  Run run(options, {.steps = 30});
  CHECK(run.run());
  CHECK_EQ(run.why_different(), std::string());
  CHECK_EQ(run.why_not_conserved(), std::string());
}

TEST(operations_begun_after_a_removal_do_not_wait_for_the_removed_rank) {
  // Rank 3 dies while all compute. Rank 0 begins the next operation, so it belongs to the view before, but
  // its packets are lost: ranks 1 and 2 hear of the operation in the view after.
  Training training{.steps = 6, .buckets = {4000}};
  training.compute.assign(4, {});
  for (Rank rank = 0; rank < 4; ++rank)
    training.compute[rank] = {Duration::millis(1), Duration::millis(rank == 0 ? 50 : 2000)};
  sim::SimOptions options = network_of(4);
  const Time dies = Time{} + Duration::millis(30), heals = dies + Duration::millis(120);
  options.crashes = {{3, dies}};
  options.cuts = {{0, 1, dies, heals}, {0, 2, dies, heals}};
  Run run(options, training);
  CHECK(run.run(Duration::millis(10'000)));
  for (Rank rank = 0; rank < 3; ++rank) CHECK(run.completed(training.steps - 1, rank));
  CHECK_EQ(run.why_different(), std::string());
}

RUN_TESTS()
