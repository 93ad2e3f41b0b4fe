// Packets in: checks them, and hands each to the part that it is for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "group/calls.h"
#include "group/liveness.h"
#include "wire/received_run.h"

namespace optireduce {

/// What a socket delivered: one packet, or several of equal length (the last may be shorter) in one buffer
/// (GRO).
struct Datagram {
  Rank from = 0;
  BufferRef buffer;
  std::uint32_t bytes = 0;  // where the last packet ends in the buffer
  std::uint32_t segment_bytes = 0;
  std::uint32_t begin = 0;  // where the first one begins
  bool group = false;       // came by multicast

  /// From one packet to the next.
  std::uint32_t stride() const { return std::max<std::uint32_t>(1, std::min(segment_bytes, bytes)); }
};

class Receiver {
 public:
  Receiver(Core& core, Members& members, Liveness& liveness, BestEffort& best_effort, Requests& requests,
           Calls& calls)
      : core_(core),
        members_(members),
        liveness_(liveness),
        best_effort_(best_effort),
        requests_(requests),
        calls_(calls) {}

  void handle(Time now, const Datagram& datagram);

 private:
  std::optional<ReceivedRun> next_run(const Datagram& datagram, std::uint32_t& at);
  void handle_run(Time now, const ReceivedRun& run);
  void handle_data(Time now, const ReceivedRun& run);
  Operation* operation_for(Time now, const ReceivedRun& run);
  bool may_exist(const ReceivedRun& run) const;
  bool matches(Time now, const Operation& operation, const ReceivedRun& run);
  bool has_room(const Operation& operation, const ReceivedRun& run) const;
  void deliver(Time now, Operation& operation, const ReceivedRun& run);
  std::uint32_t deliver_contribution(Time now, Operation& operation, const ReceivedRun& run);
  std::uint32_t deliver_decision(Time now, Operation& operation, const ReceivedRun& run);
  void handle_reject(Time now, const ReceivedRun& run);
  void handle_goodbye(Time now, Rank peer);
  void handle_abstention(Time now, const ReceivedRun& run);

  Core& core_;
  Members& members_;
  Liveness& liveness_;
  BestEffort& best_effort_;
  Requests& requests_;
  Calls& calls_;
  std::vector<bool> genuine_;  // scratch: packets of the datagram whose seals are right
};

}  // namespace optireduce
