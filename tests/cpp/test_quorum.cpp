// Too few ranks: operations wait for a while instead of failing, and go on where they were when enough are
// back. In virtual time.
#include "bounded_case.h"
#include "grid_case.h"

using namespace boundedcase;

namespace {

constexpr Time kFaultBegins = Time{} + Duration::millis(5'000);
constexpr std::size_t kOperations = 20;

sim::SimOptions network(Rank ranks) {
  sim::SimOptions options;
  options.ranks = ranks;
  options.protocol.bound.warmup_operations = 5;
  options.egress = {1e9, 0};
  options.ingress = {1e9, 256 * 1024};
  return options;
}

/// Nothing gets through between any two ranks.
void cut_everything(sim::SimOptions& options, Duration length) {
  for (Rank from = 0; from < options.ranks; ++from) {
    for (Rank to = 0; to < options.ranks; ++to)
      options.cuts.push_back({from, to, kFaultBegins, kFaultBegins + length});
  }
}

LoopOptions faulty(const Loop& loop, Time now) {
  LoopOptions faulty;
  faulty.operations = kOperations;
  faulty.first_starts.assign(loop.options().ranks, kFaultBegins + Duration::millis(1) - now);
  return faulty;
}

/// The warm-up, then operations that begin with the fault.
void run(Loop& loop) {
  LoopOptions warm_up;
  warm_up.operations = 8;
  loop.run(warm_up);
  loop.run(faulty(loop, loop.network().now()), Duration::millis(3'600'000));
}

Duration longest_wait(const TrainingLoop& loop, Rank rank) {
  Duration longest;
  for (std::size_t i = 0; i < kOperations; ++i) longest = std::max(longest, loop.report(i, rank).quorum_wait);
  return longest;
}

bool any_error(const TrainingLoop& loop, Rank rank) {
  for (std::size_t i = 0; i < kOperations; ++i) {
    if (loop.report(i, rank).error != ErrorCode::None) return true;
  }
  return false;
}

/// It did what it was asked to, and ends in step with all others.
void check_goes_on(const TrainingLoop& loop, Rank rank) {
  CHECK(!any_error(loop, rank));
  const Report& last = loop.report(kOperations - 1, rank);
  CHECK(last.absent.empty());
  CHECK_EQ(last.contributions_lost_bytes + last.reduced_lost_bytes, 0u);
  CHECK_EQ(last.quorum_wait.ns, 0);
}

}  // namespace

TEST(a_group_whose_network_stands_still_goes_on_when_it_is_back) {
  for (const Rank ranks : {Rank{2}, Rank{3}, Rank{4}, Rank{8}}) {
    sim::SimOptions options = network(ranks);
    cut_everything(options, Duration::millis(2'000));
    Loop loop(options);
    run(loop);
    CHECK(loop.result().finished);
    CHECK_EQ(loop.why_wrong(), std::string());
    for (Rank rank = 0; rank < ranks; ++rank) {
      check_goes_on(loop, rank);
      CHECK(longest_wait(loop, rank) > Duration::millis(1'000));
      CHECK(longest_wait(loop, rank) < Duration::millis(2'200));  // soon after the network is back
    }
  }
}

TEST(what_a_wait_took_is_part_of_the_elapsed_time_and_not_learned_from) {
  sim::SimOptions options = network(4);
  cut_everything(options, Duration::millis(2'000));
  Loop loop(options);
  run(loop);
  const Report& last = loop.report(kOperations - 1, 0);
  for (std::size_t i = 0; i < kOperations; ++i) {
    const Report& report = loop.report(i, 0);
    CHECK(report.elapsed >= report.quorum_wait);
    CHECK(report.elapsed <= report.quorum_wait + report.policy.bound + Duration::millis(2));
  }
  CHECK(last.policy.bound < Duration::millis(200));
}

TEST(who_is_left_over_waits_for_a_majority_that_stands_still) {
  sim::SimOptions options = network(5);
  for (const Rank rank : {Rank{1}, Rank{2}, Rank{4}})
    options.pauses.push_back({rank, kFaultBegins, kFaultBegins + Duration::millis(3'000)});
  Loop loop(options);
  run(loop);
  CHECK_EQ(loop.why_wrong(), std::string());
  for (const Rank rank : {Rank{0}, Rank{3}}) {
    check_goes_on(loop, rank);
    CHECK(longest_wait(loop, rank) > Duration::millis(2'000));
  }
}

TEST(without_patience_too_few_ranks_are_an_error_at_once) {
  sim::SimOptions options = network(4);
  options.protocol.bound.quorum_wait = Duration{};
  cut_everything(options, Duration::millis(2'000));
  Loop loop(options);
  run(loop);
  CHECK(any_error(loop, 0));
  CHECK_EQ(longest_wait(loop, 0).ns, 0);
}

TEST(a_wait_in_vain_ends_with_an_error_that_says_how_long_it_was) {
  sim::SimOptions options = network(3);
  options.protocol.bound.quorum_wait = Duration::millis(700);
  options.crashes = {{1, kFaultBegins}, {2, kFaultBegins}};
  Loop loop(options);
  run(loop);
  const Report& last = loop.report(kOperations - 1, 0);
  CHECK_EQ(static_cast<int>(last.error), static_cast<int>(ErrorCode::TooFewRanks));
  CHECK(last.message.find("only 1 of 3 ranks take part, min_ranks is 2; waited 700 ms") != std::string::npos);
  CHECK_EQ(last.elapsed.ns, Duration::millis(700).ns);
  CHECK(last.ranks == (std::vector<Rank>{1, 2}));
}

TEST(who_has_left_is_not_waited_for) {
  sim::SimOptions options = network(3);
  options.departures = {{1, kFaultBegins}, {2, kFaultBegins}};
  Loop loop(options);
  LoopOptions warm_up;
  warm_up.operations = 8;
  loop.run(warm_up);
  LoopOptions rest = faulty(loop, loop.network().now());
  rest.first_starts[0] = rest.first_starts[0] + Duration::millis(100);
  rest.first_starts[1] = rest.first_starts[2] = sim::Call::kNever;
  loop.run(rest);
  CHECK(any_error(loop, 0));
  CHECK_EQ(longest_wait(loop, 0).ns, 0);
}

namespace {

/// Ranks 1 and 2 do one more operation and leave; rank 0 begins it when they are gone.
const Report& after_the_others(Loop& loop) {
  LoopOptions warm_up;
  warm_up.operations = 8;
  loop.run(warm_up);
  LoopOptions last = faulty(loop, loop.network().now());
  last.operations = 1;
  last.first_starts[0] = last.first_starts[0] + Duration::millis(1'000);
  loop.run(last);
  return loop.report(0, 0);
}

sim::SimOptions two_leave_early() {
  sim::SimOptions options = network(3);
  const Time left = kFaultBegins + Duration::millis(900);
  options.departures = {{1, left}, {2, left}};
  return options;
}

}  // namespace

TEST(who_comes_after_the_others_have_left_takes_what_they_sent) {
  Loop loop(two_leave_early());
  const Report& report = after_the_others(loop);
  CHECK_EQ(static_cast<int>(loop.report(0, 1).error), static_cast<int>(ErrorCode::None));
  CHECK_EQ(static_cast<int>(report.error), static_cast<int>(ErrorCode::None));
  CHECK_EQ(report.reduced_lost_bytes, 0u);
  CHECK_EQ(loop.why_wrong(), std::string());
}

TEST(who_comes_after_the_others_have_left_and_lacks_something_is_not_the_group) {
  sim::SimOptions options = two_leave_early();
  options.cuts = {{1, 0, kFaultBegins, kFaultBegins + Duration::millis(800)}};
  Loop loop(options);
  const Report& report = after_the_others(loop);
  CHECK_EQ(static_cast<int>(report.error), static_cast<int>(ErrorCode::TooFewRanks));
}

TEST(an_operation_keeps_half_of_its_own_time_for_itself) {
  sim::SimOptions options = network(3);
  options.protocol.bound.quorum_wait = Duration::millis(100'000);
  options.crashes = {{1, kFaultBegins}, {2, kFaultBegins}};
  Loop loop(options);
  run(loop);
  CHECK_EQ(longest_wait(loop, 0).ns, (sim::Collective{}.timeout / 2).ns);
}

TEST(a_grid_waits_too_and_keeps_the_order_of_what_waits) {
  sim::SimOptions options = gridcase::grid_of(4, 2);
  options.protocol.bound.absent_after = 1;  // what is started together counts as one
  cut_everything(options, Duration::millis(2'000));
  gridcase::CommonLoop loop(options);
  loop.run({});
  gridcase::GridLoop after;
  after.operations = kOperations;
  after.first_start = kFaultBegins + Duration::millis(1) - loop.network().now();
  after.at_once = 4;
  after.compute = Duration::millis(700);  // the last ones come when all is well
  loop.run(after);
  CHECK(loop.result().finished);
  CHECK_EQ(loop.why_wrong(), std::string());
  for (Rank rank = 0; rank < 4; ++rank) {
    check_goes_on(loop, rank);
    CHECK(longest_wait(loop, rank) > Duration::millis(200));
  }
}

RUN_TESTS()
