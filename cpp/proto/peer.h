// What this rank knows about one other rank.
#pragma once

#include <cstdint>

#include "proto/rtt.h"
#include "proto/time.h"
#include "proto/window.h"

namespace optireduce {

/// Timestamps are microseconds.
constexpr std::uint32_t as_timestamp(Time now) {
  return static_cast<std::uint32_t>(now.ns / 1000);
}

/// Timestamps wrap around after 71 minutes: compare them by their distance.
constexpr bool not_before(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) >= 0;
}

/// The full operation number whose low 32 bits are `low`, nearest to `near`.
constexpr std::uint64_t widen(std::uint32_t low, std::uint64_t near) {
  const auto distance = static_cast<std::int32_t>(low - static_cast<std::uint32_t>(near));
  const auto wide = static_cast<std::int64_t>(near) + distance;
  return wide < 0 ? low : static_cast<std::uint64_t>(wide);
}

struct Peer {
  bool heard = false;           // at least one authentic packet
  bool left = false;            // said goodbye
  Time last_heard;              // meaningful once heard
  std::uint32_t newest = 0;     // the latest timestamp seen from it
  std::uint64_t completed = 0;  // it has finished all operations below
  std::uint64_t told = 0;       // the last `completed` of ours that was sent to it
  SendWindow window;
  RttEstimator rtt;
};

}  // namespace optireduce
