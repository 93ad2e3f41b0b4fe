// Who drives the engine and who sleeps, without an engine. Threads here wait for each other by the mutex and
// what it guards; one that is forgotten sleeps until the test's time limit.
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <thread>

#include "check.h"
#include "engine/turns.h"

using namespace optireduce;

namespace {

constexpr Duration kLong = Duration::millis(3'600'000);

/// A thread that sleeps as a waiter until `woken`; made when it sleeps.
struct Sleeper {
  Turns& turns;
  bool asleep = false;
  bool woken = false;
  std::thread thread;

  explicit Sleeper(Turns& its_turns) : turns(its_turns), thread([this] { sleep(); }) {
    for (bool seen = false; !seen; std::this_thread::yield()) {
      const Turns::Lock lock = turns.lock_now();
      seen = asleep;
    }
  }

  void sleep() {
    Turns::Lock lock = turns.lock();
    asleep = true;
    while (!woken) turns.sleep_as_waiter(lock, kLong);
  }

  /// `wake` is what must end its sleep.
  void expect_woken_by(const std::function<void()>& wake) {
    {
      const Turns::Lock lock = turns.lock_now();
      woken = true;
      wake();
    }
    thread.join();
  }
};

}  // namespace

TEST(the_engines_own_thread_drives_while_nobody_waits) {
  Turns turns;
  Turns::Lock lock = turns.lock();
  CHECK(turns.driver() == Driver::Nobody);
  CHECK(turns.begin_background(lock));
  CHECK(turns.driver() == Driver::Background);
  turns.end_background();
  CHECK(turns.driver() == Driver::Nobody);
}

TEST(a_waiter_takes_the_turn_and_the_engines_own_thread_does_not_end_it) {
  Turns turns;
  Turns::Lock lock = turns.lock();
  CHECK(turns.begin_background(lock));
  turns.begin_waiter();
  turns.end_background();
  CHECK(turns.driver() == Driver::Waiter);
  CHECK(!turns.begin_background(lock));
  CHECK(turns.driver() == Driver::Waiter);
}

TEST(after_a_waiter_the_engines_own_thread_lets_one_handover_pass) {
  Turns turns;
  Turns::Lock lock = turns.lock();
  turns.begin_waiter();
  turns.end_waiter();
  CHECK(!turns.begin_background(lock));
  CHECK(turns.begin_background(lock));
}

TEST(waiters_that_sleep_are_woken_by_news_by_the_end_of_a_turn_and_by_the_end_of_all) {
  Turns turns;
  turns.begin_waiter();
  Sleeper(turns).expect_woken_by([&] { turns.tell_waiters(); });
  Sleeper(turns).expect_woken_by([&] { turns.end_waiter(); });
  Sleeper(turns).expect_woken_by([&] { turns.stop(); });
  CHECK(turns.stopping());
}

TEST(only_without_a_waiter_that_drives_does_it_matter_how_long_the_engines_own_thread_sleeps) {
  Turns turns;
  Turns::Lock lock = turns.lock();
  CHECK(!turns.background_sleeps_until().has_value());
  CHECK(turns.begin_background(lock));
  turns.set_background_sleep(Time{7});
  CHECK(turns.background_sleeps_until() == Time{7});
  turns.begin_waiter();
  CHECK(!turns.background_sleeps_until().has_value());
  turns.end_waiter();
  CHECK(turns.background_sleeps_until() == Time{7});
  turns.set_background_sleep(std::nullopt);
  CHECK(!turns.background_sleeps_until().has_value());
}

TEST(a_driver_lets_threads_in_that_want_the_mutex) {
  Turns turns;
  Turns::Lock lock = turns.lock();
  CHECK(!turns.give_way(lock));
  bool entered = false;
  std::thread other([&] {
    const Turns::Lock its_lock = turns.lock_now();
    entered = true;
  });
  while (!entered) turns.give_way(lock);
  CHECK(lock.owns_lock());
  CHECK(!turns.give_way(lock));
  lock.unlock();
  other.join();
}

TEST(a_forked_child_does_not_wait_for_threads_that_it_does_not_have) {
  auto turns = std::make_unique<Turns>();
  Sleeper sleeper(*turns);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    turns->abandon();
    turns.reset();
    _exit(0);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  sleeper.expect_woken_by([&] { turns->tell_waiters(); });
}

RUN_TESTS()
