// Runs of the simulator: a seed repeats everything, every trouble counts, ranks crash and have clocks of
// their own, and no run is endless.
#include <cmath>

#include "sim/clock.h"
#include "sim_trouble.h"

using namespace simtrouble;

namespace {

std::uint64_t trace_of(const sim::SimOptions& options) {
  Case test(options);
  test.add(floats(20'011));
  test.add(floats(3));
  test.run();
  CHECK_EXACT(test);
  return test.network().trace_hash();
}

/// Everything at once that can go wrong without harm to the result.
sim::SimOptions troubled(std::uint64_t seed) {
  sim::SimOptions options = lossy(seed);
  options.link.spike = 0.02;
  options.egress.bits_per_second = 1e9;
  options.ingress = {1e9, 15'000};
  options.backgrounds = {{1, {}, Time{} + Duration::millis(5), 5e8}};
  options.clock_offset = {{2, Duration::millis(700)}};
  options.clock_drift = {{3, -50}};
  return options;
}

}  // namespace

TEST(a_seed_repeats_every_event) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    CHECK_EQ(trace_of(lossy(seed)), trace_of(lossy(seed)));
    CHECK(trace_of(lossy(seed)) != trace_of(lossy(seed + 1)));
  }
}

TEST(a_seed_repeats_every_trouble) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    CHECK_EQ(trace_of(troubled(seed)), trace_of(troubled(seed)));
    CHECK(trace_of(troubled(seed)) != trace_of(troubled(seed + 1)));
  }
}

// Each of them changes what happens, and so the hash.
TEST(every_trouble_shows_in_the_trace) {
  const std::uint64_t reference = trace_of(troubled(0));
  const auto differs_without = [&](const auto& change) {
    sim::SimOptions options = troubled(0);
    change(options);
    return trace_of(options) != reference;
  };
  CHECK(differs_without([](auto& o) { o.link.spike = 0; }));
  CHECK(differs_without([](auto& o) { o.egress = {}; }));
  CHECK(differs_without([](auto& o) { o.ingress.queue_bytes = 0; }));
  CHECK(differs_without([](auto& o) { o.backgrounds.clear(); }));
  CHECK(!differs_without([](auto&) {}));
}

