// A rank that leaves while the others train on: nothing fails, nothing is void, and nobody waits for a
// silence.
#include <deque>

#include "inspection.h"
#include "ranks_case.h"

using namespace rankscase;

namespace {

/// A rank on its way out: it calls what others have begun.
class Leaver {
 public:
  Leaver(Ranks& ranks, Rank rank) : ranks_(ranks), rank_(rank) {}

  void announce() { ranks_.prepare_to_leave(rank_); }
  void follow() {
    while (const auto uncalled = ranks_.group(rank_).uncalled()) {
      Values& room = rooms_.emplace_back(uncalled->descriptor.elements);
      Call call{.descriptor = uncalled->descriptor, .timeout = kTimeout, .stream = uncalled->stream};
      call.weight = uncalled->descriptor.bounded ? 1 : 0;
      ranks_.start(rank_, Ranks::with(call, room));
    }
  }
  void run(Duration time) {
    for (const Time end = ranks_.now() + time; ranks_.now() < end;) {
      follow();
      ranks_.run(Duration::micros(100));
    }
  }
  std::size_t calls() const { return rooms_.size(); }

 private:
  Ranks& ranks_;
  Rank rank_;
  std::deque<Values> rooms_;
};

std::vector<MembershipEvent> events_of(Ranks& ranks, Rank rank) {
  std::vector<MembershipEvent> events;
  while (auto event = ranks.group(rank).poll_event()) events.push_back(*event);
  return events;
}

/// Flat, or two rows of two.
GroupConfig of_four(bool grid) {
  GroupConfig config;
  if (grid) config.rows = {{0, 1}, {2, 3}};
  return config;
}

/// All have one more report, without an error, and the same values.
void check_step(Ranks& ranks, std::vector<Values>& values, Rank size, float wanted) {
  for (Rank rank = 0; rank < size; ++rank) {
    const std::vector<Report> reports = ranks.take_reports(rank);
    CHECK_EQ(reports.size(), 1u);
    for (const Report& report : reports) {
      CHECK(report.error == ErrorCode::None);
      CHECK_EQ(report.void_bytes, 0u);
      CHECK_EQ(report.own.residual, 0u);
    }
    CHECK(all_are(values[rank], wanted));
  }
}

}  // namespace

TEST(the_others_go_on_without_a_rank_that_left_between_two_steps) {
  Ranks ranks(3);
  const std::uint64_t next = learn(ranks, 3, 4);  // no deadline yet
  Leaver leaver(ranks, 2);
  leaver.announce();
  ranks.run(kDelay * 2);
  std::vector<Values> values = values_of(3);
  for (Rank rank = 0; rank < 2; ++rank) ranks.start(rank, Ranks::with(bounded(next), values[rank]));
  leaver.run(Duration::millis(30));
  CHECK(ranks.group(2).may_leave());
  CHECK_EQ(leaver.calls(), 0u);  // nobody had begun
  check_step(ranks, values, 2, 3.0F);
  for (Rank rank = 0; rank < 2; ++rank) {
    const std::vector<MembershipEvent> events = events_of(ranks, rank);
    CHECK_EQ(events.size(), 1u);
    CHECK(!events.empty() && events[0].kind == MembershipEvent::Kind::Left && events[0].rank == 2);
    CHECK_EQ(ranks.group(rank).stats().suspicions, 0u);
  }
}

// One rank has begun, the other waits for it, and for nobody else.
TEST(an_exact_operation_that_somebody_has_begun_ends_with_the_leaver_in_the_view) {
  for (const std::uint32_t elements : {1u, 8u, kElements}) {
    for (Rank first = 0; first < 2; ++first) {
      for (const int kind : {0, 1, 2, 3}) {
        const auto leaves = static_cast<Rank>(2 + kind % 2);
        Ranks ranks(4, of_four(kind >= 2));
        learn(ranks, 4);
        std::vector<Values> values = values_of(4, elements);
        ranks.start(first, Ranks::with(exact(), values[first]));
        Leaver leaver(ranks, leaves);
        leaver.announce();
        leaver.run(Duration::millis(1));
        float sum = 0;
        for (Rank rank = 0; rank < 4; ++rank) {
          if (rank == leaves) continue;
          sum += values[rank][0];
          if (rank != first) ranks.start(rank, Ranks::with(exact(), values[rank]));
        }
        leaver.run(Duration::millis(400));
        CHECK(ranks.group(leaves).may_leave());
        CHECK_EQ(leaver.calls(), 1u);
        for (Rank rank = 0; rank < 4; ++rank) {
          if (rank == leaves) continue;
          const std::vector<Report> reports = ranks.take_reports(rank);
          CHECK_EQ(reports.size(), 1u);
          for (const Report& report : reports) CHECK(report.error == ErrorCode::None);
          CHECK(all_are(values[rank], sum));
          CHECK_EQ(inspect(ranks.group(rank)).members.size(), 3u);
        }
      }
    }
  }
}

