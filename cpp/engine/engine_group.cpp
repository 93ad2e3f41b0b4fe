// The part of Engine that finds out whether multicast gets everywhere.
#include <algorithm>

#include "engine/engine.h"

namespace optireduce {
namespace {

/// Enough that a lossy path is not taken for none, even if the one who hears everybody at once leaves first.
constexpr int kLeastProbes = 10;
constexpr Duration kProbeInterval = Duration::millis(5);

}  // namespace

std::uint16_t Engine::open_group(const std::string& address, int ttl) {
  Lock lock = turns_.lock_now();
  return links_.open_group(address, ttl);
}

void Engine::join_group(const std::vector<std::string>& addresses, const std::vector<std::uint16_t>& ports) {
  Lock lock = turns_.lock_now();
  links_.join_group(addresses, ports);
}

std::vector<Rank> Engine::probe_group(Duration timeout) {
  Lock lock = turns_.lock_now();
  require_begun();
  std::vector<Rank> unheard;
  const auto heard_all = [&] {
    unheard.clear();
    for (Rank peer = 0; peer < size_; ++peer) {
      if (peer != rank_ && !group_->heard_in_group(peer)) unheard.push_back(peer);
    }
    return unheard.empty();
  };
  const Time limit = limit_of(timeout);
  for (int sent = 0; (!heard_all() || sent < kLeastProbes) && clock_.now() < limit; ++sent) {
    group_->probe_group();
    transmit_all(clock_.now());
    wait_as_driver(lock, std::min(limit, clock_.now() + kProbeInterval), [] { return false; });
  }
  heard_all();
  return unheard;
}

void Engine::use_group(bool use) {
  Lock lock = turns_.lock_now();
  require_begun();
  group_->set_multicast(use);
  if (!use) links_.leave_group();
}

}  // namespace optireduce
