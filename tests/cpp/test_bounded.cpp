// Operations with a deadline, in virtual time: nobody waits longer than it, whoever is slow, cut off or gone,
// and what comes out is always the mean of what is said to be in it.
#include "bounded_case.h"

using namespace boundedcase;

namespace {

constexpr Duration kFar = Duration::millis(3'600'000);

Time at(std::int64_t ms) {
  return Time{} + Duration::millis(ms);
}

sim::SimOptions network(Rank ranks, std::uint64_t seed = 1) {
  sim::SimOptions options;
  options.ranks = ranks;
  options.seed = seed;
  options.protocol.bound.warmup_operations = 5;
  options.egress = {1e9, 0};
  options.ingress = {1e9, 256 * 1024};
  return options;
}

LoopOptions loop_of(std::size_t operations, std::uint32_t elements = 50'000) {
  LoopOptions loop;
  loop.operations = operations;
  loop.elements = elements;
  return loop;
}

/// Operations before the faults: they set the bounds.
void warm_up(Loop& loop, std::uint32_t elements = 50'000) {
  loop.run(loop_of(8, elements));
  CHECK(loop.result().finished);
  CHECK_EQ(loop.mean_lost_share(), 0.0);
}

#define CHECK_RIGHT(loop) CHECK_EQ((loop).why_wrong(), std::string())

double longest_over_bound(const Loop& loop, std::size_t operations, const std::vector<Rank>& ranks) {
  double worst = 0;
  for (std::size_t i = 0; i < operations; ++i) {
    for (Rank rank : ranks) {
      const Report& report = loop.report(i, rank);
      worst = std::max(worst, report.elapsed.seconds() / report.policy.bound.seconds());
    }
  }
  return worst;
}

}  // namespace

TEST(a_quiet_network_loses_nothing_and_closes_nothing) {
  for (const Rank ranks : {Rank{2}, Rank{3}, Rank{8}}) {
    Loop loop(network(ranks));
    warm_up(loop);
    loop.run(loop_of(30));
    CHECK_RIGHT(loop);
    CHECK_EQ(loop.mean_lost_share(), 0.0);
    for (std::size_t i = 0; i < 30; ++i) {
      CHECK(loop.report(i, 0).bounded);
      CHECK_EQ(static_cast<int>(loop.report(i, 0).closed_by), static_cast<int>(ClosedBy::Complete));
    }
  }
}

