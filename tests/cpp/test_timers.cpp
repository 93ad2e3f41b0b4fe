// Named timers: which fires, when, and how often.
#include <vector>

#include "check.h"
#include "group/timers.h"

using namespace optireduce;

namespace {

constexpr TimerKey kShard{TimerKind::Shard, 7}, kRequest{TimerKind::Request, 7}, kFail{TimerKind::Fail, 7};
constexpr TimerKey kOther{TimerKind::Shard, 8}, kStatus{TimerKind::Status};

Time at(std::int64_t ns) {
  return {ns};
}

std::vector<TimerKey> due(Timers& timers, Time now) {
  std::vector<TimerKey> fired;
  while (const auto key = timers.take_due(now)) fired.push_back(*key);
  return fired;
}

}  // namespace

TEST(a_timer_fires_once_and_not_before_its_time) {
  Timers timers;
  timers.set(kShard, at(10));
  CHECK(timers.next() == at(10));
  CHECK(due(timers, at(9)).empty());
  CHECK(due(timers, at(10)) == std::vector<TimerKey>{kShard});
  CHECK(due(timers, at(100)).empty());
  CHECK(timers.next() == Time::never());
}

TEST(timers_fire_in_the_order_of_time_and_then_of_their_names) {
  Timers timers;
  timers.set(kStatus, at(5));
  timers.set(kRequest, at(5));
  timers.set(kOther, at(5));
  timers.set(kShard, at(5));
  timers.set(kFail, at(4));
  CHECK((due(timers, at(5)) == std::vector<TimerKey>{kFail, kShard, kOther, kRequest, kStatus}));
}

TEST(a_timer_that_was_moved_fires_at_its_new_time_only) {
  for (const std::int64_t moved : {5, 20}) {
    Timers timers;
    timers.set(kShard, at(10));
    timers.set(kShard, at(moved));
    CHECK(due(timers, at(moved - 1)).empty());
    CHECK(timers.next() == at(moved));  // also one that was moved to later, once its old time has passed
    CHECK(due(timers, at(moved)) == std::vector<TimerKey>{kShard});
    CHECK(due(timers, at(100)).empty());
  }
}

TEST(a_timer_that_was_moved_to_later_and_back_fires_once) {
  Timers timers;
  timers.set(kShard, at(10));
  timers.set(kShard, at(30));
  timers.set(kShard, at(20));
  timers.set(kShard, at(5));
  timers.set(kShard, at(10));
  CHECK(due(timers, at(9)).empty());
  CHECK(due(timers, at(50)) == std::vector<TimerKey>{kShard});
}

TEST(set_earlier_never_moves_a_timer_to_later) {
  Timers timers;
  timers.set_earlier(kShard, at(10));
  timers.set_earlier(kShard, at(20));
  CHECK(due(timers, at(10)) == std::vector<TimerKey>{kShard});
  timers.set(kShard, at(30));
  timers.set_earlier(kShard, at(15));
  CHECK(due(timers, at(15)) == std::vector<TimerKey>{kShard});
}

TEST(never_stops_a_timer) {
  Timers timers;
  timers.set(kShard, at(10));
  timers.set(kShard, Time::never());
  CHECK(due(timers, at(50)).empty());
}

TEST(all_timers_of_an_operation_stop_and_no_others) {
  Timers timers;
  for (const TimerKey& key : {kShard, kRequest, kFail, kOther, kStatus}) timers.set(key, at(10));
  timers.stop_all(7);
  CHECK((due(timers, at(50)) == std::vector<TimerKey>{kOther, kStatus}));
}

// Else a rank is woken for every operation at the timeout that it did not need, and remembers it until then.
TEST(nobody_is_woken_for_a_timer_that_was_stopped) {
  Timers timers;
  timers.set(kFail, at(60));
  timers.stop_all(7);
  CHECK(timers.next() == Time::never());
  timers.set(kFail, at(60));
  timers.set(kStatus, at(70));
  timers.stop(kFail);
  CHECK(timers.next() == at(70));
}

TEST(a_timer_may_be_set_again_after_it_was_stopped_or_has_fired) {
  Timers timers;
  timers.set(kShard, at(10));
  timers.stop(kShard);
  timers.set(kShard, at(20));
  CHECK(due(timers, at(10)).empty());
  CHECK(due(timers, at(20)) == std::vector<TimerKey>{kShard});
  timers.set(kShard, at(20));
  CHECK(due(timers, at(20)) == std::vector<TimerKey>{kShard});
}

RUN_TESTS()
