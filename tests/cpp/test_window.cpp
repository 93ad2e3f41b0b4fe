// What may be under way to one peer, and how congestion moves it.
#include "check.h"
#include "path/window.h"

using namespace optireduce;

namespace {

constexpr std::uint32_t kPayload = 1408;
constexpr std::uint32_t kChunk = 44;
constexpr WindowBounds kBounds{4 * kPayload, 40'000, 200'000};
constexpr auto kContribution = Stage::Contributions;
constexpr auto kDecision = Stage::Decisions;

PathOptions options_with(std::size_t window_bytes) {
  PathOptions options;
  options.window_bytes = window_bytes;
  options.payload_bytes = kPayload;
  return options;
}

SendWindow window_between(std::size_t lower, std::size_t upper) {
  return SendWindow({lower, lower, upper}, kPayload, kChunk);
}

/// Round trips of `rtt` for `periods` round trips, every one of them held back by the limit.
void round_trips(CongestionLimit& limit, Time& now, Duration rtt, int periods, bool wanted_more = true) {
  for (int i = 0; i < periods * 4; ++i) {
    now = now + rtt / 4 + Duration::micros(1);
    limit.on_round_trip(now, rtt, wanted_more);
  }
}

/// A limit that a quiet path has let grow to its upper bound.
CongestionLimit grown() {
  CongestionLimit limit(kBounds, kPayload);
  Time now;
  round_trips(limit, now, Duration::micros(300), 300);
  CHECK_EQ(limit.bytes(), kBounds.upper);
  return limit;
}

}  // namespace

TEST(bounds_shrink_with_the_number_of_peers_and_respect_the_grant) {
  const PathOptions config = options_with(256 * 1024);
  CHECK_EQ(WindowBounds::of(config, 1, 1 << 20).upper, std::size_t{256 * 1024});
  CHECK_EQ(WindowBounds::of(config, 7, 1 << 20).upper, std::size_t{1024 * 1024 / 7});
  CHECK_EQ(WindowBounds::of(config, 63, 1 << 20).upper, std::size_t{128 * 1024});
  CHECK_EQ(WindowBounds::of(config, 1, 100'000).upper, std::size_t{100'000});
  CHECK_EQ(WindowBounds::of(config, 7, 1 << 20).lower, std::size_t{4 * kPayload});
  for (std::size_t peers : {3u, 7u, 15u})
    CHECK(WindowBounds::of(config, peers, 1 << 20).shallow * peers * 2 <= 256 * 1024);
  const WindowBounds tiny = WindowBounds::of(options_with(1), 3, 1 << 20);
  CHECK_EQ(tiny.upper, std::size_t{kPayload});
  CHECK_EQ(tiny.lower, tiny.upper);
}

