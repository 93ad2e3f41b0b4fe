// The simulator's only source of chance. Written out, because the standard distributions differ between
// libraries and a seed must replay everywhere.
#pragma once

#include <cstdint>

#include "base/splitmix.h"
#include "base/time.h"

namespace optireduce::sim {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() { return splitmix64(state_); }

  /// In [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  /// In [0, bound); 0 if bound is 0. The bias of the remainder is below 2^-32 for the small bounds used here.
  std::uint64_t below(std::uint64_t bound) { return bound == 0 ? 0 : next() % bound; }

  bool chance(double probability) { return probability > 0 && uniform() < probability; }

  /// In [0, bound].
  Duration duration_up_to(Duration bound) {
    if (bound.ns <= 0) return {};
    return {static_cast<std::int64_t>(below(static_cast<std::uint64_t>(bound.ns) + 1))};
  }

 private:
  std::uint64_t state_;
};

}  // namespace optireduce::sim
