// Who somebody is in a group: 0 .. size - 1.
#pragma once

#include <cstdint>

namespace optireduce {

using Rank = std::uint16_t;

}  // namespace optireduce