TEST(faults_are_counted) {
  sim::SimOptions options = lossy(3);
  options.link.bits_per_second = 1e9;
  options.link.queue_bytes = 30'000;
  Case test(options);
  test.add(floats(100'003));
  test.run();
  CHECK_EXACT(test);
  const sim::Counters& counters = test.network().counters();
  CHECK(counters.lost > 0);
  CHECK(counters.duplicated > 0);
  CHECK(counters.reordered > 0);
  CHECK(counters.queue_dropped > 0);
  CHECK_EQ(counters.sent, test.total(&Stats::packets_sent));
  CHECK_EQ(counters.delivered, test.total(&Stats::packets_received) + test.total(&Stats::invalid_packets));
}

TEST(a_crashed_rank_is_not_waited_for_and_others_time_out) {
  sim::SimOptions options;
  options.ranks = 3;
  options.link.bits_per_second = 1e8;
  options.crashes = {{2, Time{} + Duration::millis(12)}};
  Time last_sign_of_life;
  options.observer = [&](const sim::TraceEntry& entry) {
    const bool by_network = entry.kind == sim::EventKind::Arrive || entry.kind == sim::EventKind::Crash;
    if (entry.rank == 2 && !by_network) last_sign_of_life = entry.at;
  };
  Case test(options);
  test.add(floats(400'000), {}, Duration::millis(100));
  test.add(floats(10), std::vector<Duration>(3, Duration::millis(50)), Duration::millis(100));
  CHECK(test.run().finished);
  CHECK(test.result().elapsed < Duration::millis(200));
  for (const std::size_t operation : {0, 1}) {
    for (Rank rank = 0; rank < 2; ++rank) {
      CHECK(test.report(operation, rank).error == ErrorCode::Timeout);
      CHECK(test.report(operation, rank).ranks == std::vector<Rank>{2});
    }
    CHECK(!test.result().reports[operation][2].has_value());
  }
  CHECK(test.network().counters().crash_dropped > 0);
  CHECK(test.network().settle(Duration::millis(10'000)));
  test.add(floats(10), {}, Duration::millis(100));
  CHECK(test.run().finished);  // also a run that begins after the crash
  CHECK(!test.result().reports[0][2].has_value());
  CHECK(last_sign_of_life > Time{});
  CHECK(last_sign_of_life < options.crashes[0].at);
}

TEST(a_crash_to_come_keeps_nobody_waiting) {
  sim::SimOptions options;
  options.crashes = {{1, Time{} + Duration::millis(60'000)}};
  Case test(options);
  test.add(floats(10));
  test.run();
  CHECK_EXACT(test);
  CHECK(test.network().settle(Duration::millis(1'000)));
}

TEST(a_clock_finds_the_time_when_it_shows_something) {
  const Time begin{5'000'000'000};
  for (const double drift : {0., 0.3, -0.3, 70., -70., 250'000., -250'000.}) {
    const sim::Clock clock(begin, Duration::millis(-3'000), drift);
    CHECK_EQ(clock.at(begin).ns, 2'000'000'000);
    const double shown =
        static_cast<double>((clock.at(begin + Duration::millis(1'000)) - clock.at(begin)).ns);
    CHECK(std::abs(shown - 1e9 * (1 + drift * 1e-6)) < 2);
    for (const std::int64_t shows : {2'000'000'001L, 2'000'123'457L, 9'876'543'211L}) {
      const Time when = clock.when(Time{shows});
      CHECK(clock.at(when).ns >= shows);
      CHECK(clock.at(Time{when.ns - 1}).ns < shows);
    }
    CHECK(clock.when(Time::never()) == Time::never());
  }
}

TEST(clocks_may_differ_and_reports_are_in_their_own) {
  sim::SimOptions options = lossy(5);
  options.begin = Time{} + Duration::millis(2'000);
  options.clock_offset = {{0, Duration::millis(-2'000)}, {1, Duration::millis(3'600'000)}};
  options.clock_drift = {{1, 200'000}, {2, -200'000}};
  Time completed[4];
  options.observer = [&](const sim::TraceEntry& entry) {
    if (entry.kind == sim::EventKind::Complete) completed[entry.rank] = entry.at;
  };
  Case test(options);
  test.add(floats(100'003));
  test.run();
  CHECK_EXACT(test);
  const double factors[4] = {1, 1.2, 0.8, 1};
  for (Rank rank = 0; rank < 4; ++rank) {
    const double took = static_cast<double>((completed[rank] - options.begin).ns) * factors[rank];
    CHECK(std::abs(static_cast<double>(test.report(0, rank).elapsed.ns) - took) <= 2);
  }
}

TEST(a_fast_clock_times_out_early) {
  sim::SimOptions options;
  options.clock_drift = {{0, 250'000}};
  Case test(options);
  test.add(floats(10), {Duration{}, sim::Call::kNever}, Duration::millis(100));
  CHECK(test.run().finished);
  CHECK(test.report(0, 0).error == ErrorCode::Timeout);
  CHECK_EQ(test.report(0, 0).elapsed.ns, 100'000'000);
  CHECK_EQ(test.result().elapsed.ns, 80'000'000);
}

TEST(a_run_ends_at_its_bound) {
  sim::SimOptions options = lossy(0);
  options.link.loss = 1;
  Case test(options);
  test.add(floats(5));
  CHECK(!test.run(Duration::millis(100)).finished);
  CHECK(test.network().now() <= Time{} + Duration::millis(100));
  CHECK(contains(error_of([&] { test.network().settle({}); }), "did not finish"));
}

TEST(a_run_ends_after_too_many_events) {
  sim::SimOptions options = lossy(0);
  options.max_events = 1'000;
  Case test(options);
  test.add(floats(1'000'000));
  const std::string error = error_of([&] { test.run(); });
  CHECK(contains(error, "max_events"));
  CHECK(contains(error, "seed 0"));
}

RUN_TESTS()
