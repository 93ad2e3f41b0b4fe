// What the simulated network did with the packets it was given.
#pragma once

#include <cstdint>

namespace optireduce::sim {

struct Counters {
  std::uint64_t events = 0;
  std::uint64_t sent = 0;            // packets handed to a host's port: one for each destination, or for all
  std::uint64_t sent_bytes = 0;      // with headers
  std::uint64_t delivered = 0;       // packets handed to a group, copies and hostile ones included
  std::uint64_t lost = 0;            // by chance
  std::uint64_t cut = 0;             // by a link cut
  std::uint64_t queue_dropped = 0;   // no room before a link or port
  std::uint64_t buffer_dropped = 0;  // no room in the receiver's buffer
  std::uint64_t crash_dropped = 0;   // the receiver had crashed
  std::uint64_t duplicated = 0;
  std::uint64_t reordered = 0;
  std::uint64_t hostile = 0;
  std::uint64_t foreign = 0;          // packets of others at the ports, as far as they were looked at
  std::uint64_t foreign_dropped = 0;  // of these, no room in a port's queue
};

}  // namespace optireduce::sim
