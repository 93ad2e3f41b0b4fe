// The window's bounds and how its limit moves: what keeps a shallow switch from overflowing and a fast path
// busy.
#include "check.h"
#include "proto/rtt.h"
#include "proto/window.h"

using namespace optireduce;

namespace {

constexpr std::uint32_t kPayload = 1408;
constexpr std::uint32_t kChunk = 44;

EndpointConfig config_with(std::size_t window_bytes) {
  EndpointConfig config;
  config.window_bytes = window_bytes;
  config.payload_bytes = kPayload;
  return config;
}

RttEstimator estimator(std::initializer_list<int> samples_ms) {
  RttEstimator rtt{EndpointConfig{}};
  for (int ms : samples_ms) rtt.sample(Duration::millis(ms));
  return rtt;
}

SendWindow window_between(std::size_t lower, std::size_t upper) {
  return SendWindow({lower, upper}, kPayload, kChunk);
}

}  // namespace

TEST(bounds_shrink_with_the_number_of_peers_and_respect_the_grant) {
  const EndpointConfig config = config_with(256 * 1024);
  CHECK_EQ(WindowBounds::of(config, 1, 1 << 20).upper, std::size_t{256 * 1024});
  CHECK_EQ(WindowBounds::of(config, 7, 1 << 20).upper, std::size_t{1024 * 1024 / 7});
  CHECK_EQ(WindowBounds::of(config, 63, 1 << 20).upper, std::size_t{128 * 1024});
  CHECK_EQ(WindowBounds::of(config, 1, 100'000).upper, std::size_t{100'000});
  for (std::size_t peers : {3u, 7u, 15u, 31u}) {
    CHECK(WindowBounds::of(config, peers, 1 << 20).lower * peers <= 256 * 1024);
  }
  const WindowBounds tiny = WindowBounds::of(config_with(1), 3, 1 << 20);
  CHECK_EQ(tiny.upper, std::size_t{kPayload});
  CHECK_EQ(tiny.lower, tiny.upper);
}

TEST(a_batch_goes_whole_or_not_at_all_but_one_always_goes) {
  SendWindow window = window_between(10'000, 10'000);
  CHECK(window.admits(50'000));
  window.on_sent(8'000);
  CHECK(window.admits(2'000));
  CHECK(!window.admits(2'001));
  window.on_credit(8'000);
  CHECK(window.admits(50'000));
  window.on_credit(8'000);  // more than was sent: not believed
  CHECK_EQ(window.outstanding(), std::size_t{0});
}

TEST(loss_in_a_queue_halves_the_limit_once_per_turnaround_down_to_the_lower_bound) {
  SendWindow window = window_between(60'000, 200'000);
  const RttEstimator queued = estimator({1, 10, 10, 10, 10, 10, 10, 10, 10});
  const Time start{Duration::millis(1000).ns};
  window.on_loss(start, queued);
  CHECK_EQ(window.limit(), std::size_t{100'000});
  window.on_loss(start + Duration::millis(1), queued);
  CHECK_EQ(window.limit(), std::size_t{100'000});
  window.on_loss(start + Duration::millis(30), queued);
  CHECK_EQ(window.limit(), std::size_t{60'000});
}

TEST(loss_without_a_queue_is_noise) {
  SendWindow window = window_between(60'000, 200'000);
  window.on_loss(Time{Duration::millis(1000).ns}, estimator({1, 1, 1, 1}));
  window.on_loss(Time{Duration::millis(2000).ns}, RttEstimator{EndpointConfig{}});
  CHECK_EQ(window.limit(), std::size_t{200'000});
}

TEST(credit_raises_the_limit_slowly_to_the_upper_bound) {
  SendWindow window = window_between(60'000, 100'000);
  window.on_loss(Time{Duration::millis(1000).ns}, estimator({50, 50}));
  CHECK_EQ(window.limit(), std::size_t{60'000});
  for (int i = 0; i < 31; ++i) window.on_credit(60'000);
  CHECK_EQ(window.limit(), std::size_t{60'000});
  window.on_credit(60'000);
  CHECK_EQ(window.limit(), std::size_t{60'000 + kPayload});
  for (int i = 0; i < 10'000; ++i) window.on_credit(60'000);
  CHECK_EQ(window.limit(), std::size_t{100'000});
}

TEST(the_repair_timeout_follows_the_turnaround_within_its_bounds) {
  const EndpointConfig config;
  CHECK(estimator({}).repair_timeout() == config.repair_initial);
  CHECK(estimator({0, 0, 0, 0}).repair_timeout() == config.repair_min);
  CHECK(estimator({20}).repair_timeout() == Duration::millis(60));
  CHECK(estimator({1000, 1000}).repair_timeout() == config.repair_max);
}

RUN_TESTS()
