// Numbers from Python as the simulator's types, or std::invalid_argument that names the field.
#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

#include "base/time.h"
#include "group/config.h"

namespace optireduce {

inline Duration sim_seconds(const char* field, double value) {
  constexpr double kCentury = 3e9;  // more would not fit 64 bits of nanoseconds
  if (!(value >= 0)) {
    throw std::invalid_argument(std::string(field) + " is " + std::to_string(value) +
                                ", must be 0 or more seconds");
  }
  return Duration::from_seconds(value < kCentury ? value : kCentury);
}

inline Time sim_time(const char* field, double value) {
  return Time{} + sim_seconds(field, value);
}

inline Rank sim_rank(const char* field, std::int64_t value) {
  if (value < 0 || value > std::numeric_limits<Rank>::max()) {
    throw std::invalid_argument(std::string(field) + " is " + std::to_string(value) +
                                ", must be in 0 .. 65535");
  }
  return static_cast<Rank>(value);
}

}  // namespace optireduce
