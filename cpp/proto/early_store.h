// Packets of operations that this rank has not started yet. A rank that is late then finds its operations
// half done.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "proto/run.h"

namespace optireduce {

class EarlyStore {
 public:
  /// Every peer has its share of the memory: one that runs far ahead, or sends nonsense, cannot take the room
  /// of the others.
  EarlyStore(std::size_t limit_bytes, Rank size)
      : share_bytes_(limit_bytes / std::max<std::size_t>(size - 1u, 1)), bytes_(size, 0) {}

  /// False if there is no room: the packet is then as good as lost.
  bool keep(const Run& run, BufferPool& pool) {
    Run kept = compacted(run, pool);
    const std::size_t bytes = kept.buffer.capacity();
    std::size_t& used = bytes_[kept.header.sender];
    if (used + bytes > share_bytes_) return false;
    used += bytes;
    runs_[kept.operation].push_back(std::move(kept));
    return true;
  }

  std::vector<Run> take(std::uint64_t operation) {
    auto node = runs_.extract(operation);
    if (node.empty()) return {};
    for (const Run& run : node.mapped()) bytes_[run.header.sender] -= run.buffer.capacity();
    return std::move(node.mapped());
  }

  /// Whether that peer may send on.
  bool roomy(Rank peer) const { return bytes_[peer] < share_bytes_ / 2; }

 private:
  std::size_t share_bytes_;
  std::vector<std::size_t> bytes_;  // by rank
  std::map<std::uint64_t, std::vector<Run>> runs_;
};

}  // namespace optireduce
