#include "engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "wire/packet.h"

namespace optireduce {
namespace {

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
      links_(rank, size, bind_address, options, pool_) {}

Engine::~Engine() {
  close(Duration{0});
  if (getpid() != owner_) turns_.abandon();
}

Time Engine::limit_of(Duration timeout) {
  return timeout.ns < 0 ? Time::never() : clock_.now() + timeout;
}

void Engine::require_begun() const {
  if (!group_) throw std::logic_error("the engine is not connected: call open and begin first");
}

void Engine::require_open() const {
  require_begun();
  if (turns_.stopping()) throw std::logic_error("the engine is closed");
}

std::size_t Engine::open(const std::vector<std::string>& addresses, const std::vector<std::uint16_t>& ports) {
  return links_.connect(addresses, ports);
}

std::vector<Rank> Engine::begin(std::size_t mtu, const std::vector<std::size_t>& grants, Duration timeout) {
  Lock lock = turns_.lock_now();
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

void Engine::redirect(Rank peer, const std::string& address, std::uint16_t port) {
  Lock lock = turns_.lock_now();
  links_.redirect(peer, address, port);
}

std::uint64_t Engine::start(const Call& call) {
  Lock lock = turns_.lock_now();
  require_open();
  tell_standstill();
  const Time now = clock_.now();
  const Time due_before = group_->poll_timeout();
  const std::uint64_t number = group_->start(now, call);
  results_.begin(number, clock_.skipped());
  transmit_all(now);
  collect_completions();
  wake_driver(due_before);
  return number;
}

Position Engine::position() {
  Lock lock = turns_.lock_now();
  require_open();
  return group_->position();
}

void Engine::restore(const Position& position, std::uint64_t step) {
  Lock lock = turns_.lock_now();
  require_open();
  tell_standstill();
  const Time now = clock_.now();
  const Time due_before = group_->poll_timeout();
  group_->restore(now, position, step);
  results_.forget_from(position.completed);
  transmit_all(now);
  collect_completions();
  wake_driver(due_before);
}

bool Engine::is_left_behind() {
  Lock lock = turns_.lock_now();
  return group_ && group_->left_behind();
}

std::vector<CheckedStep> Engine::check(std::uint64_t step, std::uint64_t hash) {
  Lock lock = turns_.lock_now();
  require_open();
  return group_->check(step, hash);
}

std::optional<std::uint64_t> Engine::behind() {
  Lock lock = turns_.lock_now();
  return group_ ? group_->behind() : std::nullopt;
}

bool Engine::give_up_replay() {
  Lock lock = turns_.lock_now();
  require_open();
  const Time now = clock_.now();
  const Time due_before = group_->poll_timeout();
  const bool left_behind = group_->give_up_replay(now);
  transmit_all(now);
  collect_completions();
  wake_driver(due_before);
  return left_behind;
}

void Engine::release() {
  Lock lock = turns_.lock_now();
  if (group_) group_->release(clock_.now());
}

KeptValues Engine::take_residual(std::uint32_t stream) {
  Lock lock = turns_.lock_now();
  require_begun();
  return group_->take_residual(stream);
}

std::optional<Report> Engine::wait(std::uint64_t operation, Duration limit) {
  Lock lock = turns_.lock_now();
  require_begun();
  const Time began = clock_.now();
  wait_as_driver(lock, limit_of(limit), [&] { return results_.has(operation); });
  wait_seconds_ += (clock_.now() - began).seconds();
  return results_.take(operation);
}

void Engine::watch_outside(Duration limit) {
  Lock lock = turns_.lock_now();
  require_begun();
  tell_standstill();
  group_->watch_outside(clock_.now(), limit);
  wake_background();
}

Gone Engine::gone() {
  Lock lock = turns_.lock_now();
  require_begun();
  return group_->gone();
}

std::vector<MembershipEvent> Engine::take_events() {
  Lock lock = turns_.lock_now();
  return results_.take_events();
}

EngineStats Engine::stats() {
  Lock lock = turns_.lock_now();
  return {group_ ? group_->stats() : Stats{},
          group_ ? group_->policy(kPolicyBytes) : PolicySnapshot{},
          links_.drops(),
          links_.send_failures(),
          pool_.bytes_in_use(),
          group_ && group_->multicasts(),
          wait_seconds_,
          clock_.skipped().seconds()};
}

void Engine::prepare_to_leave() {
  Lock lock = turns_.lock_now();
  require_open();
  leaving_ = true;
  group_->prepare_to_leave(clock_.now(), true);
  transmit_all(clock_.now());
  collect_completions();
}

bool Engine::may_leave() {
  Lock lock = turns_.lock_now();
  return group_ && leaving_ && group_->may_leave();
}

bool Engine::keeps_residual() {
  Lock lock = turns_.lock_now();
  return group_ && group_->keeps_residual();
}

std::optional<Uncalled> Engine::next_uncalled(Duration limit) {
  Lock lock = turns_.lock_now();
  require_open();
  serve_until(lock, limit_of(limit),
              [this] { return group_->uncalled().has_value() || (leaving_ && group_->may_leave()); });
  return group_->uncalled();
}

/// Peers that may still need us are asked now and then what they have.
void Engine::serve_until(Lock& lock, Time limit, const Done& done) {
  while (!done() && !turns_.stopping() && clock_.now() < limit) {
    group_->ping_unfinished_peers();
    transmit_all(clock_.now());
    wait_as_driver(lock, std::min(limit, clock_.now() + kPingInterval), done);
  }
}

void Engine::close(Duration linger) {
  if (getpid() != owner_) {
    // A forked child has copies of the sockets but not the thread: what it would send is the parent's to say.
    if (thread_.joinable()) thread_.detach();
    return;
  }
  {
    Lock lock = turns_.lock_now();
    if (group_ && !turns_.stopping()) {
      group_->prepare_to_leave(clock_.now());
      serve_until(lock, limit_of(linger), [this] { return group_->may_leave(); });
      group_->say_goodbye(clock_.now());
      transmit_all(clock_.now());
      collect_completions();
    }
    turns_.stop();
    links_.stop();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace optireduce
