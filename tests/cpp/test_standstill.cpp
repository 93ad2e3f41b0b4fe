// What a rank does after its process stood still: the others may have gone on without it.
#include <string>

#include "inspection.h"
#include "ranks_case.h"

using namespace rankscase;

// What only this rank has the others may have made void meanwhile.
TEST(after_a_standstill_nothing_is_handed_over_before_a_quorum_has_answered) {
  Ranks ranks(3);
  std::vector<Values> values = values_of(3);
  ranks.start_all(values, bounded(0));
  ranks.group(0).stood_still(ranks.now(), Duration::millis(500));
  ranks.loses = [&](Rank from, Rank, const Header&) { return from == 0; };
  ranks.run(Duration::millis(20));
  CHECK(ranks.take_reports(0).empty());
  ranks.loses = nullptr;
  ranks.run(Duration::millis(500));
  for (Rank rank = 0; rank < 3; ++rank) {
    CHECK_EQ(ranks.take_reports(rank).size(), 1u);
    CHECK(same_bits(values[rank], values[0]));
  }
  CHECK_EQ(ranks.group(1).stats().removals, 0u);
}

TEST(a_short_standstill_does_not_forget_who_has_answered_since_a_long_one) {
  Ranks ranks(5);
  RankMask unreached = bit_of(1) | bit_of(2) | bit_of(3);
  std::vector<Values> values = values_of(5);
  ranks.start_all(values, bounded(0));
  ranks.loses = [&](Rank from, Rank to, const Header&) { return from == 4 && has(unreached, to); };
  ranks.group(4).stood_still(ranks.now(), Duration::millis(500));
  ranks.run(Duration::millis(2));  // rank 0 answers
  ranks.group(4).stood_still(ranks.now(), Duration::millis(12));
  CHECK(ranks.take_reports(4).empty());
  unreached = bit_of(2) | bit_of(3);
  ranks.loses = [&](Rank from, Rank to, const Header&) {
    return from == 0 || to == 0 || (from == 4 && has(unreached, to));
  };
  ranks.run(Duration::millis(60));  // rank 1 does, and that is a quorum
  CHECK_EQ(ranks.take_reports(4).size(), 1u);
}

TEST(a_call_that_may_not_be_handed_over_names_at_its_timeout_who_has_not_answered) {
  GroupConfig config;
  config.quorum_wait = kTimeout;
  Ranks ranks(3, config);
  std::vector<Values> values = values_of(3);
  for (Rank rank = 0; rank < 3; ++rank) {
    Call call = Ranks::with(bounded(0), values[rank]);
    call.timeout = Duration::millis(100);
    ranks.start(rank, call);
  }
  ranks.group(2).stood_still(ranks.now(), Duration::millis(500));
  ranks.loses = [](Rank from, Rank, const Header&) { return from == 2; };
  ranks.run(Duration::millis(1'000));
  const std::vector<Report> reports = ranks.take_reports(2);
  CHECK_EQ(reports.size(), 1u);
  for (const Report& report : reports) {
    CHECK(report.error == ErrorCode::Timeout);
    CHECK(report.ranks == (std::vector<Rank>{0, 1}));
    CHECK(report.message.find("has not answered since this process stood still") != std::string::npos);
  }
}

TEST(a_rank_without_which_nobody_goes_on_asks_nobody_after_a_standstill) {
  GroupConfig config;
  config.min_ranks = 1;
  Ranks ranks(2, config);
  std::vector<Values> values = values_of(2);
  ranks.start_all(values, bounded(0));
  ranks.kill(1);
  ranks.group(0).stood_still(ranks.now(), Duration::millis(500));
  ranks.run(Duration::millis(3'000));
  CHECK_EQ(inspect(ranks.group(0)).members.size(), 1u);
  CHECK_EQ(ranks.take_reports(0).size(), 1u);
}

RUN_TESTS()
