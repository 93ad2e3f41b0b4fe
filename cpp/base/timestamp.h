// Timestamps in packets: microseconds of the sender's clock, 32 bits.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace optireduce {

constexpr std::uint32_t as_timestamp(Time now) {
  return static_cast<std::uint32_t>(now.ns / 1000);
}

/// Timestamps wrap around after 71 minutes: compare them by their distance.
constexpr bool not_before(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) >= 0;
}

/// How long ago a timestamp of the same clock was, if it was in the last half hour.
constexpr Duration since(std::uint32_t timestamp, Time now) {
  return Duration::micros(static_cast<std::int32_t>(as_timestamp(now) - timestamp));
}

}  // namespace optireduce
