// How a snapshot ends that a rank is left behind. The snapshot itself is the caller's: here, the results.
#include <stdexcept>
#include <string>

#include "inspection.h"
#include "ranks_case.h"

using namespace rankscase;

namespace {

using Kind = MembershipEvent::Kind;

constexpr Rank kRanks = 3, kAway = 2;

/// Room for the log of some steps.
GroupConfig forgetful() {
  GroupConfig config;
  config.log_bytes = 100'000;
  return config;
}

struct Snapshot {
  Position position;
  std::uint64_t step = 0;
};

/// Rank 2 is cut off until the others have forgotten what it lacks.
class Away {
 public:
  explicit Away(const GroupConfig& config = forgetful()) : ranks(kRanks, config) {
    step = learn(ranks, kRanks);
    ranks.loses = [this](Rank from, Rank to, const Header&) { return cut && (from == kAway || to == kAway); };
    cut = true;
    others(30);
    cut = false;
    CHECK(discard().error == ErrorCode::LeftBehind);
  }

  /// A call of the rank that is left behind.
  Report discard() {
    Values values(kElements, 1.0f);
    ranks.start(kAway, Ranks::with(bounded(step), values));
    ranks.run(kLong);
    std::vector<Report> reports = ranks.take_reports(kAway);
    CHECK_EQ(reports.size(), 1u);
    return reports.at(0);
  }
  /// Steps of the other two. Their results are kept.
  void others(std::uint64_t steps) {
    for (std::uint64_t end = step + steps; step < end; ++step) {
      std::vector<Values> values = values_of(kRanks);
      for (Rank rank = 0; rank < kAway; ++rank) ranks.start(rank, Ranks::with(bounded(step), values[rank]));
      ranks.run(cut ? Duration::millis(600) : Duration::millis(20));
      for (Rank rank = 0; rank < kAway; ++rank) CHECK_EQ(ranks.take_reports(rank).size(), 1u);
      CHECK(same_bits(values[0], values[1]));
      results.push_back(values[0]);
    }
  }
  /// All members take it at the same step.
  Snapshot snapshot() {
    const Position position = ranks.group(0).position();
    CHECK(ranks.group(1).position() == position);
    return {position, step};
  }
  void restore(const Snapshot& snapshot) {
    ranks.restore(kAway, snapshot.position, snapshot.step);
    ranks.run(kLong);
  }
  /// The steps that followed the snapshot have the same results on the rank that took it.
  void replay(const Snapshot& snapshot) {
    for (std::uint64_t missed = snapshot.step; missed < step; ++missed) {
      Values values(kElements, 1000.0f);  // nobody gets this
      ranks.start(kAway, Ranks::with(bounded(missed), values));
      ranks.run(Duration::millis(50));
      for (const Report& report : ranks.take_reports(kAway)) CHECK_EQ(report.message, std::string());
      CHECK(same_bits(values, results.at(results.size() - (step - missed))));
    }
  }
  /// A step of all three.
  void together() {
    std::vector<Values> values = values_of(kRanks);
    ranks.start_all(values, bounded(step++));
    ranks.run(Duration::millis(50));
    for (Rank rank = 0; rank < kRanks; ++rank) {
      CHECK_EQ(ranks.take_reports(rank).size(), 1u);
      CHECK(all_are(values[rank], 7.0f));
    }
  }
  /// Of the rank itself, since the last look.
  std::vector<Kind> events() {
    std::vector<Kind> kinds;
    while (const auto event = ranks.group(kAway).poll_event()) {
      if (event->rank == kAway) kinds.push_back(event->kind);
    }
    return kinds;
  }
  bool is_member() { return inspect(ranks.group(0)).members.size() == kRanks; }