TEST(warm_up_waits_for_everybody_and_what_follows_does_not) {
  sim::SimOptions options = network(3);
  options.pauses.push_back({2, at(2), at(2'000)});        // in the warm-up
  options.pauses.push_back({2, at(10'000), at(12'000)});  // later
  Loop loop(options);
  warm_up(loop);
  CHECK(loop.network().now() > at(2'000));
  LoopOptions later = loop_of(20);
  later.first_starts.assign(3, at(9'999) - loop.network().now());
  loop.run(later);
  CHECK_RIGHT(loop);
  CHECK(loop.report(0, 0).elapsed < Duration::millis(200));
  CHECK(loop.report(0, 1).elapsed < Duration::millis(200));
  CHECK(longest_over_bound(loop, 20, {0, 1}) <= 1.0);
}

TEST(a_crashed_rank_costs_its_bound_a_few_times_and_then_nothing) {
  for (const Rank ranks : {Rank{3}, Rank{4}, Rank{8}}) {
    sim::SimOptions options = network(ranks);
    options.crashes.push_back({1, at(5'000)});
    Loop loop(options);
    warm_up(loop);
    const double usual = loop.report(7, 0).elapsed.seconds();
    LoopOptions rest = loop_of(20);
    rest.first_starts.assign(ranks, at(4'999) - loop.network().now());
    loop.run(rest);
    CHECK(loop.result().finished);
    CHECK_RIGHT(loop);
    std::vector<Rank> others;
    for (Rank rank = 0; rank < ranks; ++rank) {
      if (rank != 1) others.push_back(rank);
    }
    CHECK(longest_over_bound(loop, 20, others) <= 1.0);
    for (Rank rank : others) {
      const Report& last = loop.report(19, rank);
      CHECK_EQ(last.absent.size(), std::size_t{1});
      CHECK_EQ(last.absent[0], Rank{1});
      CHECK_EQ(last.contributions_lost_bytes, 0u);
      CHECK(last.reduced_lost_bytes > 0);  // the shard that nobody owns
      CHECK(last.elapsed.seconds() < usual * 1.5);
      CHECK(loop.network().protocol(rank).absent(1));
    }
  }
}

TEST(while_a_rank_is_missing_the_others_still_get_each_others_gradients) {
  sim::SimOptions options = network(4);
  options.crashes.push_back({3, at(5'000)});
  Loop loop(options);
  warm_up(loop);
  LoopOptions rest = loop_of(2);
  rest.first_starts.assign(4, at(5'001) - loop.network().now());
  loop.run(rest);
  CHECK_RIGHT(loop);
  // Nothing but the missing rank's contributions and its shard is lost.
  for (Rank rank = 0; rank < 3; ++rank) {
    const Report& report = loop.report(0, rank);
    CHECK_EQ(static_cast<int>(report.closed_by), static_cast<int>(ClosedBy::Deadline));
    for (const PeerLoss& loss : report.lost_by_peer) CHECK_EQ(loss.peer, Rank{3});
    const double lost = static_cast<double>(report.reduced_lost_bytes) / static_cast<double>(report.bytes);
    CHECK(lost < 0.26);
  }
}

TEST(a_stopped_rank_is_left_alone_and_waited_for_again_when_it_is_in_step) {
  for (const std::int64_t stopped_ms : {200, 3'000}) {
    sim::SimOptions options = network(4);
    options.egress = options.ingress = {2e8, 256 * 1024};
    options.receive_buffer_bytes = 1 << 20;
    options.pauses.push_back({2, at(10'000), at(10'000 + stopped_ms)});
    Loop loop(options);
    warm_up(loop, 250'000);
    LoopOptions rest = loop_of(140, 250'000);
    rest.first_starts.assign(4, at(9'900) - loop.network().now());
    loop.run(rest);
    CHECK(loop.result().finished);
    CHECK_RIGHT(loop);
    CHECK(longest_over_bound(loop, 140, {0, 1, 3}) <= 1.0);
    CHECK(!loop.network().protocol(0).absent(2));
    CHECK_EQ(loop.network().stats(0).absences, stopped_ms > 1'000 ? 1u : 0u);
    // How many operations ended without it after it ran again.
    Time now = at(9'900);
    std::size_t missed = 0, after = 0;
    for (std::size_t i = 0; i < 140; ++i) {
      now = now + loop.report(i, 0).elapsed + rest.compute;
      if (now < at(10'000 + stopped_ms)) continue;
      ++after;
      if (loop.report(i, 0).contributions_lost_bytes + loop.report(i, 0).reduced_lost_bytes != 0)
        missed = after;
    }
    CHECK(missed <= 20);
    CHECK(after > 40);
  }
}

TEST(a_rank_that_starts_late_finds_its_operation_answered) {
  sim::SimOptions options = network(3);
  Loop loop(options);
  warm_up(loop);
  LoopOptions rest = loop_of(1);
  rest.first_starts = {Duration{}, Duration{}, Duration::millis(400)};
  loop.run(rest);
  CHECK_RIGHT(loop);
  CHECK(loop.report(0, 0).elapsed <= loop.report(0, 0).policy.bound);
  const Report& late = loop.report(0, 2);
  CHECK(late.elapsed < Duration::millis(20));
  CHECK(late.behind > Duration::millis(300));
  CHECK_EQ(late.reduced_lost_bytes, 0u);
  CHECK(loop.report(0, 0).behind < Duration::millis(1));
}

TEST(a_cut_link_loses_only_what_went_over_it) {
  sim::SimOptions options = network(4);
  options.cuts.push_back({0, 1, at(5'000), at(6'000)});
  options.cuts.push_back({1, 0, at(5'000), at(6'000)});
  Loop loop(options);
  warm_up(loop);
  LoopOptions rest = loop_of(3);
  rest.first_starts.assign(4, at(5'001) - loop.network().now());
  loop.run(rest);
  CHECK_RIGHT(loop);
  CHECK(longest_over_bound(loop, 3, {0, 1, 2, 3}) <= 1.0);
  for (const PeerLoss& loss : loop.report(0, 0).lost_by_peer) CHECK_EQ(loss.peer, Rank{1});
  for (const PeerLoss& loss : loop.report(0, 1).lost_by_peer) CHECK_EQ(loss.peer, Rank{0});
  for (const Rank whole : {Rank{2}, Rank{3}}) CHECK_EQ(loop.report(0, whole).reduced_lost_bytes, 0u);
}

TEST(a_report_owns_up_to_what_others_did_without) {
  sim::SimOptions options = network(4);
  options.cuts.push_back({3, 1, at(5'000), Time{} + kFar});  // for rank 1 alone rank 3 is absent
  Loop loop(options);
  warm_up(loop);
  LoopOptions rest = loop_of(12);
  rest.first_starts.assign(4, at(5'001) - loop.network().now());
  loop.run(rest);
  CHECK_RIGHT(loop);
  CHECK(loop.report(11, 1).absent == std::vector<Rank>{3});
  CHECK_EQ(loop.report(11, 1).contributions_lost_bytes, 0u);  // absent ranks are not counted
  for (const Rank rank : {Rank{0}, Rank{2}}) {
    const Report& report = loop.report(11, rank);
    CHECK(report.absent.empty());
    // Rank 3's in the shard that rank 1 reduces, and rank 1's, who sends it nothing, in that of rank 3.
    CHECK(report.contributions_lost_bytes > report.bytes / 9);
  }
}

TEST(a_rank_that_is_cut_off_from_most_raises_an_error_and_the_others_go_on) {
  sim::SimOptions options = network(5);
  for (Rank rank = 0; rank < 4; ++rank) {
    options.cuts.push_back({rank, 4, at(5'000), Time{} + kFar});
    options.cuts.push_back({4, rank, at(5'000), Time{} + kFar});
  }
  Loop loop(options);
  warm_up(loop);
  LoopOptions rest = loop_of(12);
  rest.first_starts.assign(5, at(5'001) - loop.network().now());
  loop.run(rest);
  CHECK_RIGHT(loop);
  const Report& lonely = loop.report(11, 4);
  CHECK_EQ(static_cast<int>(lonely.error), static_cast<int>(ErrorCode::TooFewRanks));
  CHECK_EQ(lonely.ranks.size(), std::size_t{4});
  CHECK(lonely.message.find("only 1 of 5 ranks") != std::string::npos);
  for (Rank rank = 0; rank < 4; ++rank) {
    CHECK_EQ(static_cast<int>(loop.report(11, rank).error), static_cast<int>(ErrorCode::None));
    CHECK_EQ(loop.report(11, rank).contributions_lost_bytes, 0u);
  }
}

TEST(fewer_than_min_ranks_is_an_error_that_says_so) {
  sim::SimOptions options = network(4);
  options.protocol.bound.min_ranks = 4;
  options.crashes.push_back({0, at(5'000)});
  Loop loop(options);
  warm_up(loop);
  LoopOptions rest = loop_of(6);
  rest.first_starts.assign(4, at(5'001) - loop.network().now());
  loop.run(rest);
  CHECK(loop.report(5, 1).message.find("only 3 of 4 ranks take part, min_ranks is 4") != std::string::npos);
}

TEST(a_rank_that_leaves_is_not_waited_for) {
  sim::SimOptions options = network(4);
  options.departures.push_back({2, at(5'000)});
  Loop loop(options);
  warm_up(loop);
  LoopOptions rest = loop_of(5);
  rest.first_starts.assign(4, at(5'100) - loop.network().now());
  rest.first_starts[2] = sim::Call::kNever;
  loop.run(rest);
  CHECK_RIGHT(loop);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK_EQ(static_cast<int>(loop.report(i, 0).error), static_cast<int>(ErrorCode::None));
    CHECK_EQ(static_cast<int>(loop.report(i, 0).closed_by), static_cast<int>(ClosedBy::Complete));
  }
}

TEST(random_loss_is_repaired_in_time) {
  sim::SimOptions options = network(4);
  options.link.loss = 0.03;
  Loop loop(options);
  warm_up(loop);
  loop.run(loop_of(50));
  CHECK_RIGHT(loop);
  CHECK_EQ(loop.mean_lost_share(), 0.0);
}

TEST(without_repair_loss_stays_and_the_early_bound_ends_the_wait) {
  sim::SimOptions options = network(4);
  options.protocol.bound.repair = false;
  options.link.loss = 0.02;
  options.ingress = {};  // nothing is lost in queues: nobody would tell the senders
  Loop without(options);
  without.run(loop_of(5, 200'000));
  CHECK_EQ(without.mean_lost_share(), 0.0);  // the warm-up is exact even so
  without.run(loop_of(100, 200'000));
  CHECK_RIGHT(without);
  CHECK(without.mean_lost_share() > 0.02);
  CHECK(without.mean_lost_share() < 0.06);
  std::size_t early = 0;
  for (std::size_t i = 0; i < 100; ++i) early += without.report(i, 0).closed_by == ClosedBy::Early;
  CHECK(early > 50);
  CHECK_EQ(without.report(99, 0).repaired_bytes, 0u);
}

TEST(an_abstaining_rank_is_not_waited_for_and_nothing_is_lost) {
  Loop loop(network(4));
  warm_up(loop);
  LoopOptions rest = loop_of(5);
  rest.weights = {1, 0, 1, 1};
  loop.run(rest);
  for (std::size_t i = 0; i < 5; ++i) {
    for (Rank rank = 0; rank < 4; ++rank) {
      CHECK_EQ(loop.report(i, rank).contributions_lost_bytes + loop.report(i, rank).reduced_lost_bytes, 0u);
      CHECK_EQ(loop.values(i, rank)[0], (1.0f + 4.0f + 8.0f) / 3.0f);
    }
  }
}

TEST(weights_make_a_weighted_mean) {
  for (const bool bounded : {false, true}) {
    Loop loop(network(3));
    LoopOptions weighted = loop_of(10);
    weighted.weights = {3, 2, 5};
    weighted.bounded = bounded;
    loop.run(weighted);
    for (Rank rank = 0; rank < 3; ++rank) CHECK_EQ(loop.values(9, rank)[0], 7.0f / 10.0f);
  }
}

TEST(the_bound_follows_a_slower_network_and_the_loss_ends) {
  sim::SimOptions options = network(4);
  options.egress = options.ingress = {2e8, 256 * 1024};
  // From 20 s on half of every port is used by others.
  for (Rank rank = 0; rank < 4; ++rank) options.backgrounds.push_back({rank, at(20'000), Time{} + kFar, 1e8});
  Loop loop(options);
  LoopOptions first = loop_of(60, 250'000);
  loop.run(first);
  const Duration before = loop.report(59, 0).policy.bound;
  CHECK(loop.network().now() < at(20'000));
  LoopOptions second = loop_of(150, 250'000);
  second.first_starts.assign(4, at(20'001) - loop.network().now());
  loop.run(second);
  CHECK_RIGHT(loop);
  CHECK(longest_over_bound(loop, 150, {0, 1, 2, 3}) <= 1.0);
  const Duration after = loop.report(149, 0).policy.bound;
  CHECK(after > before + before / 4);
  std::uint64_t lost_early = 0, lost_late = 0;
  for (std::size_t i = 0; i < 150; ++i) {
    const Report& report = loop.report(i, 0);
    (i < 50 ? lost_early : lost_late) += i < 50 || i >= 100 ? report.reduced_lost_bytes : 0;
  }
  CHECK(lost_late * 5 <= lost_early);
}

TEST(many_operations_in_flight_share_one_time_limit) {
  Loop loop(network(4));
  warm_up(loop);
  // A burst of buckets, as DDP launches them.
  sim::Network& network = loop.network();
  std::vector<std::vector<float>> buckets(20 * 4, std::vector<float>(100'000, 1.0f));
  std::vector<sim::Collective> operations(20);
  for (std::size_t i = 0; i < 20; ++i) {
    for (std::size_t rank = 0; rank < 4; ++rank) {
      operations[i].calls.push_back({{100'000, DType::Float32, ReduceOp::Mean, true},
                                     reinterpret_cast<std::byte*>(buckets[i * 4 + rank].data()),
                                     {},
                                     1,
                                     false});
    }
  }
  const sim::RunResult result = network.run(operations, Duration::millis(60'000));
  CHECK(result.finished);
  for (const auto& row : result.reports) {
    for (const auto& report : row) {
      CHECK_EQ(report->contributions_lost_bytes + report->reduced_lost_bytes, 0u);
      CHECK(report->elapsed <= report->policy.bound);
    }
  }
}

TEST(incast_falls_under_loss_in_queues_and_recovers) {
  sim::SimOptions options = network(8);
  options.egress = {1e9, 0};
  options.ingress = {2e8, 256 * 1024};
  for (Rank rank = 0; rank < 8; ++rank) options.backgrounds.push_back({rank, at(3'000), at(6'000), 1.9e8});
  Loop loop(options);
  loop.run(loop_of(10, 100'000));
  CHECK(loop.network().now() < at(3'000));
  std::uint32_t least = 7;
  LoopOptions rest = loop_of(120, 100'000);
  rest.first_starts.assign(8, at(3'000) - loop.network().now());
  loop.run(rest);
  CHECK_RIGHT(loop);
  for (std::size_t i = 0; i < 120; ++i) {
    for (Rank rank = 0; rank < 8; ++rank) least = std::min(least, loop.report(i, rank).policy.incast);
  }
  CHECK(least < 7);
  CHECK_EQ(loop.report(119, 0).policy.incast, 7u);
}

RUN_TESTS()
