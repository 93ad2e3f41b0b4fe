// The group under test with all it touches: buffers with guards around them, what it sends, what it ends.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "group/group.h"
#include "input.h"
#include "seal.h"

namespace fuzz {

using namespace optireduce;

/// A bucket between two guards. On the heap with exactly that size, so that the sanitizer guards it too.
class GuardedBucket {
 public:
  explicit GuardedBucket(std::size_t bytes) : memory_(bytes + 2 * kGuard, kMark), bytes_(bytes) {
    for (std::size_t i = 0; i < bytes; ++i) data()[i] = static_cast<std::byte>(i * 7 % 97);
  }
  std::byte* data() { return memory_.data() + kGuard; }
  std::span<const std::byte> content() const { return {memory_.data() + kGuard, bytes_}; }
  void check() const;

 private:
  static constexpr std::size_t kGuard = 256;
  static constexpr std::byte kMark{0xa5};
  std::vector<std::byte> memory_;
  std::size_t bytes_;
};

struct Started {
  Descriptor descriptor;
  std::uint32_t stream = 0;
  std::unique_ptr<GuardedBucket> bucket;
};

class Subject {
 public:
  explicit Subject(const GroupConfig& config) : config_(config) {}

  /// Its memory is the subject's own.
  void start(Time now, Call call);
  /// Packets in one buffer, as GRO delivers them.
  void receive(Time now, Rank from, std::span<const std::byte> bytes, std::uint32_t segment_bytes);
  void close(Time now);
  /// Runs timers that are due, sends all there is to send, takes what has ended; checks the limits.
  /// Returns all bytes that were sent, with their destinations.
  Bytes settle(Time now);
  void check_end() const;

  Group& group() { return group_; }
  const Group& group() const { return group_; }
  const std::vector<Started>& started() const { return started_; }
  bool closed() const { return closed_; }
  /// Everything that was started has its report.
  bool done() const { return ended_.size() == started_.size(); }
  /// The newest timestamp that it has sent.
  std::uint32_t timestamp() const { return timestamp_; }

 private:
  void send_all(Time now, Bytes& sent);
  void take_completions();
  void check_limits() const;

  GroupConfig config_;
  BufferPool pool_;
  Group group_{config_, pool_};
  std::vector<Started> started_;
  std::set<std::uint64_t> ended_;
  std::size_t started_bytes_ = 0;      // of all buckets
  std::size_t in_flight_packets_ = 0;  // that buckets in flight have
  std::uint32_t timestamp_ = 0;
  bool closed_ = false;
};

}  // namespace fuzz
