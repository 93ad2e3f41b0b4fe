// A shard that another rank reduces: our contribution goes out to its owner, the reduced shard comes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "proto/inbound_flow.h"
#include "proto/outgoing.h"
#include "proto/run.h"

namespace optireduce {

class ForeignShard {
 public:
  ForeignShard() = default;
  ForeignShard(const Shard& shard, std::byte* data, Time now);

  /// The next contribution, if the window admits it. Contributions leave in order.
  bool next_batch(const SendWindow& window, OutgoingBatch& batch);
  void stamp(std::uint32_t first_packet, std::uint32_t timestamp, bool resent);
  std::uint64_t to_repair(const RequestEntry& entry, const RequestContext& context) const;
  const std::byte* chunk_data(std::uint32_t chunk) const;

  /// Puts reduced packets into the bucket. Our own contribution to them is not needed any more: the owner had
  /// it. Returns how many bytes were new. `stream` keeps them out of the cache.
  std::uint32_t accept(Time now, std::uint32_t first_packet, const Run& run, bool stream);

  /// When the chunk's contribution was sent, if it was sent once only: a clean sample of the turnaround.
  std::optional<std::uint32_t> clean_sent_at(std::uint32_t chunk) const;

  bool complete() const { return flow_.complete(); }
  std::uint32_t sent_packets() const { return next_packet_; }
  bool all_sent() const { return next_packet_ == shard_.packets(); }
  /// Contributed bytes that have not come back reduced.
  std::size_t outstanding_bytes() const { return sent_bytes_ - received_bytes_; }
  const Shard& shard() const { return shard_; }
  InboundFlow& flow() { return flow_; }
  const InboundFlow& flow() const { return flow_; }

 private:
  struct Sent {
    std::uint32_t at = 0;
    bool again = false;
  };

  Shard shard_;
  std::byte* data_ = nullptr;
  InboundFlow flow_;
  std::vector<Sent> sent_;  // by chunk
  std::uint32_t next_packet_ = 0;
  std::size_t sent_bytes_ = 0;
  std::size_t received_bytes_ = 0;
};

}  // namespace optireduce
