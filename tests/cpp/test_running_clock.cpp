// The clock that leaves out what the process could not see.
#include "check.h"
#include "engine/running_clock.h"

using namespace optireduce;

namespace {

Time machine;  // what the machine's clock says

Time read_machine() {
  return machine;
}

constexpr Duration kSecond = Duration::millis(1000);

void pass(Duration time) {
  machine = machine + time;
}

}  // namespace

TEST(follows_the_machine_while_it_is_read) {
  machine = {5};
  RunningClock clock(read_machine);
  pass(kSecond * 100);  // nothing has begun yet
  clock.awake();
  for (int read = 0; read < 10; ++read) {
    CHECK(clock.now() == machine);
    pass(RunningClock::kStandstill);
  }
  CHECK(clock.now() == machine);
  CHECK(clock.skipped() == Duration{});
}

TEST(sleeping_as_long_as_meant_is_no_standstill) {
  RunningClock clock(read_machine);
  clock.awake();
  clock.sleep_until(clock.now() + kSecond);
  pass(kSecond + RunningClock::kStandstill);
  clock.awake();
  CHECK(clock.now() == machine);
  clock.sleep_until(Time::never());
  pass(kSecond * 1000);
  CHECK(clock.now() == machine);
}

TEST(goes_on_where_the_process_should_have_woken) {
  RunningClock clock(read_machine);
  clock.awake();
  const Time due = clock.now() + Duration::millis(1);
  clock.sleep_until(due);
  pass(kSecond * 3);
  CHECK(clock.now() == due);  // whoever reads it first
  clock.awake();
  CHECK(clock.now() == due);
  CHECK(clock.skipped() == kSecond * 3 - Duration::millis(1));
  pass(Duration::millis(2));
  CHECK(clock.now() == due + Duration::millis(2));
}

TEST(a_pause_in_the_midst_of_work_is_a_standstill) {
  RunningClock clock(read_machine);
  clock.awake();
  const Time before = clock.now();
  pass(kSecond);
  CHECK(clock.now() == before);
}

RUN_TESTS()