  Ranks ranks;
  std::uint64_t step = 0;
  bool cut = false;
  std::vector<Values> results;
};

template <typename Act>
std::string why_refused(Act act) {
  try {
    act();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(a_snapshot_brings_a_rank_back_that_was_left_behind) {
  Away away;
  CHECK(away.ranks.group(kAway).left_behind());
  const Snapshot snapshot = away.snapshot();
  away.others(3);
  away.restore(snapshot);
  CHECK(away.is_member());
  CHECK(!away.ranks.group(kAway).left_behind());
  CHECK((away.events() == std::vector<Kind>{Kind::Removed, Kind::LeftBehind, Kind::Returned}));
  away.replay(snapshot);
  away.together();
  const Position position = away.ranks.group(0).position();
  for (Rank rank = 1; rank < kRanks; ++rank) CHECK(away.ranks.group(rank).position() == position);
}

TEST(calls_that_were_made_between_restoring_and_coming_in_wait) {
  Away away;
  const Snapshot snapshot = away.snapshot();
  away.others(1);
  away.cut = true;
  away.ranks.restore(kAway, snapshot.position, snapshot.step);
  Values values(kElements, 1000.0f);
  away.ranks.start(kAway, Ranks::with(bounded(snapshot.step), values));
  away.ranks.run(kLong);
  CHECK(away.ranks.take_reports(kAway).empty());
  away.cut = false;
  away.ranks.run(kLong);
  CHECK_EQ(away.ranks.take_reports(kAway).size(), 1u);
  CHECK(same_bits(values, away.results.back()));
}

TEST(a_snapshot_that_is_too_old_is_refused_and_a_newer_one_is_not) {
  Away away;
  const Snapshot old = away.snapshot();
  away.others(30);
  away.events();
  away.restore(old);
  CHECK(away.ranks.group(kAway).left_behind());
  CHECK((away.events() == std::vector<Kind>{Kind::LeftBehind}));
  CHECK(away.discard().error == ErrorCode::LeftBehind);
  const Snapshot fresh = away.snapshot();
  away.restore(fresh);
  CHECK(away.is_member());
  away.together();
}

TEST(a_snapshot_of_something_else_is_refused) {
  Away away;
  Snapshot wrong = away.snapshot();
  ++wrong.position.digest;
  away.restore(wrong);
  CHECK(away.ranks.group(kAway).left_behind());
  CHECK(!away.is_member());
}

// Its own count of calls runs away from the others': they must not take it for progress.
TEST(calls_of_a_rank_that_is_left_behind_count_for_nobody) {
  Away away;
  for (int i = 0; i < 60; ++i) {
    Values values(kElements, 1.0f);
    away.ranks.start(kAway, Ranks::with(bounded(away.step + i), values));
  }
  away.ranks.run(kLong);
  CHECK_EQ(away.ranks.take_reports(kAway).size(), 60u);
  const Snapshot snapshot = away.snapshot();
  CHECK(away.ranks.group(kAway).completed() > snapshot.position.completed);
  away.others(2);
  away.restore(snapshot);
  CHECK(away.is_member());
  away.replay(snapshot);
  away.together();
}

TEST(a_restarted_process_takes_the_place_of_the_one_before) {
  Away away;
  const Snapshot first = away.snapshot();
  away.restore(first);
  away.together();
  for (int times = 0; times < 2; ++times) {
    away.ranks.kill(kAway);
    away.ranks.run(Duration::millis(20));
    away.ranks.restart(kAway);
    away.ranks.run(kLong);
    CHECK(away.ranks.group(kAway).left_behind());
    CHECK(!away.is_member());
    const Snapshot snapshot = away.snapshot();
    away.others(2);
    away.restore(snapshot);
    CHECK(away.is_member());
    away.replay(snapshot);
    away.together();
  }
}

// Even if the others have done nothing yet.
TEST(a_restarted_process_does_not_come_in_without_a_snapshot) {
  Ranks ranks(kRanks);
  ranks.restart(kAway);
  ranks.run(kLong);
  CHECK(ranks.group(kAway).left_behind());
  CHECK_EQ(inspect(ranks.group(0)).members.size(), std::size_t{kAway});
}

// Whoever came in by it keeps what the other one will need.
TEST(one_snapshot_serves_two_ranks_one_after_the_other) {
  constexpr Rank kAll = 5, kStay = 3;
  Ranks ranks(kAll, forgetful());
  std::uint64_t step = learn(ranks, kAll);
  bool cut = true;
  ranks.loses = [&](Rank from, Rank to, const Header&) { return cut && (from >= kStay || to >= kStay); };
  const auto work = [&](Rank size) {
    std::vector<Values> values = values_of(kAll);
    for (Rank rank = 0; rank < size; ++rank) ranks.start(rank, Ranks::with(bounded(step), values[rank]));
    ranks.run(Duration::millis(cut ? 600 : 20));
    for (Rank rank = 0; rank < size; ++rank) CHECK_EQ(ranks.take_reports(rank).size(), 1u);
    ++step;
  };
  for (int i = 0; i < 30; ++i) work(kStay);
  cut = false;
  std::vector<Values> in_vain = values_of(kAll);
  for (Rank rank = kStay; rank < kAll; ++rank) ranks.start(rank, Ranks::with(bounded(step), in_vain[rank]));
  ranks.run(kLong);
  for (Rank rank = kStay; rank < kAll; ++rank) {
    CHECK(ranks.group(rank).left_behind());
    CHECK_EQ(ranks.take_reports(rank).size(), 1u);
  }
  Position position;
  for (Rank rank = 0; rank < kStay; ++rank) position = ranks.group(rank).position();
  ranks.restore(kStay, position, step);
  ranks.run(kLong);
  for (int i = 0; i < 4; ++i) work(kStay + 1);
  ranks.restore(kStay + 1, position, step - 4);
  ranks.run(kLong);
  CHECK(!ranks.group(kStay + 1).left_behind());
  std::vector<Values> missed = values_of(kAll);  // it replays them outside the view
  for (std::uint64_t past = step - 4; past < step; ++past) {
    ranks.start(kStay + 1, Ranks::with(bounded(past), missed[past - (step - 4)]));
    ranks.run(Duration::millis(50));
    CHECK_EQ(ranks.take_reports(kStay + 1).size(), 1u);
  }
  ranks.run(kLong);
  CHECK_EQ(inspect(ranks.group(0)).members.size(), std::size_t{kAll});
}

// It is not silent for long enough to be removed before it has its snapshot.
TEST(a_process_that_is_restarted_at_once_is_not_taken_for_the_one_before) {
  Ranks ranks(kRanks);
  std::uint64_t step = learn(ranks, kRanks);
  ranks.kill(kAway);
  ranks.restart(kAway);
  ranks.run(Duration::millis(20));
  CHECK(ranks.group(kAway).left_behind());
  ranks.restore(kAway, ranks.group(0).position(), step);
  ranks.run(Duration::millis(100));
  CHECK_EQ(inspect(ranks.group(0)).members.size(), std::size_t{kRanks});
  std::vector<Values> values = values_of(kRanks);
  ranks.start_all(values, bounded(step));
  ranks.run(Duration::millis(50));
  for (Rank rank = 0; rank < kRanks; ++rank) CHECK(all_are(values[rank], 7.0f));
}

TEST(a_rank_that_is_away_learns_that_all_others_have_finished) {
  for (const bool restores : {false, true}) {
    Away away;
    const Snapshot snapshot = away.snapshot();
    for (Rank rank = 0; rank < kAway; ++rank) away.ranks.goodbye(rank);
    away.ranks.run(Duration::millis(20));
    if (restores) away.restore(snapshot);
    const Report report = away.discard();
    CHECK(report.error == ErrorCode::GroupFinished);
    CHECK((report.ranks == std::vector<Rank>{0, 1}));
  }
}

TEST(a_snapshot_that_nobody_answers_ends_calls_after_a_while) {
  GroupConfig config = forgetful();
  config.quorum_wait = Duration::millis(500);
  Away away(config);
  const Snapshot snapshot = away.snapshot();
  for (Rank rank = 0; rank < kAway; ++rank) away.ranks.kill(rank);
  away.ranks.restore(kAway, snapshot.position, snapshot.step);
  Values values(kElements, 1.0f);
  away.ranks.start(kAway, Ranks::with(bounded(away.step), values));
  away.ranks.run(Duration::millis(400));
  CHECK(away.ranks.take_reports(kAway).empty());
  away.ranks.run(Duration::millis(400));
  const std::vector<Report> reports = away.ranks.take_reports(kAway);
  CHECK_EQ(reports.size(), 1u);
  for (const Report& report : reports) CHECK(report.error == ErrorCode::TooFewRanks);
}

TEST(a_rank_that_is_not_left_behind_restores_nothing) {
  Ranks ranks(kRanks);
  learn(ranks, kRanks, 2);
  const Position position = ranks.group(0).position();
  CHECK(why_refused([&] { ranks.restore(0, position, 2); }).find("not left behind") != std::string::npos);
  std::vector<Values> values = values_of(kRanks);
  ranks.start_all(values, bounded(2));
  ranks.run(Duration::millis(50));
  for (Rank rank = 0; rank < kRanks; ++rank) CHECK(all_are(values[rank], 7.0f));
}

TEST(there_is_no_position_while_a_call_is_open) {
  Ranks ranks(kRanks);
  Values values(kElements, 1.0f);
  ranks.start(0, Ranks::with(bounded(0), values));
  CHECK(why_refused([&] { ranks.group(0).position(); }).find("all-reduce 0 is not over") !=
        std::string::npos);
}

RUN_TESTS()
