// Who drives the engine, and who sleeps meanwhile.
//
// A thread that waits for an operation reads the sockets itself (handing packets to another thread costs more
// than handling them). When nobody waits, the engine's own thread does, so that asynchronous operations
// proceed and peers that missed a packet get their answer. One mutex guards all state of the engine; whoever
// drives holds it except while it sleeps in the kernel.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/time.h"

namespace optireduce {

enum class Driver : std::uint8_t { Nobody, Background, Waiter };

class Turns {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// After a waiter has stopped driving another usually follows at once (the next operation): the engine's
  /// own thread gives it this long before it takes over, because changing threads costs more than the
  /// operation.
  static constexpr std::chrono::milliseconds kHandover{2};

  Lock lock() { return Lock(mutex_); }
  /// Takes the mutex ahead of a driver that would otherwise take it again and again.
  Lock lock_now() {
    lock_wanted_.fetch_add(1);
    Lock lock(mutex_);
    lock_wanted_.fetch_sub(1);
    return lock;
  }
  /// Lets threads in that want the mutex now. False: there are none.
  bool give_way(Lock& lock) {
    if (lock_wanted_.load(std::memory_order_relaxed) == 0) return false;
    lock.unlock();
    sched_yield();
    lock.lock();
    return true;
  }

  Driver driver() const { return driver_; }
  bool stopping() const { return stopping_; }
  /// Nobody drives from now on.
  void stop() {
    stopping_ = true;
    tell_waiters();
    conditions_->background.notify_all();
  }

  void begin_waiter() { driver_ = Driver::Waiter; }
  void end_waiter() {
    driver_ = Driver::Nobody;
    waiter_drove_ = true;
    tell_waiters();
  }
  /// While another waiter drives: sleeps until tell_waiters().
  void sleep_as_waiter(Lock& lock, Duration limit) {
    conditions_->waiters.wait_for(lock, std::chrono::nanoseconds(limit.ns));
  }
  /// An operation completed, or nobody drives any more.
  void tell_waiters() { conditions_->waiters.notify_all(); }

  /// For the engine's own thread. False, after a while: a waiter drives, or did since the last call.
  bool begin_background(Lock& lock) {
    const bool waiter_drove = std::exchange(waiter_drove_, false);
    if (waiter_drove || driver_ != Driver::Nobody) {
      conditions_->background.wait_for(lock, kHandover);
      return false;
    }
    driver_ = Driver::Background;
    return true;
  }
  /// A waiter may have taken the turn from it.
  void end_background() {
    if (driver_ == Driver::Background) driver_ = Driver::Nobody;
  }

  /// The engine's own thread goes to sleep in the kernel, or (nothing) is back. A waiter that took its
  /// wake-up leaves it there.
  void set_background_sleep(std::optional<Time> until) { background_sleeps_until_ = until; }
  /// The engine's own thread knows only the timers that there were when it went to sleep. Where nobody else
  /// drives, it must not sleep past new ones.
  std::optional<Time> background_sleeps_until() const {
    return driver_ == Driver::Waiter ? std::nullopt : background_sleeps_until_;
  }

  /// In a forked child: destroying a condition waits for its waiters, and those do not exist there.
  void abandon() { static_cast<void>(conditions_.release()); }

 private:
  struct Conditions {
    std::condition_variable waiters;
    std::condition_variable background;
  };

  std::mutex mutex_;
  std::atomic<int> lock_wanted_{0};
  std::unique_ptr<Conditions> conditions_ = std::make_unique<Conditions>();  // apart, to be abandoned
  Driver driver_ = Driver::Nobody;
  bool stopping_ = false;
  bool waiter_drove_ = false;  // since the engine's own thread last asked for its turn
  std::optional<Time> background_sleeps_until_;
};

}  // namespace optireduce
