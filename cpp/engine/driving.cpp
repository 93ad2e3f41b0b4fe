// The part of Engine that drives its group: who reads the sockets, when it sleeps, and what follows from it.
#include <sched.h>

#include <algorithm>
#include <array>

#include "engine/engine.h"
#include "wire/packet.h"

namespace optireduce {
namespace {

/// Ranks that share a core with us keep it for tens of microseconds, other programs for milliseconds.
constexpr Duration kLongYield = Duration::micros(1000);
/// How often packets may go before timers: a few milliseconds' worth.
constexpr std::uint64_t kRoundsWithoutTimers = 64;
constexpr Duration kCoreBusyFor = Duration::millis(20);
constexpr std::size_t kReceiveBatchBytes = 32 * 1024;

}  // namespace

/// Drives until `done`, unless another waiter already does: then sleeps until that one is through.
void Engine::wait_as_driver(Lock& lock, Time limit, const Done& done) {
  while (!done() && !turns_.stopping() && clock_.now() < limit) {
    if (turns_.driver() == Driver::Waiter) {
      turns_.sleep_as_waiter(lock, limit == Time::never() ? Duration::millis(1000) : limit - clock_.now());
      continue;
    }
    // The engine's own thread may be asleep in the kernel: tell it that it is not needed.
    if (turns_.driver() == Driver::Background) links_.wake();
    turns_.begin_waiter();
    drive(lock, Driver::Waiter, limit, done);
    turns_.end_waiter();
    wake_background();
  }
}

void Engine::run_background() {
  Lock lock = turns_.lock();
  while (!turns_.stopping()) {
    if (!turns_.begin_background(lock)) continue;
    drive(lock, Driver::Background, Time::never(), [] { return false; });
    turns_.end_background();
  }
}

/// Handles packets and timers while `role` is still the driver. Looks for packets for a while before it
/// sleeps.
void Engine::drive(Lock& lock, Driver role, Time limit, const Done& done) {
  clock_.awake();
  Time idle_since = clock_.now();
  while (!done() && !turns_.stopping() && turns_.driver() == role) {
    if (turns_.give_way(lock)) continue;
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

/// A process that stood still has not heard what the others said meanwhile: they are not silent. Said before
/// anything that came meanwhile is handled.
void Engine::tell_standstill() {
  constexpr Duration kNoticeable = Duration::millis(10);
  const Time now = clock_.now();
  const Duration skipped = clock_.skipped() - told_skipped_;
  if (skipped < kNoticeable) return;
  told_skipped_ = clock_.skipped();
  group_->stood_still(now, skipped);
  transmit_all(now);
}

/// One look at all sockets and timers. False if there was nothing to do.
bool Engine::work_once() {
  std::array<Links::Event, Links::kMaxEvents> events;
  const std::size_t count = links_.wait(Duration{0}, events);
  handle_events(std::span(events.data(), count));
  tell_standstill();
  // Timers come after packets, because what lies in a socket has not been lost; but not for ever.
  const Time now = clock_.now();
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
  if (role == Driver::Background) turns_.set_background_sleep(until);
  lock.unlock();
  const std::size_t count = links_.wait(timeout, events);
  lock.lock();
  if (role == Driver::Background) turns_.set_background_sleep(std::nullopt);
  if (turns_.driver() == role) clock_.awake();
  handle_events(std::span(events.data(), count));
  // A waiter that has gone to sleep meanwhile knows nothing of what these packets ended.
  if (role == Driver::Background && turns_.driver() == Driver::Waiter && count > 0) links_.wake();
}

/// After a command. A driver asleep in the kernel knows only the deadline that there was before.
void Engine::wake_driver(Time due_before) {
  if (turns_.driver() == Driver::Waiter && group_->poll_timeout() < due_before) links_.wake();
  wake_background();
}

void Engine::wake_background() {
  const std::optional<Time> until = turns_.background_sleeps_until();
  if (until && group_->poll_timeout() < *until) links_.wake();
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
  tell_standstill();
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
  if (any) turns_.tell_waiters();
}

}  // namespace optireduce
