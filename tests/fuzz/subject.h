// The endpoint under test with all it touches: buffers with guards around them, what it sends, what it ends.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "input.h"
#include "proto/endpoint.h"
#include "proto/quorum_gate.h"
#include "seal.h"

namespace fuzz {

using namespace optireduce;

/// A bucket between two guards. On the heap with exactly that size, so that the sanitizer guards it too.
class Bucket {
 public:
  explicit Bucket(std::size_t bytes) : memory_(bytes + 2 * kGuard, kMark), bytes_(bytes) {
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
  std::unique_ptr<Bucket> bucket;
};

class Subject {
 public:
  explicit Subject(const EndpointConfig& config) : config_(config) {}

  void start(Time now, const Descriptor& descriptor, const StartOptions& options);
  /// Packets in one buffer, as GRO delivers them.
  void receive(Time now, Rank from, std::span<const std::byte> bytes, std::uint32_t segment_bytes);
  void close(Time now);
  /// Runs timers that are due, sends all there is to send, takes what has ended; checks the limits.
  /// Returns all bytes that were sent, with their destinations.
  Bytes settle(Time now);
  void check_end() const;

  Protocol& protocol() { return gate_; }
  const Protocol& protocol() const { return gate_; }
  const std::vector<Started>& started() const { return started_; }
  bool closed() const { return closed_; }
  /// The newest timestamp that it has sent.
  std::uint32_t timestamp() const { return timestamp_; }

 private:
  void send_all(Time now, Bytes& sent);
  void take_completions();
  void check_limits() const;

  EndpointConfig config_;
  BufferPool pool_;
  std::unique_ptr<Endpoint> owned_ = std::make_unique<Endpoint>(config_, pool_);
  const Endpoint* endpoint_ = owned_.get();  // the gate has it
  QuorumGate gate_{std::move(owned_), config_};
  std::vector<Started> started_;
  std::set<std::uint64_t> ended_;
  std::size_t exact_bytes_ = 0;        // of all buckets without a deadline
  std::size_t in_flight_packets_ = 0;  // that buckets in flight have
  std::uint32_t timestamp_ = 0;
  bool closed_ = false;
};

}  // namespace fuzz
