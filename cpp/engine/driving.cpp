// The part of Engine that drives its group: who reads the sockets, when it sleeps, and what follows from it.
#include <sched.h>

#include <algorithm>
#include <array>

#include "engine/engine.h"
#include "wire/packet.h"

namespace optireduce {
namespace {

/// After a waiter has stopped driving another usually follows at once (the next operation): the engine's own
/// thread gives it this long before it takes over, because changing threads costs more than the operation.
constexpr std::chrono::milliseconds kHandover{2};
/// Ranks that share a core with us keep it for tens of microseconds, other programs for milliseconds.
constexpr Duration kLongYield = Duration::micros(1000);
/// How often packets may go before timers: a few milliseconds' worth.
constexpr std::uint64_t kRoundsWithoutTimers = 64;
constexpr Duration kCoreBusyFor = Duration::millis(20);
constexpr std::size_t kReceiveBatchBytes = 32 * 1024;

}  // namespace

/// Drives until `done`, unless another waiter already does: then sleeps until that one is through.
void Engine::wait_as_driver(Lock& lock, Time limit, const Done& done) {
  while (!done() && !stopping_ && clock_.now() < limit) {
    if (driver_ == Driver::Waiter) {
      ++sleeping_waiters_;
      const std::int64_t left = limit == Time::never() ? 1'000'000'000 : (limit - clock_.now()).ns;
      conditions_->waiters.wait_for(lock, std::chrono::nanoseconds(left));
      --sleeping_waiters_;
      continue;
    }
    // The engine's own thread may be asleep in the kernel: tell it that it is not needed.
    if (driver_ == Driver::Background) links_.wake();
    driver_ = Driver::Waiter;
    drive(lock, Driver::Waiter, limit, done);
    driver_ = Driver::Nobody;
    ++waiter_turns_;
    if (sleeping_waiters_ > 0) conditions_->waiters.notify_all();
    wake_background();
  }
}

void Engine::drive_until(Lock& lock, Time limit) {
  wait_as_driver(lock, limit, [] { return false; });
}

void Engine::run_background() {
  Lock lock(mutex_);
  std::uint64_t turns_seen = 0;
  while (!stopping_) {
    const bool others_drive = driver_ != Driver::Nobody || turns_seen != waiter_turns_;
    turns_seen = waiter_turns_;
    if (others_drive) {
      conditions_->background.wait_for(lock, kHandover);
      continue;
    }
    driver_ = Driver::Background;
    drive(lock, Driver::Background, Time::never(), [] { return false; });
    if (driver_ == Driver::Background) driver_ = Driver::Nobody;
  }
}

/// Handles packets and timers while `role` is still the driver. Looks for packets for a while before it
/// sleeps.
void Engine::drive(Lock& lock, Driver role, Time limit, const Done& done) {
  clock_.awake();
  Time idle_since = clock_.now();
  while (!done() && !stopping_ && driver_ == role) {
    if (lock_wanted_.load(std::memory_order_relaxed) > 0) {
      lock.unlock();
      sched_yield();
      lock.lock();
      continue;
    }
    const bool worked = work_once();
    const Time now = clock_.now();
    if (worked) idle_since = now;
    if (now >= limit) return;
    if (worked || done()) continue;  // done: by a timer, and no other timer may be left to end a sleep
    const bool nothing_expected = role == Driver::Background && group_->idle();
    if (nothing_expected || now - idle_since > options_.spin || now < core_busy_until_) {
      sleep(lock, role, limit);
    } else {
      yield_core(now);
    }
  }
}

/// Lets others run, and notices when they keep the core: the scheduler charges a yield a whole time slice, so
/// that against other work waiting by yielding is much slower than sleeping.
void Engine::yield_core(Time now) {
  sched_yield();
  const Duration skipped = clock_.skipped();
  const Time back = clock_.now();
  if (back - now + clock_.skipped() - skipped > kLongYield) core_busy_until_ = back + kCoreBusyFor;
}

/// A process that stood still has not heard what the others said meanwhile: they are not silent.
void Engine::tell_standstill() {
  constexpr Duration kNoticeable = Duration::millis(10);
  if (clock_.skipped() - told_skipped_ < kNoticeable) return;
  told_skipped_ = clock_.skipped();
  group_->stood_still(clock_.now());
}

/// One look at all sockets and timers. False if there was nothing to do.
bool Engine::work_once() {
  std::array<Links::Event, Links::kMaxEvents> events;
  const std::size_t count = links_.wait(Duration{0}, events);
  handle_events(std::span(events.data(), count));
  // Timers come after packets, because what lies in a socket has not been lost; but not for ever.
  const Time now = clock_.now();
  tell_standstill();
  busy_rounds_ = count == 0 ? 0 : busy_rounds_ + 1;
  const bool look_at_timers = count == 0 || busy_rounds_ % kRoundsWithoutTimers == 0;
  if (look_at_timers && group_->poll_timeout() <= now) {
    group_->handle_timeout(now);
    transmit_all(now);
    collect_completions();
  }
  return count > 0;
}

void Engine::sleep(Lock& lock, Driver role, Time limit) {
  const Time until = std::min(limit, group_->poll_timeout());
  const Time now = clock_.now();
  const Duration timeout = until == Time::never() ? Duration{-1} : std::max(Duration{0}, until - now);
  std::array<Links::Event, Links::kMaxEvents> events;
  clock_.sleep_until(until);
  if (role == Driver::Background) background_sleeps_until_ = until;
  lock.unlock();
  const std::size_t count = links_.wait(timeout, events);
  lock.lock();
  if (role == Driver::Background) background_sleeps_until_ = std::nullopt;
  if (driver_ == role) clock_.awake();
  handle_events(std::span(events.data(), count));
  // A waiter that has gone to sleep meanwhile knows nothing of what these packets ended.
  if (role == Driver::Background && driver_ == Driver::Waiter && count > 0) links_.wake();
}

/// The engine's own thread knows only the timers that there were when it went to sleep. Where nobody else
/// drives, it must not sleep past new ones.
void Engine::wake_background() {
  if (driver_ != Driver::Waiter && background_sleeps_until_ &&
      group_->poll_timeout() < *background_sleeps_until_)
    links_.wake();
}

void Engine::handle_events(std::span<const Links::Event> events) {
  for (const Links::Event& event : events) {
    if (event.writable) links_.flush(event);
    receive_batch(event);
    // Send on what has just been reduced while it is in the cache.
    transmit_all(clock_.now());
    collect_completions();
  }
}

/// Takes about a chunk from one peer. Where packets arrive one by one, answering each at once would cost a
/// system call for each packet and peer.
void Engine::receive_batch(const Links::Event& socket) {
  const Time now = clock_.now();
  std::size_t bytes = 0;
  do {
    datagrams_.clear();
    links_.receive(socket, datagrams_);
    for (Datagram& datagram : datagrams_) {
      bytes += datagram.bytes + kHeaderBytes;  // empty ones take time too, and could go on for ever
      group_->handle_datagram(now, std::move(datagram));
    }
  } while (!datagrams_.empty() && bytes < kReceiveBatchBytes);
  datagrams_.clear();
}

void Engine::transmit_all(Time now) {
  while (group_->poll_transmit(now, transmit_)) links_.send(transmit_);
}

void Engine::collect_completions() {
  bool any = false;
  while (std::optional<Report> report = group_->poll_completion()) {
    results_.add(std::move(*report), clock_.skipped());
    any = true;
  }
  while (std::optional<MembershipEvent> event = group_->poll_event()) results_.add(*event);
  if (any && sleeping_waiters_ > 0) conditions_->waiters.notify_all();
}

}  // namespace optireduce