// Whatever the loss, and however far the ranks are apart when one of them leaves.
TEST(steps_succeed_with_the_same_bits_while_ranks_leave_one_after_the_other) {
  const int failures = check::failures();
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    constexpr Rank kSize = 4;
    Ranks ranks(kSize, of_four(seed % 3 == 0));
    std::uint64_t random = seed * 7919 + 1;
    const auto below = [&](std::uint64_t n) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      return (random >> 33) % n;
    };
    bool lossy = false;
    ranks.loses = [&](Rank, Rank, const Header&) { return lossy && below(10) == 0; };
    std::uint64_t number = learn(ranks, kSize);
    lossy = true;
    std::deque<std::pair<Rank, Leaver>> leavers;
    for (Rank left = 0; left < 2; ++left) {
      leavers.emplace_back(kSize - 1 - left, Leaver(ranks, kSize - 1 - left));
      leavers.back().second.announce();
      for (int steps = 0; steps < 4; ++steps, ++number) {
        const Rank staying = kSize - 1 - left;
        std::vector<Values> values = values_of(staying, below(2) == 0 ? 2 : kElements);
        for (Rank rank = 0; rank < staying; ++rank) {
          ranks.start(rank, Ranks::with(exact(), values[rank]));
          for (auto& [_, leaver] : leavers) leaver.run(Duration::micros(100 * below(20)));
        }
        for (int wait = 0; wait < 100; ++wait) {
          for (auto& [_, leaver] : leavers) leaver.run(Duration::millis(5));
        }
        float sum = 0;
        for (Rank rank = 0; rank < staying; ++rank) sum += static_cast<float>(1 << rank);
        for (Rank rank = 0; rank < staying; ++rank) {
          const std::vector<Report> reports = ranks.take_reports(rank);
          CHECK_EQ(reports.size(), 1u);
          for (const Report& report : reports) CHECK(report.error == ErrorCode::None);
          CHECK(all_are(values[rank], sum));
        }
      }
      CHECK(ranks.group(kSize - 1 - left).may_leave());
      ranks.goodbye(kSize - 1 - left);
      leavers.clear();
    }
    CHECK_EQ(inspect(ranks.group(0)).members.size(), 2u);
    if (check::failures() != failures) {
      std::printf("seed %lu\n", static_cast<unsigned long>(seed));
      return;
    }
  }
}

// Too late for the first of them, perhaps: its owners wait when the residual is three steps old.
TEST(a_leaver_gives_its_residual_with_the_operations_of_others) {
  Ranks ranks(3);
  std::uint64_t next = learn(ranks, 3, 20);
  std::vector<Values> late = values_of(3);
  for (Rank rank = 0; rank < 2; ++rank) ranks.start(rank, Ranks::with(bounded(next), late[rank]));
  ranks.run(Duration::millis(500));
  ranks.start(2, Ranks::with(bounded(next), late[2]));
  ranks.run(Duration::millis(10));
  CHECK(ranks.group(2).keeps_residual());
  CHECK(all_are(late[0], 3.0F));
  Leaver leaver(ranks, 2);
  Values sum(kElements, 0.0F);
  float wanted = 4.0F;  // what it still has to give
  for (int steps = 0; steps < 5 && ranks.group(2).keeps_residual(); ++steps) {
    std::vector<Values> values = values_of(3);
    ++next;
    for (Rank rank = 0; rank < 2; ++rank) ranks.start(rank, Ranks::with(bounded(next), values[rank]));
    leaver.run(Duration::millis(20));  // it has not told anybody yet
    CHECK(same_bits(values[0], values[1]));
    for (std::size_t i = 0; i < kElements; ++i) sum[i] += values[0][i];
    wanted += 3.0F;
  }
  CHECK(leaver.calls() > 0);
  CHECK(!ranks.group(2).keeps_residual());
  for (Rank rank = 0; rank < 2; ++rank) {
    const KeptValues kept = ranks.group(rank).take_residual(kStream);
    Values values(kElements, 0.0F);
    if (!kept.values.empty()) std::memcpy(values.data(), kept.values.data(), kept.values.size());
    for (std::size_t i = 0; i < kElements; ++i) sum[i] += values[i];
  }
  CHECK(all_are(sum, wanted));
  leaver.announce();
  leaver.run(Duration::millis(50));
  CHECK(ranks.group(2).may_leave());
}

RUN_TESTS()
