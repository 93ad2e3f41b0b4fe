// Packets of operations that this rank has not started yet. A rank that is late then finds its operations
// half done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "proto/run.h"

namespace optireduce {

class EarlyStore {
 public:
  explicit EarlyStore(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// False if there is no room: the packet is then as good as lost.
  bool keep(const Run& run, BufferPool& pool) {
    Run kept = compacted(run, pool);
    const std::size_t bytes = kept.buffer.capacity();
    if (bytes_ + bytes > limit_bytes_) return false;
    bytes_ += bytes;
    runs_[kept.operation].push_back(std::move(kept));
    return true;
  }

  std::vector<Run> take(std::uint64_t operation) {
    auto node = runs_.extract(operation);
    if (node.empty()) return {};
    for (const Run& run : node.mapped()) bytes_ -= run.buffer.capacity();
    return std::move(node.mapped());
  }

  std::size_t bytes() const { return bytes_; }
  /// Whether peers may send on.
  bool roomy() const { return bytes_ < limit_bytes_ / 2; }

 private:
  std::size_t limit_bytes_;
  std::size_t bytes_ = 0;
  std::map<std::uint64_t, std::vector<Run>> runs_;
};

}  // namespace optireduce
