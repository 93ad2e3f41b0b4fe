// Time as the protocol sees it: a number that the driver hands in. There is no now() here on purpose.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <limits>

namespace optireduce {

struct Duration {
  std::int64_t ns = 0;

  constexpr auto operator<=>(const Duration&) const = default;
  constexpr Duration operator+(Duration other) const { return {ns + other.ns}; }
  constexpr Duration operator-(Duration other) const { return {ns - other.ns}; }
  constexpr Duration operator*(std::int64_t factor) const { return {ns * factor}; }
  constexpr Duration operator/(std::int64_t divisor) const { return {ns / divisor}; }
  constexpr double seconds() const { return static_cast<double>(ns) / 1e9; }

  static constexpr Duration micros(std::int64_t us) { return {us * 1'000}; }
  static constexpr Duration millis(std::int64_t ms) { return {ms * 1'000'000}; }
  /// At most a century: what peers tell must not overflow, nor what is added to it.
  static constexpr Duration from_seconds(double s) {
    constexpr double kMost = 100.0 * 365 * 86'400;
    return {static_cast<std::int64_t>(std::clamp(s, -kMost, kMost) * 1e9)};
  }
};

struct Time {
  std::int64_t ns = 0;

  constexpr auto operator<=>(const Time&) const = default;
  constexpr Time operator+(Duration d) const { return {ns + d.ns}; }
  constexpr Time operator-(Duration d) const { return {ns - d.ns}; }
  constexpr Duration operator-(Time other) const { return {ns - other.ns}; }

  static constexpr Time never() { return {std::numeric_limits<std::int64_t>::max()}; }
};

}  // namespace optireduce
