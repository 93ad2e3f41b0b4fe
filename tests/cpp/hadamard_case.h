// The randomized Hadamard transform by its definition, in double precision, and values to try it with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/hadamard.h"
#include "kernels/reduce.h"

namespace hadamardcase {

using namespace optireduce;
using Doubles = std::vector<double>;
using Floats = std::vector<float>;
using Lost = std::vector<LostRange>;

/// Rounding errors of ten levels of additions in float32, relative to the norm of the block.
constexpr double kRounding = 1e-6;

/// The unit of the last place of a stored value, relative to the value.
inline double relative_unit(DType dtype) {
  return dtype == DType::Float32 ? 0x1p-23 : dtype == DType::BFloat16 ? 0x1p-7 : 0x1p-10;
}

/// Values of very different size, as gradients have; none too small for float16.
inline Floats random_values(std::size_t elements, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Floats values(elements);
  for (float& value : values) {
    value = std::exp(2.0F * normal(random));
    value = std::copysign(std::clamp(value, 1e-3F, 1e4F), normal(random));
  }
  return values;
}

inline std::uint64_t splitmix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9u;
  z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11ebu;
  return z ^ (z >> 31);
}

/// As the numpy reference has it: 128 signs from two words of 64 bits, seen as four of 32.
inline double reference_sign(std::uint64_t seed, const HadamardLayout& layout, std::size_t index) {
  const std::size_t block = index / layout.block, within = index % layout.block;
  const std::size_t draws = std::max<std::size_t>(1, layout.block / 128);
  const std::size_t word = 2 * (block * draws + within / 128) + within % 4 / 2;
  const std::uint64_t bits = splitmix(splitmix(seed) + word * 0x9e37'79b9'7f4a'7c15u);
  const auto half = static_cast<std::uint32_t>(bits >> (32 * (within % 2)));
  return (half >> (31 - within % 128 / 4) & 1) != 0 ? -1.0 : 1.0;
}

inline void reference_transform(std::span<double> block) {
  for (std::size_t stride = 1; stride < block.size(); stride *= 2) {
    for (std::size_t i = 0; i < block.size(); ++i) {
      if ((i & stride) != 0) continue;
      const double a = block[i], b = block[i + stride];
      block[i] = a + b;
      block[i + stride] = a - b;
    }
  }
  for (double& value : block) value /= std::sqrt(static_cast<double>(block.size()));
}

inline double squared_norm(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum;
}

inline double squared_distance(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

/// How far a result may be from the reference, for each block; nothing but zero is right in between blocks.
inline Doubles tolerances(const HadamardLayout& layout, const Doubles& values) {
  Doubles all(layout.stride, 0.0);
  for (std::size_t b = 0; b < layout.blocks(); ++b) {
    const std::size_t first = b * layout.block;
    const std::size_t count = std::min<std::size_t>(layout.block, layout.elements - first);
    all[b] = kRounding * std::sqrt(squared_norm(std::span(values).subspan(first, count)));
  }
  return all;
}

inline Floats encode(const Floats& values, const HadamardLayout& layout, std::uint64_t seed) {
  Floats encoded(layout.encoded_elements());
  hadamard_encode(DType::Float32, std::as_bytes(std::span(values)).data(), layout, seed, encoded.data());
  return encoded;
}

inline Doubles decode(const Floats& encoded, const HadamardLayout& layout, std::uint64_t seed,
                      const Lost& lost, float cap = kHadamardCap) {
  Floats values(layout.elements);
  hadamard_decode(DType::Float32, encoded.data(), layout, seed, lost, cap,
                  std::as_writable_bytes(std::span(values)).data());
  return Doubles(values.begin(), values.end());
}

inline void report(const char* what, const char* variant, DType dtype, const HadamardLayout& layout,
                   std::size_t index) {
  check::fail(__FILE__, __LINE__,
              std::string(what) + ": " + variant + " " + name_of(dtype) + ", " +
                  std::to_string(layout.elements) + " elements in blocks of " + std::to_string(layout.block) +
                  ", index " + std::to_string(index));
}

inline void check_decoded(const char* variant, DType dtype, const HadamardLayout& layout,
                          const Doubles& expected, const Doubles& decoded) {
  const Doubles tolerance = tolerances(layout, expected);
  for (std::size_t i = 0; i < layout.elements; ++i) {
    const double rounding = relative_unit(dtype) / 2 * std::fabs(expected[i]);
    if (std::fabs(decoded[i] - expected[i]) <= tolerance[i / layout.block] + rounding) continue;
    return report("decoded", variant, dtype, layout, i);
  }
}

}  // namespace hadamardcase
