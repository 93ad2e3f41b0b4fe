#include "engine/engine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <stdexcept>

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
constexpr std::size_t kMaxReports = 4096;
/// Several threads may wait for the same operation.
constexpr std::size_t kMaxTaken = 64;
constexpr std::size_t kMaxEvents = 4096;
/// The bucket size for which stats() tells the time limits.
constexpr std::size_t kPolicyBytes = 1024 * 1024;
constexpr Duration kPingInterval = Duration::millis(20);

}  // namespace

Engine::Engine(Rank rank, Rank size, const std::string& bind_address, const Seal& seal,
               const EngineOptions& options)
    : rank_(rank),
      size_(size),
      seal_(seal),
      options_(options),
      owner_(getpid()),
      conditions_(std::make_unique<Conditions>()),
      links_(rank, size, bind_address, options, pool_) {}

Engine::~Engine() {
  close(Duration{0});
  // Destroying a condition waits for its waiters, and in a forked child those do not exist.
  if (getpid() != owner_) static_cast<void>(conditions_.release());
}

Engine::Lock Engine::lock_now() {
  lock_wanted_.fetch_add(1);
  Lock lock(mutex_);
  lock_wanted_.fetch_sub(1);
  return lock;
}

Time Engine::limit_of(Duration timeout) {
  return timeout.ns < 0 ? Time::never() : clock_.now() + timeout;
}

void Engine::require_begun() const {
  if (!group_) throw std::logic_error("the engine is not connected: call open and begin first");
}

std::size_t Engine::open(const std::vector<std::string>& addresses, const std::vector<std::uint16_t>& ports) {
  return links_.connect(addresses, ports);
}

std::vector<Rank> Engine::begin(std::size_t mtu, const std::vector<std::size_t>& grants, Duration timeout) {
  Lock lock = lock_now();
  GroupConfig config = options_.group;
  config.rank = rank_;
  config.size = size_;
  config.seal = seal_;
  config.grants = grants;
  config.path.payload_bytes = payload_for_mtu(mtu, links_.ipv6());
  if (config.path.payload_bytes == 0)
    throw std::invalid_argument("mtu " + std::to_string(mtu) + " leaves no room for a packet");
  group_ = std::make_unique<Group>(config, pool_);
  thread_ = std::thread([this] { run_background(); });

  std::vector<Rank> silent;
  const auto update_silent = [&] {
    silent.clear();
    for (Rank peer = 0; peer < size_; ++peer) {
      if (peer != rank_ && !group_->heard(peer)) silent.push_back(peer);
    }
    return silent.empty();
  };
  const Time limit = limit_of(timeout);
  while (!update_silent() && clock_.now() < limit) {
    group_->ping_silent_peers();
    transmit_all(clock_.now());
    wait_as_driver(lock, std::min(limit, clock_.now() + kPingInterval), update_silent);
  }
  return silent;
}

std::uint64_t Engine::start(const Call& call) {
  Lock lock = lock_now();
  require_begun();
  if (stopping_) throw std::logic_error("the engine is closed");
  const Time now = clock_.now();
  const Time due_before = group_->poll_timeout();
  const std::uint64_t number = group_->start(now, call);
  skipped_before_.emplace(number, clock_.skipped());
  transmit_all(now);
  collect_completions();
  // A driver asleep in the kernel knows only the old deadline.
  if (driver_ != Driver::Nobody && group_->poll_timeout() < due_before) links_.wake();
  return number;
}

void Engine::release() {
  Lock lock = lock_now();
  if (group_) group_->release(clock_.now());
}

KeptValues Engine::take_residual(std::uint32_t stream) {
  Lock lock = lock_now();
  require_begun();
  return group_->take_residual(stream);
}

std::optional<Report> Engine::wait(std::uint64_t operation, Duration limit) {
  Lock lock = lock_now();
  require_begun();
  const Time began = clock_.now();
  const auto found = [&] { return reports_.contains(operation); };
  wait_as_driver(lock, limit_of(limit), found);
  wait_seconds_ += (clock_.now() - began).seconds();
  const auto found_report = reports_.find(operation);
  if (found_report == reports_.end()) return std::nullopt;
  Report report = found_report->second;
  note_taken(operation);
  return report;
}

void Engine::note_taken(std::uint64_t operation) {
  taken_.push_back(operation);
  if (taken_.size() <= kMaxTaken) return;
  reports_.erase(taken_.front());
  taken_.pop_front();
}

std::vector<MembershipEvent> Engine::take_events() {
  Lock lock = lock_now();
  std::vector<MembershipEvent> events(events_.begin(), events_.end());
  events_.clear();
  return events;
}

EngineStats Engine::stats() {
  Lock lock = lock_now();
  return {group_ ? group_->stats() : Stats{},
          group_ ? group_->policy(kPolicyBytes) : PolicySnapshot{},
          links_.drops(),
          links_.send_failures(),
          pool_.bytes_in_use(),
          group_ && group_->multicasts(),
          wait_seconds_,
          clock_.skipped().seconds()};
}

void Engine::close(Duration linger) {
  if (getpid() != owner_) {
    // A forked child has copies of the sockets but not the thread: what it would send is the parent's to say.
    if (thread_.joinable()) thread_.detach();
    return;
  }
  {
    Lock lock = lock_now();
    if (group_ && !stopping_) {
      const auto may_leave = [this] { return group_->may_leave(); };
      const Time limit = limit_of(linger);
      group_->prepare_to_leave(clock_.now());
      while (!may_leave() && clock_.now() < limit) {
        group_->ping_unfinished_peers();
        transmit_all(clock_.now());
        wait_as_driver(lock, std::min(limit, clock_.now() + kPingInterval), may_leave);
      }
      group_->say_goodbye(clock_.now());
      transmit_all(clock_.now());
      collect_completions();
    }
    stopping_ = true;
    links_.stop();
    conditions_->waiters.notify_all();
    conditions_->background.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

// ------------------------------------------------------------------------------------------------------
// driving

/// Drives until `done`, unless another waiter already does: then sleeps until that one is through.
template <typename Done>
void Engine::wait_as_driver(Lock& lock, Time limit, Done done) {
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
template <typename Done>
void Engine::drive(Lock& lock, Driver role, Time limit, Done done) {
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
  lock.unlock();
  const std::size_t count = links_.wait(timeout, events);
  lock.lock();
  if (driver_ == role) clock_.awake();
  handle_events(std::span(events.data(), count));
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
    note_standstill(*report);
    reports_.insert_or_assign(report->operation, std::move(*report));
    any = true;
  }
  while (reports_.size() > kMaxReports) reports_.erase(reports_.begin());
  while (std::optional<MembershipEvent> event = group_->poll_event()) events_.push_back(*event);
  while (events_.size() > kMaxEvents) events_.pop_front();
  if (any && sleeping_waiters_ > 0) conditions_->waiters.notify_all();
}

/// The user's time goes on while this process stands still.
void Engine::note_standstill(Report& report) {
  const auto before = skipped_before_.find(report.operation);
  if (before == skipped_before_.end()) return;
  report.stood_still = clock_.skipped() - before->second;
  report.elapsed = report.elapsed + report.stood_still;
  skipped_before_.erase(before);
}

}  // namespace optireduce