TEST(an_echo_settles_what_was_sent_no_later_also_when_timestamps_wrap) {
  ByteLedger ledger;
  ledger.add(0xffff'fff0u, 100);
  ledger.add(0xffff'fffeu, 20);
  ledger.add(5, 3);
  ledger.settle(0xffff'ffefu);
  CHECK_EQ(ledger.outstanding(), std::size_t{123});
  ledger.settle(0xffff'fffeu);
  CHECK_EQ(ledger.outstanding(), std::size_t{3});
  ledger.settle(5);
  CHECK_EQ(ledger.outstanding(), std::size_t{0});
  for (std::uint32_t i = 10; i < 1'000; ++i) {
    ledger.add(i, 1);
    ledger.settle(i - 5);
    CHECK(ledger.outstanding() <= 5);
  }
}

TEST(a_batch_goes_whole_or_not_at_all_but_one_always_goes) {
  SendWindow window = window_between(10'000, 10'000);
  CHECK(window.admits(kContribution, 50'000));
  window.on_sent(kContribution, 1, 8'000, false);
  CHECK(window.admits(kContribution, 2'000));
  CHECK(!window.admits(kContribution, 2'001));
  window.on_returned(1);
  CHECK(window.admits(kContribution, 50'000));
}

TEST(stages_have_a_window_each) {
  SendWindow window = window_between(10'000, 10'000);
  window.on_sent(kContribution, 1, 10'000, false);
  CHECK(!window.admits(kContribution, 1));
  CHECK(window.admits(kDecision, 10'000));
  window.on_sent(kDecision, 2, 10'000, false);
  CHECK(!window.admits(kDecision, 1));
  window.on_arrived(2);
  CHECK(window.admits(kDecision, 1));
}

TEST(contributions_wait_for_their_decision_until_told_to_go_on) {
  SendWindow window = window_between(10'000, 10'000);
  window.on_sent(kContribution, 7, 10'000, false);
  CHECK(window.wanted(kContribution, 1'000).arrival && window.wanted(kContribution, 1'000).decision);
  window.on_arrived(7);
  CHECK(!window.admits(kContribution, 1));
  CHECK(!window.wanted(kContribution, 1'000).arrival && window.wanted(kContribution, 1'000).decision);
  window.on_go_on(7);
  CHECK(window.admits(kContribution, 1));
  CHECK(!window.wanted(kContribution, 1'000).any());
}

TEST(repairs_are_under_way_but_do_not_wait_for_a_second_decision) {
  SendWindow window = window_between(10'000, 10'000);
  window.on_sent(kContribution, 1, 6'000, true);
  CHECK(!window.admits_repair(kContribution, 6'000));
  window.on_arrived(1);
  CHECK(window.admits_repair(kContribution, 6'000));
  CHECK(window.admits(kContribution, 50'000));
}

TEST(a_receiver_that_takes_few_senders_gets_a_part_of_a_large_window_from_each) {
  SendWindow window(kBounds, kPayload, kChunk);
  for (int i = 0; i < 2'000; ++i) {
    window.on_held_back();
    window.on_round_trip(Time{} + Duration::millis(i), Duration::micros(300));
  }
  CHECK_EQ(window.limit(), kBounds.upper);
  window.set_incast(4, 8);
  CHECK_EQ(window.limit(), kBounds.upper / 2);
  window.set_incast(1, 200);
  CHECK_EQ(window.limit(), kBounds.shallow);  // that fits with all of them
  window.set_incast(0, 8);
  CHECK_EQ(window.limit(), kBounds.upper);
}

TEST(silence_means_that_all_is_lost_and_little_is_tried) {
  SendWindow window = window_between(6'000, 100'000);
  window.on_sent(kContribution, 1, 90'000, false);
  window.on_sent(kDecision, 2, 90'000, false);
  window.on_silence(Time{} + Duration::millis(100));
  CHECK(window.admits(kContribution, 90'000) && window.admits(kDecision, 90'000));
  CHECK_EQ(window.limit(), std::size_t{6'000});
}

TEST(a_long_queue_shrinks_the_limit_and_an_empty_one_lets_it_grow) {
  CongestionLimit limit = grown();
  Time now = Time{} + Duration::millis(60'000);
  round_trips(limit, now, Duration::millis(20), 1);
  CHECK(limit.bytes() < 200'000);
  round_trips(limit, now, Duration::millis(20), 30);
  CHECK_EQ(limit.bytes(), kBounds.shallow);  // what fits a shallow switch leaves no link idle
  round_trips(limit, now, Duration::micros(300), 10);
  CHECK_EQ(limit.bytes(), kBounds.shallow);  // the beginning of an operation, perhaps
  round_trips(limit, now, Duration::micros(300), 200);
  CHECK_EQ(limit.bytes(), std::size_t{200'000});
}

TEST(a_limit_that_nobody_needs_does_not_grow) {
  CongestionLimit limit(kBounds, kPayload);
  Time now;
  round_trips(limit, now, Duration::micros(300), 1);
  limit.on_silence(now);
  round_trips(limit, now, Duration::micros(300), 50, false);
  CHECK_EQ(limit.bytes(), std::size_t{4 * kPayload});
}

TEST(single_late_packets_are_a_scheduler_and_not_a_queue) {
  CongestionLimit limit = grown();
  Time now = Time{} + Duration::millis(60'000);
  for (int i = 0; i < 200; ++i) {
    now = now + Duration::micros(500);
    limit.on_round_trip(now, i % 2 == 0 ? Duration::millis(30) : Duration::micros(300), true);
  }
  CHECK_EQ(limit.bytes(), std::size_t{200'000});
}

TEST(a_path_that_has_become_longer_is_accepted_in_time) {
  CongestionLimit limit(kBounds, kPayload);
  Time now;
  round_trips(limit, now, Duration::micros(300), 2);
  round_trips(limit, now, Duration::millis(30), 5'000);
  CHECK(limit.bytes() >= kBounds.shallow);
  round_trips(limit, now, Duration::millis(30), 500);
  CHECK(limit.bytes() > kBounds.shallow + 50'000);
}

TEST(loss_halves_the_limit_only_in_a_queue_and_once_per_round_trip) {
  CongestionLimit limit = grown();
  Time now = Time{} + Duration::millis(60'000);
  limit.on_loss(now);
  CHECK_EQ(limit.bytes(), std::size_t{200'000});    // no queue: noise
  round_trips(limit, now, Duration::millis(5), 8);  // a queue, but below the target
  CHECK_EQ(limit.bytes(), std::size_t{200'000});
  limit.on_loss(now + Duration::millis(10));
  CHECK_EQ(limit.bytes(), std::size_t{100'000});
  limit.on_loss(now + Duration::millis(11));  // the same round trip
  CHECK_EQ(limit.bytes(), std::size_t{100'000});
  for (int i = 2; i < 10; ++i) limit.on_loss(now + Duration::millis(10 * i));
  CHECK_EQ(limit.bytes(), kBounds.shallow);
}

TEST(incast_halves_under_heavy_loss_and_recovers_by_one) {
  IncastPolicy incast(9);
  CHECK_EQ(incast.value(), 8u);
  CHECK_EQ(incast.code(), std::uint8_t{0});
  incast.learn(0.2);
  CHECK_EQ(incast.value(), 4u);
  CHECK_EQ(incast.code(), std::uint8_t{4});
  for (int i = 0; i < 5; ++i) incast.learn(0.2);
  CHECK_EQ(incast.value(), 1u);
  for (int i = 0; i < 3; ++i) incast.learn(0.05);
  CHECK_EQ(incast.value(), 4u);
  for (int i = 0; i < 30; ++i) incast.learn(0);
  CHECK_EQ(incast.value(), 8u);
}

TEST(batches_are_halved_by_loss_that_no_noise_explains_and_grow_again) {
  BatchLimit limit(40);
  const auto send = [&](int batches) {
    for (int i = 0; i < batches; ++i) limit.on_sent(limit.packets());
  };
  send(10);
  limit.on_loss(4, limit.packets());  // 1 %
  CHECK_EQ(limit.packets(), 40u);
  limit.on_loss(79, limit.packets());  // much, and two batches
  CHECK_EQ(limit.packets(), 20u);
  send(1);
  limit.on_loss(39, limit.packets());  // less than two batches: it may be one that was lost by chance
  CHECK_EQ(limit.packets(), 20u);
  limit.on_loss(1, limit.packets());
  CHECK_EQ(limit.packets(), 10u);
  for (int i = 0; i < 10; ++i) limit.on_loss(1000, limit.packets());
  CHECK_EQ(limit.packets(), 1u);
  send(63);
  CHECK_EQ(limit.packets(), 1u);
  send(1);
  CHECK_EQ(limit.packets(), 2u);
  send(2000);
  CHECK_EQ(limit.packets(), 40u);
}

RUN_TESTS()
