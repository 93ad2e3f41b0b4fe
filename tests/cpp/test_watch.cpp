// Ranks that are silent where membership is fixed: they end what needs them, and late ranks do not.
#include <string>

#include "ranks_case.h"

using namespace rankscase;

namespace {

const Duration kSilence = GroupConfig{}.exact_silence;
const Duration kMoment = Duration::millis(1);

GroupConfig grid_of_two_rows() {
  GroupConfig config = fixed();
  config.rows = {{0, 1}, {2, 3}};
  return config;
}

/// Fills `values`, which must live as long as the call.
void start_some(Ranks& ranks, std::initializer_list<Rank> who, std::vector<Values>& values,
                const Call& call = exact()) {
  for (const Rank rank : who) ranks.start(rank, Ranks::with(call, values[rank]));
}

/// Whether as many calls as given have ended since the last look, all for want of that rank.
bool all_lost(Ranks& ranks, Rank rank, std::size_t calls, Rank lost) {
  const std::vector<Report> reports = ranks.take_reports(rank);
  for (const Report& report : reports) {
    if (report.error != ErrorCode::RankLost || report.ranks != std::vector<Rank>{lost}) return false;
    if (report.message.find("rank " + std::to_string(lost) + " was silent for too long") == std::string::npos)
      return false;
  }
  return reports.size() == calls;
}

bool all_good(Ranks& ranks, Rank rank, std::size_t calls) {
  const std::vector<Report> reports = ranks.take_reports(rank);
  for (const Report& report : reports) {
    if (report.error != ErrorCode::None) return false;
  }
  return reports.size() == calls;
}

}  // namespace

TEST(a_dead_rank_ends_what_needs_it_on_all_ranks_and_later_calls_at_once) {
  for (const GroupConfig& config : {fixed(), grid_of_two_rows()}) {
    for (const bool is_bounded : {false, true}) {
      Ranks ranks(4, config);
      std::vector<Values> values = values_of(4), next = values_of(4), last = values_of(4);
      ranks.kill(3);
      start_some(ranks, {0, 1, 2}, values, is_bounded ? bounded(0) : exact());
      ranks.run(kSilence - Duration::millis(100));
      for (Rank rank = 0; rank < 3; ++rank) CHECK(ranks.take_reports(rank).empty());
      start_some(ranks, {0, 1, 2}, next, is_bounded ? bounded(1) : exact());  // ends together with the first
      ranks.run(Duration::millis(100) + kMoment);
      for (Rank rank = 0; rank < 3; ++rank) CHECK(all_lost(ranks, rank, 2, 3));
      for (Rank rank = 0; rank < 3; ++rank) {
        start_some(ranks, {rank}, last, is_bounded ? bounded(2) : exact());
        CHECK(all_lost(ranks, rank, 1, 3));
      }
    }
  }
}

// Rank 1 is behind as well, but lives.
TEST(calls_that_wait_for_a_dead_rank_that_is_behind_end_too) {
  Ranks ranks(3, fixed());
  std::uint64_t step = learn(ranks, 3);
  std::vector<std::vector<Values>> values(6, values_of(3));
  ranks.kill(2);
  for (std::vector<Values>& each : values) start_some(ranks, {0}, each, bounded(step++));
  ranks.run(kSilence + kMoment);
  CHECK(all_lost(ranks, 0, 6, 2));
}

TEST(a_late_rank_is_not_dead_even_if_most_answers_are_lost) {
  for (const GroupConfig& config : {fixed(), grid_of_two_rows()}) {
    Ranks ranks(4, config);
    int answers = 0;
    ranks.loses = [&](Rank from, Rank, const Header& header) {
      return from == 3 && header.type == PacketType::Status && ++answers % 4 != 0;
    };
    std::vector<Values> values = values_of(4);
    start_some(ranks, {0, 1, 2}, values);
    ranks.run(kSilence * 5);
    start_some(ranks, {3}, values);
    ranks.run(Duration::millis(500));
    CHECK(answers > 8);
    for (Rank rank = 0; rank < 4; ++rank) CHECK(all_good(ranks, rank, 1));
  }
}

TEST(a_dead_rank_is_found_in_groups_above_64_ranks) {
  constexpr Rank kRanks = 70;
  Ranks ranks(kRanks);
  std::vector<Values> values(kRanks, Values(kElements, 1.0F));
  ranks.kill(kRanks - 1);
  for (Rank rank = 0; rank + 1 < kRanks; ++rank) start_some(ranks, {rank}, values);
  ranks.run(kSilence + kMoment);
  for (Rank rank = 0; rank + 1 < kRanks; ++rank) CHECK(all_lost(ranks, rank, 1, kRanks - 1));
}

