// Well-mixed numbers from a seed, the same on every machine.
#pragma once

#include <cstdint>

namespace optireduce {

/// The next number (Steele, Lea, Flood 2014), one word of state, passes BigCrush.
inline std::uint64_t splitmix64(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9e37'79b9'7f4a'7c15u);
  z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9u;
  z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11ebu;
  return z ^ (z >> 31);
}

}  // namespace optireduce
