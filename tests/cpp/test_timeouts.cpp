// Adaptive timeouts: what they learn from, what moves them and what does not.
#include "check.h"
#include "proto/log_scale.h"
#include "proto/timeouts.h"

using namespace optireduce;

namespace {

constexpr std::size_t kBytes = 4 << 20;

Duration ms(std::int64_t value) {
  return Duration::millis(value);
}

TimeoutPolicy policy_of(BoundOptions options = {}) {
  options.least = 1.2;
  options.most = 1.4;
  return TimeoutPolicy(options, 0, 4);
}

void learn(TimeoutPolicy& policy, Duration elapsed, int times, std::size_t bytes = kBytes) {
  for (int i = 0; i < times; ++i) policy.learn({bytes, elapsed, 1.0, {}, 0.0});
}

bool about(Duration value, Duration wanted) {
  return std::abs(value.seconds() - wanted.seconds()) < wanted.seconds() * 0.002;
}

}  // namespace

TEST(log_scale_is_exact_to_a_thousandth_and_keeps_order) {
  std::uint16_t last = 0;
  for (double value = 1e-12; value < 1e5; value *= 1.01) {
    const std::uint16_t code = to_log_scale(value);
    CHECK(code > last);
    CHECK(std::abs(from_log_scale(code) / value - 1) < 1e-3);
    last = code;
  }
  CHECK_EQ(to_log_scale(0), std::uint16_t{0});
  CHECK_EQ(to_log_scale(-1), std::uint16_t{0});
  CHECK_EQ(from_log_scale(0), 0.0);
}

TEST(warm_up_lasts_as_long_as_asked) {
  BoundOptions options;
  options.warmup_operations = 7;
  TimeoutPolicy policy = policy_of(options);
  learn(policy, ms(300), 6);
  CHECK(!policy.warmed_up());
  learn(policy, ms(300), 1);
  CHECK(policy.warmed_up());
}

TEST(the_bound_is_a_percentile_between_two_multiples_of_what_is_usual) {
  TimeoutPolicy calm = policy_of();
  learn(calm, ms(1'000), 30);
  CHECK(about(calm.bound(kBytes), ms(1'200)));
  TimeoutPolicy wild = policy_of();
  for (int i = 0; i < 30; ++i) learn(wild, i % 3 == 2 ? ms(5'000) : ms(1'000), 1);
  CHECK(about(wild.bound(kBytes), ms(1'400)));
  TimeoutPolicy between = policy_of();
  for (int i = 0; i < 60; ++i) learn(between, i % 10 == 9 ? ms(1'300) : ms(1'000), 1);
  CHECK(about(between.bound(kBytes), ms(1'300)));
}

TEST(one_estimate_serves_every_size_and_small_buckets_do_not_speak_for_large_ones) {
  TimeoutPolicy policy = policy_of();
  for (int i = 0; i < 30; ++i) {
    learn(policy, ms(1'000), 1);
    learn(policy, ms(20), 1, 4'096);  // twenty times slower per byte
  }
  CHECK(about(policy.bound(2 * kBytes), ms(2'400)));
  CHECK(policy.bound(4'096) >= ms(50));
  CHECK(policy.bound(4'096) < ms(60));
}

TEST(a_median_that_wanders_between_calm_and_disturbed_operations_does_not_take_the_bound_along) {
  TimeoutPolicy policy = policy_of();
  for (const int disturbed : {45, 55}) {
    learn(policy, ms(1'000), 100 - disturbed);
    learn(policy, ms(2'000), disturbed);
    CHECK(policy.bound(kBytes) >= ms(1'380));
    CHECK(policy.bound(kBytes) <= ms(1'600));
  }
}

TEST(a_slower_network_is_followed_and_a_burst_is_not) {
  TimeoutPolicy policy = policy_of();
  learn(policy, ms(1'000), 100);
  learn(policy, ms(3'000), 12);  // a burst
  CHECK(policy.bound(kBytes) <= ms(1'403));
  learn(policy, ms(1'000), 100);
  CHECK(about(policy.bound(kBytes), ms(1'200)));
  learn(policy, ms(2'000), 80);  // half the rate, for good
  CHECK(about(policy.bound(kBytes), ms(2'400)));
  learn(policy, ms(1'000), 98);  // and back
  CHECK(about(policy.bound(kBytes), ms(1'200)));
}

TEST(an_operation_that_was_cut_short_counts_as_long_as_it_would_have_taken) {
  TimeoutPolicy policy = policy_of();
  learn(policy, ms(1'000), 100);
  for (int i = 0; i < 100; ++i) policy.learn({kBytes, ms(1'200), 0.6, {}, 0.4});
  CHECK(about(policy.bound(kBytes), ms(2'400)));
  for (int i = 0; i < 100; ++i) policy.learn({kBytes, ms(1'000), 0.0, {}, 1.0});  // at most four times
  CHECK(about(policy.bound(kBytes), ms(4'800)));
}

TEST(the_early_fraction_grows_when_data_comes_too_late_and_shrinks_when_none_does) {
  TimeoutPolicy policy = policy_of();
  const double before = policy.early_fraction();
  policy.learn({kBytes, ms(100), 1.0, {}, 0.02});
  CHECK(policy.early_fraction() > before);
  for (int i = 0; i < 10; ++i) policy.learn({kBytes, ms(100), 1.0, {}, 0.02});
  CHECK_EQ(policy.early_fraction(), 1.0);
  learn(policy, ms(100), 10);
  CHECK(policy.early_fraction() < 1.0);
  learn(policy, ms(100), 200);
  CHECK_EQ(policy.early_fraction(), 0.05);
  policy.learn({kBytes, ms(100), 1.0, {}, 0.0005});  // hardly any: stay
  CHECK_EQ(policy.early_fraction(), 0.05);
}

TEST(ranks_that_usually_start_late_are_allowed_to_up_to_a_limit) {
  TimeoutPolicy policy = policy_of();
  for (int i = 0; i < 100; ++i) policy.learn({kBytes, ms(10), 1.0, ms(i % 10 == 0 ? 100 : 5), 0.0});
  CHECK(about(policy.skew(kBytes), ms(100)));
  CHECK(policy.bound(kBytes) < ms(70));  // the network is as fast as ever
  for (int i = 0; i < 100; ++i) policy.learn({kBytes, ms(10), 1.0, ms(i < 3 ? 100 : 5), 0.0});
  CHECK(about(policy.skew(kBytes), ms(6)));  // seldom is not usual
  for (int i = 0; i < 100; ++i) policy.learn({kBytes, ms(10), 1.0, ms(5'000), 0.0});
  CHECK(about(policy.skew(kBytes), ms(250)));
}

TEST(the_median_of_all_ranks_decides) {
  TimeoutPolicy policy = policy_of();
  learn(policy, ms(1'000), 30);
  const auto code = [](double seconds) { return to_log_scale(seconds / kBytes); };
  policy.hear(1, code(3.0), code(2.5), 0);
  policy.hear(2, code(2.0), code(1.5), 0);
  CHECK(about(policy.bound(kBytes), ms(2'000)));
  CHECK(about(policy.early(kBytes), ms(1'500)));
  policy.hear(3, code(100.0), code(100.0), 40);  // one rank that is far off does not matter
  CHECK(policy.bound(kBytes) <= ms(3'010));
  CHECK_EQ(policy.skew(kBytes).ns, ms(80).ns);  // the rank that starts first sees it
}

RUN_TESTS()
