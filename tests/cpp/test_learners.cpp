// A rank that is far behind replays outside the view. Nobody waits for it, and it comes in when it is near.
#include <algorithm>
#include <string>

#include "inspection.h"
#include "ranks_case.h"
#include "sealed.h"

using namespace rankscase;

namespace {

constexpr Rank kRanks = 3, kAway = 2;
constexpr std::uint64_t kMissed = 400;
constexpr Duration kStep = Duration::millis(20);

template <typename Field>
GroupConfig with(Field GroupConfig::* field, Field value) {
  GroupConfig config;
  config.*field = value;
  return config;
}

/// Room for the log of some steps.
GroupConfig forgetful() {
  return with(&GroupConfig::log_bytes, std::size_t{600'000});
}

/// Rank 2 is cut off while the others train on. Each step is a call of each rank and some time.
class Absence {
 public:
  explicit Absence(GroupConfig config = {}, Rank size = kRanks) : size_(size), ranks(size, config) {
    step = learn(ranks, size);
    next = step;
    ranks.loses = [this](Rank from, Rank to, const Header& header) {
      if (is_cut && (from == kAway || to == kAway)) return true;
      return loses && loses(from, to, header);
    };
    is_cut = true;
    others();
    ranks.run(Duration::millis(800));
    CHECK(!is_member());
  }

  bool is_member() { return inspect(ranks.group(0)).members.size() == present(); }
  bool is_behind() { return ranks.group(kAway).behind().has_value(); }
  std::size_t present() const { return static_cast<std::size_t>(size_) - gone; }

  /// A step of the others, and how long the slowest of them needed.
  Duration others() {
    std::vector<Values>& made = results.emplace_back(values_of(size_));
    for (Rank rank = 0; rank < size_; ++rank) {
      if (rank != kAway && !has(dead, rank)) ranks.start(rank, Ranks::with(call(step), made[rank]));
    }
    ++step;
    ranks.run(is_cut ? Duration::millis(5) : kStep);
    Duration longest;
    for (Rank rank = 0; rank < size_; ++rank) {
      if (rank == kAway) continue;
      for (const Report& report : ranks.take_reports(rank)) {
        CHECK_EQ(report.message, std::string());
        longest = std::max(longest, report.elapsed);
        ++ended[rank];
      }
    }
    return longest;
  }
  void miss(std::uint64_t steps) {
    for (std::uint64_t i = 0; i < steps; ++i) others();
    is_cut = false;
    ranks.run(Duration::millis(100));
  }
  /// The next step of the rank that is behind. Whether it ended.
  bool replay(Duration time = kStep) {
    values.assign(kElements, 1000.0f);  // nobody gets this
    ranks.start(kAway, Ranks::with(call(next), values));
    ranks.run(time);
    return take();
  }
  bool take() {
    for (const Report& report : ranks.take_reports(kAway)) {
      error = report.error;
      if (error == ErrorCode::None) CHECK(same_bits(values, results[next - first()][0]));
      ++next;
      return true;
    }
    return false;
  }
  /// The first step that it missed is bounded in any case.
  Call call(std::uint64_t at) const {
    Call made = bounded(at);
    made.descriptor.bounded = !is_exact || at == first();
    return made;
  }
  std::uint64_t first() const { return step - results.size(); }

 private:
  Rank size_;

 public:
  Ranks ranks;
  std::function<bool(Rank, Rank, const Header&)> loses;
  std::uint64_t step = 0, next = 0;
  bool is_cut = false, is_exact = false;
  std::size_t gone = 0;
  RankMask dead = 0;
  std::vector<std::vector<Values>> results;
  Values values;
  std::map<Rank, std::uint64_t> ended;
  ErrorCode error = ErrorCode::None;
};

}  // namespace

TEST(nobody_waits_for_a_rank_that_replays) {
  Absence away;
  away.miss(kMissed);
  CHECK(!away.is_member());
  CHECK(away.is_behind());
  Duration longest;
  for (int i = 0; i < 300 && !away.is_member(); ++i) {
    longest = std::max(longest, away.others());
    for (int replayed = 0; replayed < 4 && !away.is_member(); ++replayed)
      CHECK(away.replay(Duration::millis(2)));
  }
  CHECK(away.is_member());
  CHECK(away.next + 3 >= away.step);
  CHECK(longest < Duration::millis(20));  // no more than a step in which somebody is late
  CHECK_EQ(away.ended[0], away.results.size());
}

// Also where the last packets of the others were lost, and they make no more.
TEST(a_group_at_rest_admits_a_rank_when_it_is_near) {
  Absence away;
  away.miss(40);
  std::uint64_t replayed = 0;
  for (; replayed < 41 && !away.is_member(); ++replayed) {
    CHECK(away.replay());
    away.ranks.run(Duration::millis(100));
  }
  CHECK(away.is_member());
  CHECK(replayed >= 38 && replayed < 41);
}

TEST(a_rank_that_missed_few_steps_joins_at_once) {
  Absence away;
  away.is_cut = false;
  away.others();
  away.ranks.run(Duration::millis(200));
  CHECK(away.is_member());
}

TEST(a_rank_with_another_history_is_refused_before_it_is_near) {
  Absence away;
  away.miss(40);
  away.ranks.group(kAway).give_up_replay(away.ranks.now());
  CHECK(away.ranks.group(kAway).left_behind());
  Position wrong = {10, 4711};
  away.ranks.restore(kAway, wrong, 10);
  away.ranks.run(kLong);
  CHECK(away.ranks.group(kAway).left_behind());
  CHECK(!away.is_member());
}

TEST(a_rank_that_replays_may_take_a_snapshot_instead) {
  Absence away;
  away.miss(40);
  CHECK(away.is_behind());
  CHECK(away.ranks.group(kAway).give_up_replay(away.ranks.now()));
  CHECK(!away.is_behind());
  away.ranks.restore(kAway, away.ranks.group(0).position(), away.step);
  away.ranks.run(Duration::millis(200));
  CHECK(away.is_member());
  CHECK(!away.ranks.group(kAway).give_up_replay(away.ranks.now()));  // it is a member
  CHECK(!away.ranks.group(kAway).left_behind());
}

// The decisions of the removed owner are with the others.
TEST(the_view_may_change_while_a_rank_replays) {
  Absence away(with(&GroupConfig::min_ranks, Rank{2}), 4);
  away.miss(60);
  for (int i = 0; i < 10; ++i) CHECK(away.replay());
  CHECK(away.is_behind());
  away.dead = bit_of(3);
  away.gone = 1;
  away.ranks.kill(3);
  away.others();
  away.ranks.run(kLong);
  CHECK_EQ(inspect(away.ranks.group(0)).members.size(), 2u);
  for (int i = 0; i < 80 && !away.is_member(); ++i) CHECK(away.replay(Duration::millis(300)));
  CHECK(away.is_member());
  CHECK(away.error == ErrorCode::None);
}

TEST(a_log_that_becomes_too_short_leaves_a_rank_behind) {
  Absence away(forgetful());
  away.miss(10);
  CHECK(away.replay());
  CHECK(away.is_behind());
  for (int i = 0; i < 100; ++i) away.others();
  away.replay(kLong);
  away.ranks.run(kLong);
  CHECK(away.ranks.group(kAway).left_behind());
  CHECK(away.error == ErrorCode::LeftBehind);
  away.others();
  CHECK_EQ(away.ended[0], away.results.size());
}

// The Refusals that would tell it are lost: it hears from those whom it asks.
TEST(a_rank_finds_out_that_nobody_keeps_what_it_lacks) {
  Absence away(forgetful());
  away.miss(10);
  CHECK(away.replay());
  away.loses = [](Rank from, Rank to, const Header& header) {
    return header.type == PacketType::View && (from == kAway || to == kAway);
  };
  for (int i = 0; i < 100; ++i) away.others();
  CHECK(!away.ranks.group(kAway).left_behind());
  away.replay(kLong);
  CHECK(away.ranks.group(kAway).left_behind());
  CHECK(away.error == ErrorCode::LeftBehind);
}

// An owner that does not answer it, but the others: they have its decisions, too.
TEST(a_rank_that_an_owner_does_not_answer_asks_the_others) {
  Absence away;
  away.miss(10);
  away.loses = [](Rank from, Rank to, const Header& header) {
    return from == 1 && to == kAway && header.type == PacketType::Decision;
  };
  CHECK(away.replay(kLong));
  CHECK(away.error == ErrorCode::None);
}

// Without a deadline a sum needs all members: it was none when the others made it.
TEST(exact_operations_are_replayed_alike) {
  Absence away;
  away.is_exact = true;
  away.miss(10);
  for (int i = 0; i < 11 && !away.is_member(); ++i) {
    CHECK(away.replay());
    CHECK(away.error == ErrorCode::None);
  }
  CHECK(away.is_member() || away.next + 3 > away.step);
  CHECK(all_are(away.results.back()[0], 3.0f));
}

// Whatever it sends in the name of the view that it observes.
TEST(a_rank_outside_the_view_contributes_nothing) {
  Absence away;
  away.miss(10);
  const Stats before = away.ranks.group(0).stats();
  for (const PacketType type : {PacketType::Contribution, PacketType::Decision, PacketType::Reject,
                                PacketType::Abstain, PacketType::Gone}) {
    for (const std::uint64_t view : {std::uint64_t{0}, inspect(away.ranks.group(0)).view}) {
      Header header{.type = type,
                    .sender = kAway,
                    .operation = static_cast<std::uint32_t>(away.step),
                    .descriptor = {kElements, DType::Float32, ReduceOp::Sum, true},
                    .length = 64,
                    .stream = kStream,
                    .view = static_cast<std::uint16_t>(view)};
      std::vector<std::byte> packet(kHeaderBytes + 64);
      encode(header, Seal(42), std::span(packet).subspan(kHeaderBytes), 0, packet.data());
      away.ranks.give(0, kAway, packet, packet.size());
    }
  }
  const Stats& after = away.ranks.group(0).stats();
  CHECK_EQ(after.other_view_packets, before.other_view_packets + 10);
  away.others();
  CHECK(all_are(away.results.back()[0], 3.0f));
}

TEST(a_rank_whose_others_finish_while_it_replays_is_told) {
  Absence away;
  away.miss(20);
  CHECK(away.replay());
  for (Rank rank = 0; rank < kAway; ++rank) away.ranks.goodbye(rank);
  away.replay(Duration::millis(100));
  CHECK(away.error == ErrorCode::GroupFinished);
}

// It is not alone as long as it hears them: they may train on for longer than a group waits for a quorum.
TEST(a_rank_that_replays_for_long_does_not_lack_ranks) {
  Absence away(with(&GroupConfig::quorum_wait, Duration::millis(500)));
  away.miss(40);
  for (int i = 0; i < 30; ++i) {
    away.others();
    CHECK(away.replay(Duration::millis(100)));
    CHECK(away.error == ErrorCode::None);
  }
}

RUN_TESTS()
