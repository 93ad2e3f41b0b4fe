// The protocol on a network that loses nothing: the same bits everywhere, equal to the sum in rank order.
#include <initializer_list>

#include "sim_case.h"

using namespace simcase;

namespace {

constexpr DType kDTypes[] = {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16,
                             DType::Int8Block};
constexpr ReduceOp kOps[] = {ReduceOp::Sum, ReduceOp::Mean};
constexpr Duration kSecond = Duration::millis(1000);

sim::SimOptions quiet(Rank ranks, std::uint64_t seed = 1) {
  sim::SimOptions options;
  options.ranks = ranks;
  options.seed = seed;
  return options;
}

}  // namespace

TEST(every_number_of_ranks_is_exact) {
  for (Rank ranks = 1; ranks <= 64; ++ranks) {
    Case test(quiet(ranks, ranks));
    test.add(floats(10'007));
    test.run();
    CHECK_EXACT(test);
    CHECK_EQ(test.total(&Stats::operations), ranks);
    CHECK_EQ(test.total(&Stats::requests_sent), 0u);
  }
}

TEST(every_size_is_exact) {
  for (const Rank ranks : std::initializer_list<Rank>{2, 3, 8}) {
    for (const std::uint32_t elements : {1u, 2u, 3u, 15u, 16u, 17u, 255u, 256u, 257u, 355u, 356u, 357u,
                                         1'023u, 4'096u, 65'537u, 262'143u, 1'000'003u}) {
      Case test(quiet(ranks, elements));
      test.add(floats(elements));
      test.run();
      CHECK_EXACT(test);
    }
  }
}

TEST(every_type_and_reduction_is_exact) {
  for (const Rank ranks : std::initializer_list<Rank>{1, 2, 5, 8}) {
    for (const DType dtype : kDTypes) {
      for (const ReduceOp op : kOps) {
        for (const std::uint32_t elements : {1u, 1'001u, 33'333u}) {
          Case test(quiet(ranks));
          test.add({elements, dtype, op});
          test.run();
          CHECK_EXACT(test);
        }
      }
    }
  }
}

// Empty tensors are legal: nothing to send, but every caller gets its report.
TEST(nothing_to_reduce_is_done_at_once) {
  for (const Rank ranks : std::initializer_list<Rank>{1, 2, 7}) {
    Case test(quiet(ranks));
    test.add(floats(0));
    test.add(floats(5));
    test.run(kSecond);
    CHECK_EXACT(test);
  }
}

TEST(every_payload_size_is_exact) {
  for (const std::uint32_t payload : {16u, 512u, 1344u, 1408u, 1424u, 8'896u, 65'408u, 65'440u}) {
    for (const std::uint32_t elements : {1u, 5'003u, 200'003u}) {
      sim::SimOptions options = quiet(4);
      options.protocol.path.payload_bytes = payload;
      Case test(options);
      test.add(floats(elements));
      test.run();
      CHECK_EXACT(test);
    }
  }
}

TEST(some_megabytes_on_a_slow_link_are_exact) {
  sim::SimOptions options = quiet(4);
  options.link.bits_per_second = 10e9;
  Case test(options);
  test.add(floats(2'000'003));  // finds out that the windows may be large
  test.run();
  test.add(floats(2'000'003));
  test.run();
  CHECK_EXACT(test);
  const double line_rate_seconds =
      2'000'003 * 4.0 * 2 / 4 * 8 / 10e9;  // two stages, a quarter of the bucket on each link
  CHECK(test.result().elapsed.seconds() > line_rate_seconds / 2);  // both stages may overlap
  CHECK(test.result().elapsed.seconds() < line_rate_seconds * 2);
}

TEST(many_operations_in_flight_are_exact) {
  sim::SimOptions options = quiet(5);
  options.link.jitter = Duration::micros(200);
  Case test(options);
  for (std::uint32_t i = 0; i < 50; ++i) test.add({1 + i * 977, kDTypes[i % 4], kOps[i % 2]});
  test.run();
  CHECK_EXACT(test);
}

// Each rank starts its operations in order, but the ranks are anything but in step.
TEST(operations_may_start_at_any_time_on_any_rank) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    sim::Random random(seed);
    Case test(quiet(4, seed));
    std::vector<Duration> starts(4);
    for (std::uint32_t i = 0; i < 12; ++i) {
      for (Duration& start : starts) start = start + random.duration_up_to(Duration::millis(3));
      test.add(floats(1 + static_cast<std::uint32_t>(random.below(30'000))), starts);
    }
    test.run();
    CHECK_EXACT(test);
  }
}

TEST(one_network_runs_one_operation_after_the_other) {
  Case test(quiet(3));
  for (std::uint32_t i = 0; i < 30; ++i) {
    test.add(floats(100 + i * 331));
    test.run();
    CHECK_EXACT(test);
    test.forget_buckets();
  }
}

TEST(a_small_window_and_small_grants_are_exact) {
  for (const std::size_t window : {std::size_t{1}, std::size_t{1424}, std::size_t{10'000}}) {
    sim::SimOptions options = quiet(3);
    options.protocol.path.window_bytes = window;
    Case test(options);
    test.add(floats(60'001));
    test.add(floats(7));
    test.run();
    CHECK_EXACT(test);
  }
  sim::SimOptions options = quiet(3);
  options.protocol.grants = {2'000, 100'000, 0};
  Case test(options);
  test.add(floats(60'001));
  test.run();
  CHECK_EXACT(test);
}

// A quiet network carries every byte once: 2 (N-1)/N of the bucket from each rank, and no requests.
TEST(a_quiet_network_carries_every_byte_once) {
  constexpr Rank kRanks = 4;
  Case test(quiet(kRanks));
  const std::uint32_t elements = 256 * 1024;
  test.add(floats(elements));
  test.run();
  CHECK_EXACT(test);
  CHECK_EQ(test.total(&Stats::payload_bytes_sent), elements * 4ull * 2 * (kRanks - 1));
  CHECK_EQ(test.total(&Stats::requests_sent), 0u);
  CHECK_EQ(test.total(&Stats::resent_bytes), 0u);
  CHECK_EQ(test.total(&Stats::duplicate_packets), 0u);
  CHECK_EQ(test.total(&Stats::malformed_packets), 0u);
}

// Once everybody knows that everybody is done, no group wants to be woken again.
TEST(groups_go_quiet) {
  for (const double loss : {0.0, 0.2}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      sim::SimOptions options = quiet(4, seed);
      options.link.loss = loss;
      Case test(options);
      test.add(floats(3'000));
      test.add(floats(20'000));
      test.run();
      CHECK_EXACT(test);
      test.forget_buckets();
      CHECK(test.network().settle(kSecond));
      for (Rank rank = 0; rank < 4; ++rank) {
        CHECK(test.network().group(rank).poll_timeout() == Time::never());
        CHECK(test.network().group(rank).idle());
        if (loss == 0) CHECK(test.network().group(rank).everyone_caught_up());
      }
    }
  }
}

// Timestamps are 32 bits of microseconds: they wrap around every 71 minutes, and nothing may be different
// then.
TEST(the_clock_may_wrap_around) {
  const auto resent_when_begun_at = [](std::int64_t micros) {
    sim::SimOptions options = quiet(4);
    options.begin = Time{} + Duration::micros(micros);
    options.link.loss = 0.05;
    Case test(options);
    for (int i = 0; i < 20; ++i) {
      test.add(floats(30'011));
      test.run(kSecond);
      CHECK_EXACT(test);
    }
    return test.total(&Stats::resent_bytes);
  };
  const std::uint64_t usual = resent_when_begun_at(1'000'000);
  CHECK_EQ(resent_when_begun_at((std::int64_t{1} << 31) - 10'000), usual);
  CHECK_EQ(resent_when_begun_at((std::int64_t{1} << 32) - 10'000), usual);
}

// Half a wrap later old timestamps look like future ones: repair must not depend on them.
TEST(a_long_silence_does_no_harm) {
  constexpr Rank kRanks = 4;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    sim::SimOptions options = quiet(kRanks, seed);
    options.link.loss = 0.2;
    Case test(options);
    for (const std::int64_t minutes : {0, 40, 40, 80}) {
      test.add(floats(30'011), std::vector<Duration>(kRanks, Duration::millis(minutes * 60'000)));
      const bool finished = test.run(Duration::millis(minutes * 60'000 + 120'000)).finished;
      CHECK_EXACT(test);
      if (!finished) break;
      CHECK(test.report(0, 0).elapsed < kSecond);
    }
  }
}

TEST(jitter_reordering_and_late_looks_are_exact) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    sim::SimOptions options = quiet(4, seed);
    options.link.jitter = Duration::millis(2);
    options.wake_delay = Duration::millis(3);
    Case test(options);
    for (int i = 0; i < 4; ++i) test.add(floats(50'021));
    test.run();
    CHECK_EXACT(test);
  }
}

TEST(links_may_differ) {
  sim::SimOptions options = quiet(4);
  options.other_links[{0, 1}].bits_per_second = 50e6;
  options.other_links[{2, 3}].delay = Duration::millis(20);
  options.other_links[{3, 0}].loss = 0.3;
  Case test(options);
  test.add(floats(100'003));
  test.run();
  CHECK_EXACT(test);
}

RUN_TESTS()
