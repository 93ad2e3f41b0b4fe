// What a group keeps for others, and for how long: early packets, decisions, and what a rank fetches that
// returns.
#include <algorithm>
#include <string>

#include "inspection.h"
#include "ranks_case.h"

using namespace rankscase;

TEST(early_packets_of_a_rejected_operation_do_not_stay) {
  Ranks ranks(2, fixed());
  std::vector<Values> values = values_of(2);
  Call call = exact();
  call.timeout = Duration::millis(100);
  ranks.start(0, Ranks::with(call, values[0]));
  ranks.run(Duration::millis(50));
  CHECK(ranks.pool(1).bytes_in_use() > 0);
  ranks.run(Duration::millis(200));
  CHECK(ranks.take_reports(0)[0].error == ErrorCode::Timeout);
  CHECK_EQ(ranks.pool(1).bytes_in_use(), 0u);
  // Who comes later is told at once, and keeps nothing either.
  ranks.start(1, Ranks::with(call, values[1]));
  CHECK_EQ(ranks.take_reports(1).size(), 1u);
  CHECK(ranks.group(1).idle());
  CHECK_EQ(ranks.pool(1).bytes_in_use(), 0u);
}

TEST(a_bucket_that_nobody_here_has_called_takes_no_more_than_the_room_for_early_ones) {
  GroupConfig config = fixed();
  config.early_bytes = 1 << 20;
  Ranks ranks(2, config);
  Values values(10'000'000);                                 // 40 MB
  Call call = Ranks::with(exact(ReduceOp::Gather), values);  // its decisions need no contribution of ours
  ranks.start(0, call);
  ranks.run(Duration::millis(20));
  CHECK(ranks.group(1).stats().early_dropped > 0);
  CHECK(inspect(ranks.group(1)).engine_bytes <= config.early_bytes);
  std::vector<float> others(values.size());
  ranks.start(1, Ranks::with(call, others));
  ranks.run(Duration::millis(5'000));
  CHECK_EQ(ranks.take_reports(1).size(), 1u);  // and is repaired when it is called
}

TEST(decisions_are_answered_after_the_callers_memory_was_overwritten) {
  for (const bool stays_readable : {false, true}) {
    for (const bool is_bounded : {false, true}) {
      for (const GroupConfig& config : {GroupConfig{}, fixed()}) {
        Ranks ranks(2, config);
        const Time until = ranks.now() + Duration::millis(40);
        ranks.loses = [&](Rank from, Rank, const Header& header) {
          return from == 0 && header.type == PacketType::Decision && ranks.now() < until;
        };
        std::vector<Values> values = values_of(2, 50'000);
        Call call = is_bounded ? bounded(0) : exact();
        call.stays_readable = stays_readable;
        ranks.start_all(values, call);
        ranks.run(Duration::millis(20));
        CHECK_EQ(ranks.take_reports(0).size(), 1u);
        CHECK(ranks.take_reports(1).empty());
        if (stays_readable) ranks.release(0);
        std::fill(values[0].begin(), values[0].end(), -1.0F);
        ranks.run(kLong);
        CHECK_EQ(ranks.take_reports(1).size(), 1u);
        CHECK(all_are(values[1], 3));
      }
    }
  }
}

TEST(data_that_stays_readable_is_not_copied_before_it_is_released) {
  const auto kept_bytes = [](bool stays_readable, bool release) {
    Ranks ranks(2);
    ranks.loses = [&](Rank from, Rank, const Header& header) {
      return from == 0 && header.type == PacketType::Decision;
    };
    std::vector<Values> values = values_of(2, 50'000);
    Call call = bounded(0);
    call.stays_readable = stays_readable;
    ranks.start_all(values, call);
    ranks.run(Duration::millis(20));
    CHECK_EQ(ranks.take_reports(0).size(), 1u);
    if (release) ranks.release(0);
    return inspect(ranks.group(0)).engine_bytes;
  };
  CHECK_EQ(kept_bytes(true, false), 0u);
  CHECK(kept_bytes(true, true) > 0);
  CHECK(kept_bytes(false, false) > 0);
}

TEST(what_everybody_has_is_forgotten) {
  Ranks ranks(3);
  for (std::uint64_t step = 0; step < 20; ++step) {
    std::vector<Values> values = values_of(3);
    ranks.start_all(values, bounded(step));
    ranks.run(Duration::millis(20));
  }
  for (Rank rank = 0; rank < 3; ++rank) {
    CHECK_EQ(inspect(ranks.group(rank)).engine_bytes, 0u);
    CHECK_EQ(inspect(ranks.group(rank)).residual_bytes, 0u);
    CHECK_EQ(ranks.pool(rank).bytes_in_use(), 0u);
    CHECK(ranks.group(rank).everyone_caught_up());
  }
}

// ---- Return

TEST(a_rank_that_was_cut_off_for_two_steps_returns_and_gets_what_it_missed) {
  Ranks ranks(4);
  const std::uint64_t first = learn(ranks, 4);
  const Time end = ranks.now() + Duration::millis(700);
  ranks.loses = [&](Rank from, Rank to, const Header&) {
    return (from == 2 || to == 2) && ranks.now() < end;
  };
  std::vector<std::vector<Values>> steps(2, values_of(4));
  for (std::uint64_t i = 0; i < 2; ++i) {
    for (Rank rank = 0; rank < 4; ++rank) ranks.start(rank, Ranks::with(bounded(first + i), steps[i][rank]));
    ranks.run(Duration::millis(300));
  }
  for (const Rank rank : {Rank{0}, Rank{1}, Rank{3}}) {
    CHECK_EQ(ranks.take_reports(rank).size(), 2u);
    CHECK_EQ(inspect(ranks.group(rank)).members.size(), 3u);
  }
  ranks.run(Duration::millis(3'000));
  const std::vector<Report> late = ranks.take_reports(2);
  CHECK_EQ(late.size(), 2u);
  for (const Report& report : late) CHECK_EQ(report.message, std::string());
  for (Rank rank = 0; rank < 4; ++rank) {
    CHECK_EQ(inspect(ranks.group(rank)).members.size(), 4u);
    for (const auto& step : steps) CHECK(step[rank] == step[0]);
  }
}

RUN_TESTS()
