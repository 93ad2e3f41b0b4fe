// Positive numbers in 16 bits on a logarithmic scale: 1e-13 to 1e6, each within 0.04 %. 0 means none.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace optireduce {

constexpr double kLogScaleLeast = 1e-13;
constexpr double kLogScaleSteps = 1024;  // for each doubling

inline std::uint16_t to_log_scale(double value) {
  if (!(value > 0)) return 0;
  const double steps = std::log2(value / kLogScaleLeast) * kLogScaleSteps;
  return static_cast<std::uint16_t>(std::clamp(std::lround(steps), 1L, 65'535L));
}

inline double from_log_scale(std::uint16_t code) {
  return code == 0 ? 0.0 : kLogScaleLeast * std::exp2(code / kLogScaleSteps);
}

}  // namespace optireduce
