// What an endpoint tells about other ranks.
#pragma once

#include <cstdint>

#include "proto/config.h"

namespace optireduce {

struct MembershipEvent {
  enum class Kind : std::uint8_t { Absent, Back, Unreached };  // Unreached: by multicast, now sent to singly

  Kind kind = Kind::Absent;
  Rank rank = 0;
  std::uint64_t operation = 0;  // the newest one here when it happened

  bool operator==(const MembershipEvent&) const = default;
};

}  // namespace optireduce
