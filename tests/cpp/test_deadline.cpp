// When an owner closes its shard, and what it learns of what is usual.
#include <cmath>
#include <vector>

#include "check.h"
#include "operation/deadline.h"
#include "operation/time_model.h"

using namespace optireduce;

namespace {

constexpr std::uint32_t kStream = 1;
constexpr std::size_t kBytes = 1 << 20;

Duration ms(std::int64_t value) {
  return Duration::millis(value);
}

/// Contributions of so many members that came whole: one at each of these times.
std::vector<Arrival> whole(const std::vector<std::int64_t>& milliseconds) {
  std::vector<Arrival> arrivals;
  for (const std::int64_t each : milliseconds) arrivals.push_back({Duration{}, ms(each), 0});
  return arrivals;
}

/// Steps of a second.
void learn(TimeModel& model, std::uint64_t step, const std::vector<Arrival>& arrivals) {
  model.learn(Time{} + ms(1000) * static_cast<std::int64_t>(step), kStream, step, kBytes, arrivals);
}

void learn(TimeModel& model, int steps, std::int64_t milliseconds, std::uint64_t first_step = 0) {
  for (int i = 0; i < steps; ++i)
    learn(model, first_step + static_cast<std::uint64_t>(i), whole({milliseconds, 1, 1, 0}));
}

bool about(Duration value, Duration wanted) {
  return std::abs(value.seconds() - wanted.seconds()) < wanted.seconds() * 0.01;
}

}  // namespace

