// What a group tells about other ranks.
#pragma once

#include <cstdint>

#include "base/rank.h"

namespace optireduce {

struct MembershipEvent {
  enum class Kind : std::uint8_t {
    Removed,     // is no member any more
    Returned,    // is a member again
    Unreached,   // by multicast, is sent to singly now
    LeftBehind,  // this rank itself was removed and cannot return
  };

  Kind kind = Kind::Removed;
  Rank rank = 0;
  std::uint64_t view = 0;       // in which this is so
  std::uint64_t operation = 0;  // from which on it is so

  bool operator==(const MembershipEvent&) const = default;
};

}  // namespace optireduce
