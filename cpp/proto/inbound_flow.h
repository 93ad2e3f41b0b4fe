// The receiver's view of one peer's packets for one shard: what has arrived, what is missing, when to ask for
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "proto/packet.h"
#include "proto/schedule.h"
#include "proto/time.h"

namespace optireduce {

class InboundFlow {
 public:
  InboundFlow() = default;
  InboundFlow(const Shard& shard, Time now);

  /// Marks packets as received; returns those that are new.
  std::uint64_t accept(Time now, std::uint32_t chunk, std::uint64_t packets);

  bool complete() const { return missing_packets_ == 0; }
  bool empty() const { return missing_packets_ == shard_.packets(); }
  std::uint64_t received(std::uint32_t chunk) const { return received_[chunk]; }
  /// Chunks from the start of the shard that have no hole.
  std::uint32_t whole_chunks() const { return first_hole_; }
  std::uint32_t missing_packets() const { return missing_packets_; }

  /// When to ask for missing packets. A gap below something that arrived is soon suspicious; silence only
  /// after `repair_timeout`, doubled for each request in vain.
  Time request_due(Duration repair_timeout, Duration reorder_delay) const;

  /// Lists what to ask for now (at most `limit` entries) and restarts the timer. After a silence longer than
  /// `repair_timeout` that includes all that lies beyond what was seen: the sender knows what it has sent.
  void take_missing(Time now, Duration repair_timeout, std::size_t limit, std::vector<RequestEntry>& out);

 private:
  bool has_fresh_gap() const { return fresh_gap_since_ != Time::never(); }
  bool has_gap() const { return first_hole_ < highest_chunk_ || gap_in_highest_; }
  void note_gap(Time now, std::uint32_t chunk);

  Shard shard_;
  std::vector<std::uint64_t> received_;  // by chunk
  std::uint32_t missing_packets_ = 0;
  std::uint32_t first_hole_ = 0;          // every chunk before is complete
  std::uint32_t highest_chunk_ = 0;       // the last chunk of which something arrived
  bool gap_in_highest_ = false;           // a hole below a received packet of that chunk
  std::uint32_t requested_chunks_ = 0;    // holes in chunks before this one were asked for
  Time fresh_gap_since_ = Time::never();  // a gap that was not asked for yet
  Time progress_at_;
  Time requested_at_;
  int requests_in_vain_ = 0;
};

}  // namespace optireduce
