// A shard that another rank reduces: our contribution goes out to its owner, the reduced shard comes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "proto/inbound_flow.h"
#include "proto/outgoing.h"
#include "proto/run.h"
#include "proto/wide.h"

namespace optireduce {

class ForeignShard {
 public:
  ForeignShard() = default;
  /// `returns`: whether the owner sends it back, reduced.
  ForeignShard(const Shard& shard, std::byte* data, const Wide& wide, Time now, bool returns);

  /// The next contribution, if the window admits it. Contributions leave in order.
  bool next_batch(const SendWindow& window, OutgoingBatch& batch);
  void stamp(const OutgoingBatch& batch, std::uint32_t timestamp);
  std::uint64_t to_repair(const RequestEntry& entry, const RequestContext& context) const;
  const std::byte* data() const { return data_; }

  /// The owner does not want our contribution any more.
  void stop_sending() { next_packet_ = shard_.packets(); }

  /// Puts reduced packets into the bucket. Our own contribution to them is not needed any more: the owner had
  /// it, or did without. Returns how many bytes were new. `stream` keeps them out of the cache.
  std::uint32_t accept(Time now, std::uint32_t first_packet, const Run& run, bool stream);

  /// What has not come will not come in time: it becomes zero.
  void zero_missing();

  /// When a packet's contribution was last sent; 0 if it was not.
  std::uint32_t sent_at(std::uint32_t packet) const { return sent_at_[packet]; }
  /// When anything was last sent; nothing if nothing was.
  std::optional<std::uint32_t> last_sent_at() const;

  bool complete() const { return flow_.complete(); }
  std::uint32_t sent_packets() const { return next_packet_; }
  bool all_sent() const { return next_packet_ == shard_.packets(); }
  const Shard& shard() const { return shard_; }
  InboundFlow& flow() { return flow_; }
  const InboundFlow& flow() const { return flow_; }

 private:
  bool answered(std::uint32_t packet) const {
    return (flow_.received(packet / shard_.chunk_packets) >> packet % shard_.chunk_packets & 1) != 0;
  }

  void narrow(const OutgoingBatch& batch);
  void put(std::uint32_t packet, const std::byte* payload, bool stream);
  Place place_of(std::uint32_t packet) const {
    return {shard_.begin + shard_.place_of(packet), shard_.length_of(packet)};
  }

  Shard shard_;
  std::byte* data_ = nullptr;
  Wide wide_;
  InboundFlow flow_;
  std::vector<std::uint32_t> sent_at_;  // by packet; 0: not sent
  std::uint32_t next_packet_ = 0;
  std::uint32_t last_sent_at_ = 0;
  bool sent_any_ = false;
};

}  // namespace optireduce
