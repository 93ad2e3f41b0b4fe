// Bytes on their way to one peer, by the timestamp they were sent with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/timestamp.h"

namespace optireduce {

class ByteLedger {
 public:
  void add(std::uint32_t timestamp, std::size_t bytes) {
    entries_.push_back({timestamp, bytes});
    outstanding_ += bytes;
  }

  /// Whatever was sent no later than this has arrived or is lost: networks keep order nearly always.
  void settle(std::uint32_t timestamp) {
    while (first_ < entries_.size() && not_before(timestamp, entries_[first_].timestamp)) {
      outstanding_ -= entries_[first_].bytes;
      ++first_;
    }
    if (first_ == entries_.size()) return clear();
    if (first_ >= kCompactAt) {
      entries_.erase(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;
    }
  }

  void clear() {
    entries_.clear();
    first_ = 0;
    outstanding_ = 0;
  }

  std::size_t outstanding() const { return outstanding_; }

 private:
  static constexpr std::size_t kCompactAt = 64;
  struct Entry {
    std::uint32_t timestamp;
    std::size_t bytes;
  };

  std::vector<Entry> entries_;  // oldest first
  std::size_t first_ = 0;       // those before are settled
  std::size_t outstanding_ = 0;
};

}  // namespace optireduce