// The table of deadline.h, as far as one shard has part in it.
TEST(the_deadline_of_a_shard) {
  struct Row {
    const char* what;
    std::int64_t now;  // ms after half of the members had begun
    bool half_begun;
    bool known;           // the deadline, of 100 ms
    std::uint8_t oldest;  // residual of a member that is missing
    bool hears_quorum;
    bool closes;
    std::int64_t asks_again;  // ms; -1: never
  };
  const Row rows[] = {
      {"exact, or not learned yet: never", 1'000'000, true, false, 0, true, false, -1},
      {"nobody has begun: never", 1'000'000, false, true, 0, true, false, -1},
      {"before the deadline: wait for it", 40, true, true, 0, true, false, 100},
      {"at the deadline: close", 100, true, true, 0, true, true, -1},
      {"long after it: close", 5'000, true, true, 0, true, true, -1},
      {"a residual of two steps does not keep it open", 100, true, true, 2, true, true, -1},
      {"one of three steps does", 100, true, true, 3, true, false, 125},
      {"for as long as it takes", 5'000, true, true, 200, true, false, 5'025},
      {"a rank that hears no quorum decides nothing", 100, true, true, 0, false, false, 125},
      {"not even later", 9'000, true, true, 0, false, false, 9'025},
  };
  const Time begun{5'000'000'000};
  for (const Row& row : rows) {
    const ShardState state{.half_begun_at = row.half_begun ? begun : Time::never(),
                           .deadline = row.known ? std::optional(ms(100)) : std::nullopt,
                           .oldest_missing = row.oldest,
                           .hears_quorum = row.hears_quorum};
    const Act act = decide(begun + ms(row.now), state);
    const Time asks = row.asks_again < 0 ? Time::never() : begun + ms(row.asks_again);
    if (act.close != row.closes || act.ask_again != asks) std::printf("row: %s\n", row.what);
    CHECK_EQ(act.close, row.closes);
    CHECK_EQ(act.ask_again.ns, asks.ns);
  }
}

TEST(a_short_deadline_is_not_asked_for_without_end) {
  const ShardState state{.half_begun_at = Time{}, .deadline = Duration{4}, .oldest_missing = 3};
  CHECK(decide(Time{100}, state).ask_again >= Time{100} + Duration::micros(100));
}

TEST(there_is_no_deadline_before_enough_operations_of_the_stream) {
  TimeModel model(0.05);
  learn(model, 7, 100);
  CHECK(!model.deadline(kStream));
  learn(model, 1, 100);
  CHECK(model.usual(kStream).has_value());
  CHECK(!model.deadline(kStream + 1));  // another stream has its own
}

TEST(usual_is_the_time_of_the_last_contribution_in_half_of_the_operations) {
  TimeModel model(0.05);
  learn(model, 20, 100);
  CHECK(about(*model.usual(kStream), ms(100)));
}

TEST(where_half_of_the_operations_are_disturbed_usual_stays_near_the_others) {
  TimeModel model(0.05);
  for (std::uint64_t step = 0; step < 60; ++step)
    learn(model, step, whole({step % 5 < 3 ? 1'000 : 100, 1, 1, 0}));
  CHECK(*model.usual(kStream) <= ms(113));
}

TEST(usual_follows_a_slower_network) {
  TimeModel model(0.05);
  learn(model, 60, 100);
  learn(model, 60, 300, 60);
  CHECK(about(*model.usual(kStream), ms(300)));
}

TEST(on_a_quiet_network_a_short_deadline_excludes_nobody) {
  TimeModel model(0.05);
  learn(model, 60, 100);
  CHECK_EQ(model.multiple(), 1.25);
  CHECK(about(*model.deadline(kStream), ms(125)));
}

TEST(where_waiting_costs_hardly_any_time_nobody_is_excluded) {
  // Small buckets of long steps: every tenth contribution needs 3 ms in place of 1 ms.
  TimeModel model(0.05);
  for (std::uint64_t step = 0; step < 120; ++step)
    learn(model, step, whole({step % 10 == 0 ? 3 : 1, 1, 1, 0}));
  CHECK(model.multiple() >= 3.0);
}

TEST(a_deadline_excludes_no_more_than_is_allowed) {
  // One contribution of four is ten times as late in every fifth step: five percent.
  const auto late_in = [](std::uint64_t one_in, double allowed) {
    TimeModel model(allowed);
    for (std::uint64_t step = 0; step < 120; ++step) {
      const bool late = step % one_in == 0;
      learn(model, step,
            {{late ? ms(990) : Duration{}, ms(late ? 1'000 : 100), 0},
             {Duration{}, ms(100), 0},
             {Duration{}, ms(100), 0},
             {Duration{}, Duration{}, 0}});
    }
    return model.multiple();
  };
  CHECK(late_in(10, 0.05) <= 2.0);  // 2.5 percent are late: they are left behind
  CHECK(late_in(3, 0.05) >= 8.0);   // 8 percent would be: they are waited for
  CHECK(late_in(3, 0.10) <= 2.0);   // unless so many may be
  CHECK(late_in(10, 0.0) >= 8.0);   // nobody may be excluded
}

TEST(a_share_that_was_missing_at_a_deadline_keeps_it_from_getting_shorter) {
  TimeModel model(0.05);
  learn(model, 8, 100);
  for (std::uint64_t step = 8; step < 80; ++step) {
    const Duration deadline = *model.deadline(kStream);
    // Half of one contribution never makes it, however long the deadline is.
    learn(model, step, {{Duration{}, deadline, 0.5}, {Duration{}, ms(100), 0}, {Duration{}, Duration{}, 0}});
  }
  CHECK(model.multiple() > 2.0);
}

TEST(what_happened_long_ago_does_not_count) {
  TimeModel model(0.05);
  for (std::uint64_t step = 0; step < 40; ++step)
    learn(model, step, {{ms(990), ms(1'000), 0}, {Duration{}, ms(100), 0}, {Duration{}, Duration{}, 0}});
  learn(model, 130, 100, 40);
  CHECK_EQ(model.multiple(), 1.25);
}

TEST(nobody_else_is_nothing_to_learn_from) {
  TimeModel model(0.05);
  for (std::uint64_t step = 0; step < 40; ++step) learn(model, step, std::vector<Arrival>{});
  CHECK(!model.usual(kStream));
}

RUN_TESTS()