// It has heard nobody for so long because it did not listen.
TEST(a_rank_that_stood_still_accuses_nobody) {
  Ranks ranks(3, fixed());
  std::vector<Values> values = values_of(3);
  start_some(ranks, {0}, values);
  ranks.run(Duration::millis(1'000));
  ranks.kill(0);
  ranks.run(kSilence * 2);
  ranks.group(0).stood_still(ranks.now(), kSilence * 2);
  ranks.wake(0);
  ranks.run(kSilence * 2);
  start_some(ranks, {1, 2}, values);
  ranks.run(Duration::millis(500));
  for (Rank rank = 0; rank < 3; ++rank) CHECK(all_good(ranks, rank, 1));
}

// A busy machine does that all the time, and dead ranks must be found there too.
TEST(short_standstills_do_not_hide_a_dead_rank) {
  Ranks ranks(3, fixed());
  std::vector<Values> values = values_of(3);
  ranks.kill(2);
  start_some(ranks, {0, 1}, values);
  for (Duration time; time < kSilence; time = time + Duration::millis(500)) {
    for (Rank rank = 0; rank < 2; ++rank) ranks.group(rank).stood_still(ranks.now(), Duration::millis(20));
    ranks.run(Duration::millis(500));
  }
  ranks.run(kMoment);
  for (Rank rank = 0; rank < 2; ++rank) CHECK(all_lost(ranks, rank, 1, 2));
}

// Ranks of a column have nothing to say to each other while their rows wait.
TEST(a_rank_that_was_not_needed_has_the_whole_time_when_it_is) {
  Ranks ranks(4, grid_of_two_rows());
  std::vector<Values> values = values_of(4);
  start_some(ranks, {0, 2}, values);
  ranks.run(kSilence * 3);
  bool cut = true;
  ranks.loses = [&cut](Rank from, Rank to, const Header&) { return cut && from + to == 2 && from != to; };
  start_some(ranks, {1, 3}, values);
  ranks.run(kSilence / 2);
  cut = false;
  ranks.run(Duration::millis(1'000));
  for (Rank rank = 0; rank < 4; ++rank) CHECK(all_good(ranks, rank, 1));
}

TEST(a_rank_that_others_gave_up_fails_with_the_same_error_when_it_is_back) {
  Ranks ranks(3, fixed());
  std::vector<Values> values = values_of(3), next = values_of(3), last = values_of(3);
  start_some(ranks, {0, 2}, values);
  for (std::vector<Values>* more : {&next, &last}) start_some(ranks, {2}, *more);
  ranks.kill(2);
  start_some(ranks, {1}, values);
  ranks.run(kSilence * 2);
  for (Rank rank = 0; rank < 2; ++rank) CHECK(all_lost(ranks, rank, 1, 2));
  ranks.group(2).stood_still(ranks.now(), kSilence * 2);
  ranks.wake(2);
  ranks.run(Duration::millis(1'000));
  CHECK(all_lost(ranks, 2, 3, 2));
  start_some(ranks, {2}, next);
  CHECK(all_lost(ranks, 2, 1, 2));
}

TEST(a_process_that_waits_elsewhere_is_told_of_a_dead_rank) {
  for (const GroupConfig& config : {fixed(), grid_of_two_rows()}) {
    Ranks ranks(4, config);
    std::vector<Values> values = values_of(4), next = values_of(4);
    ranks.start_all(values, exact());
    ranks.run(kLong);
    for (Rank rank = 0; rank < 4; ++rank) CHECK(all_good(ranks, rank, 1));
    ranks.kill(3);
    ranks.run(kSilence * 3);
    for (Rank rank = 0; rank < 3; ++rank) CHECK(ranks.group(rank).gone().lost.empty());  // nobody waits
    ranks.group(1).watch_outside(ranks.now(), kSilence);
    ranks.run(kSilence + kMoment);
    const Rank told = config.rows.empty() ? 2 : 0;  // in the grid by the one that is linked to it
    for (const Rank rank : {Rank{1}, told}) {
      CHECK(ranks.group(rank).gone().lost == std::vector<Rank>{3});
      CHECK(ranks.group(rank).gone().left.empty());
      start_some(ranks, {rank}, next);
      CHECK(all_lost(ranks, rank, 1, 3));
    }
    ranks.group(1).watch_outside(ranks.now(), Duration{});
    ranks.run(kSilence);
    CHECK(ranks.group(1).poll_timeout() == Time::never());
  }
}

// A connection broke: whoever is silent for a shorter time now is dead. Answers to older questions say
// little.
TEST(a_shorter_limit_counts_from_when_it_was_set) {
  Ranks ranks(3, fixed());
  ranks.kill(2);
  ranks.group(0).watch_outside(ranks.now(), kSilence);
  ranks.run(kSilence * 9 / 10);
  ranks.group(0).watch_outside(ranks.now(), kSilence / 20);
  ranks.run(kSilence / 20 - kMoment);
  CHECK(ranks.group(0).gone().lost.empty());
  ranks.run(kMoment);
  CHECK(ranks.group(0).gone().lost == std::vector<Rank>{2});
}

TEST(a_rank_that_left_is_not_lost) {
  Ranks ranks(3, fixed());
  ranks.goodbye(2);
  ranks.group(0).watch_outside(ranks.now(), kSilence);
  ranks.run(kSilence * 2);
  CHECK(ranks.group(0).gone().left == std::vector<Rank>{2});
  CHECK(ranks.group(0).gone().lost.empty());
}

// Best effort does not wait for ranks; its exact calls do.
TEST(in_best_effort_only_exact_calls_need_a_dead_rank) {
  GroupConfig config = fixed();
  config.delivery = Delivery::BestEffort;
  Ranks ranks(3, config);
  std::vector<Values> values = values_of(3), next = values_of(3);
  ranks.kill(2);
  start_some(ranks, {0, 1}, values, bounded(0));
  start_some(ranks, {0, 1}, next);
  ranks.run(kSilence + kMoment);
  for (Rank rank = 0; rank < 2; ++rank) {
    const std::vector<Report> reports = ranks.take_reports(rank);
    for (const Report& report : reports) CHECK_EQ(report.operation, 1u);
    CHECK(reports.size() == 1 && reports[0].error == ErrorCode::RankLost);
  }
}

RUN_TESTS()
