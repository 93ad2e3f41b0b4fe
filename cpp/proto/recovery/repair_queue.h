// What is to be sent again. Whoever asks twice for the same packets gets them once: requests may come faster
// than a window lets their answers go.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <tuple>

#include "stage/outgoing.h"

namespace optireduce {

class RepairQueue {
 public:
  using Iterator = std::list<Repair>::iterator;

  /// At the end, or together with what waits already of the same chunk for the same peer.
  void add(const Repair& repair) {
    const auto [known, is_new] = index_.try_emplace(key_of(repair));
    if (is_new) {
      known->second = repairs_.insert(repairs_.end(), repair);
    } else {
      known->second->packets |= repair.packets;
    }
  }

  Iterator erase(Iterator repair) {
    index_.erase(key_of(*repair));
    return repairs_.erase(repair);
  }

  void clear() {
    index_.clear();
    repairs_.clear();
  }

  Iterator begin() { return repairs_.begin(); }
  Iterator end() { return repairs_.end(); }
  std::size_t size() const { return repairs_.size(); }

 private:
  using Key = std::tuple<PacketType, std::uint64_t, Scope, Rank, Rank, std::uint32_t>;
  static Key key_of(const Repair& repair) {
    return {repair.type, repair.operation, repair.scope, repair.to, repair.shard, repair.chunk};
  }

  std::list<Repair> repairs_;
  std::map<Key, Iterator> index_;
};

}  // namespace optireduce
