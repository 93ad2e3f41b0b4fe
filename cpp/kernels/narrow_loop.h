// The loops of int8_block.h and bfloat16.h, written once for all instruction sets, in vectors of eight lanes.
//
// A .cpp for an instruction set defines OPTIREDUCE_TARGET (the function attribute that enables it), includes
// narrow_lanes.h, and defines, before it includes this file, what compilers do not do well on their own:
//   void store_numbers(const Whole& numbers, std::int8_t* out)    64 numbers from 32 to 8 bits
//   void load_numbers(const std::int8_t* source, I32x8& numbers)  8 numbers from 8 to 32 bits
// Everything here has internal linkage: code for one instruction set must never be linked for another's.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/int8_block.h"
#include "kernels/narrow_lanes.h"
#include "kernels/narrow_variants.h"

namespace optireduce {
namespace {

constexpr std::uint32_t kSignless = 0x7fff'ffffu;
constexpr std::uint32_t kNotFinite = 0x7f80'0000u;   // this magnitude and above: infinity, NaN
constexpr std::uint32_t kNegligible = 0x0c00'0000u;  // 2^-103: below it the scale would lose its precision
constexpr std::uint16_t kNanScale = 0x7fc0u;
constexpr float kLargest = 127.0F;

/// splitmix64, as in proto/mix.h: kernels know nothing of proto.
OPTIREDUCE_TARGET inline std::uint64_t scramble(std::uint64_t z) {
  z += 0x9e37'79b9'7f4a'7c15u;
  z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9u;
  z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11ebu;
  return z ^ (z >> 31);
}

/// Eight xorshift generators (Marsaglia 2003) side by side.
struct Dice {
  U32x8 state;

  OPTIREDUCE_TARGET explicit Dice(std::uint64_t seed) {
    for (std::size_t lane = 0; lane < kLanes; lane += 2) {
      const std::uint64_t word = scramble(seed + lane);
      state[lane] = static_cast<std::uint32_t>(word) | 1u;  // zero would stay zero
      state[lane + 1] = static_cast<std::uint32_t>(word >> 32) | 1u;
    }
  }

  OPTIREDUCE_TARGET void roll() {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
  }
};

OPTIREDUCE_TARGET inline float scale_of(const std::byte* block) {
  std::uint16_t bits;
  std::memcpy(&bits, block, sizeof bits);
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

OPTIREDUCE_TARGET inline void set_scale(std::byte* block, std::uint16_t bits) {
  std::memcpy(block, &bits, sizeof bits);
}

OPTIREDUCE_TARGET inline std::uint32_t largest_magnitude(const Values& values) {
  U32x8 largest{};
  for (const F32x8& value : values) {
    const U32x8 magnitude = (U32x8)value & kSignless;
    largest = magnitude > largest ? magnitude : largest;
  }
  std::uint32_t found = 0;
  for (std::size_t lane = 0; lane < kLanes; ++lane) found = std::max(found, largest[lane]);
  return found;
}

OPTIREDUCE_TARGET inline void encode_block(const Values& values, Dice& dice, std::byte* block) {
  const std::uint32_t largest = largest_magnitude(values);
  if (largest < kNegligible || largest >= kNotFinite) {
    std::memset(block, 0, kInt8BlockBytes);
    if (largest >= kNotFinite) set_scale(block, kNanScale);
    return;
  }
  // Rounded up to a bfloat16, so that the largest value is at most 127 of it.
  const std::uint32_t exact = std::bit_cast<std::uint32_t>(std::bit_cast<float>(largest) / kLargest);
  const std::uint32_t scale = (exact + 0xffffu) & 0xffff'0000u;
  const float inverse = 1.0F / std::bit_cast<float>(scale);
  Whole rounded;
  for (std::size_t i = 0; i < values.size(); ++i) {
    dice.roll();
    const F32x8 chance = __builtin_convertvector((I32x8)(dice.state >> 8), F32x8) * 0x1p-24F;
    // Truncation of a positive number is its floor, on every machine.
    const I32x8 whole = __builtin_convertvector(values[i] * inverse + chance + 256.0F, I32x8) - 256;
    const I32x8 least = whole < -127 ? I32x8{} - 127 : whole;
    rounded[i] = least > 127 ? I32x8{} + 127 : least;
  }
  std::array<std::int8_t, kPadded> numbers;
  store_numbers(rounded, numbers.data());
  set_scale(block, static_cast<std::uint16_t>(scale >> 16));
  std::memcpy(block + sizeof(std::uint16_t), numbers.data(), kInt8BlockValues);
}

OPTIREDUCE_TARGET inline void add_block(const std::byte* block, Values& sums) {
  std::array<std::int8_t, kPadded> numbers{};
  std::memcpy(numbers.data(), block + sizeof(std::uint16_t), kInt8BlockValues);
  const float scale = scale_of(block);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    I32x8 whole;
    load_numbers(numbers.data() + i * kLanes, whole);
    sums[i] += scale * __builtin_convertvector(whole, F32x8);
  }
}

OPTIREDUCE_TARGET void encode_all(const float* values, std::size_t count, std::uint64_t seed,
                                  std::byte* blocks) {
  Dice dice(seed);
  Values padded{};
  for (; count >= kInt8BlockValues; count -= kInt8BlockValues) {  // of constant size: copies without a call
    std::memcpy(padded.data(), values, kInt8BlockValues * sizeof(float));
    encode_block(padded, dice, blocks);
    values += kInt8BlockValues;
    blocks += kInt8BlockBytes;
  }
  if (count == 0) return;
  padded = {};
  std::memcpy(padded.data(), values, count * sizeof(float));
  encode_block(padded, dice, blocks);
}

OPTIREDUCE_TARGET void decode_all(const std::byte* blocks, std::size_t count, float* values) {
  for (; count >= kInt8BlockValues; count -= kInt8BlockValues) {
    Values decoded{};
    add_block(blocks, decoded);
    std::memcpy(values, decoded.data(), kInt8BlockValues * sizeof(float));
    values += kInt8BlockValues;
    blocks += kInt8BlockBytes;
  }
  if (count == 0) return;
  Values decoded{};
  add_block(blocks, decoded);
  std::memcpy(values, decoded.data(), count * sizeof(float));
}

/// From what is rounded: the same blocks give the same bits, whoever adds them, with however many others.
OPTIREDUCE_TARGET inline std::uint64_t seed_from(std::span<const std::byte* const> inputs,
                                                 std::size_t offset) {
  std::uint64_t seed = 0;
  for (const std::byte* input : inputs) {
    std::uint64_t first, last;
    std::memcpy(&first, input + offset, sizeof first);
    std::memcpy(&last, input + offset + kInt8BlockBytes - sizeof last, sizeof last);
    seed = scramble(seed ^ first ^ std::rotl(last, 29));
  }
  return seed;
}

OPTIREDUCE_TARGET void reduce_all(std::span<const std::byte* const> inputs, float divisor, std::byte* out,
                                  std::size_t blocks) {
  for (std::size_t offset = 0; offset < blocks * kInt8BlockBytes; offset += kInt8BlockBytes) {
    Values sums{};
    for (const std::byte* input : inputs) add_block(input + offset, sums);
    for (F32x8& sum : sums) sum /= divisor;
    Dice dice(seed_from(inputs, offset));
    encode_block(sums, dice, out + offset);
  }
}

/// Adding just under half a unit, and the last unit for halves to go to even, carries into the upper half.
OPTIREDUCE_TARGET void halve(const float* values, std::size_t count, std::uint16_t* halves) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const std::uint32_t quiet = bits | 0x0040'0000u;  // rounding could carry a NaN to an infinity, or to zero
    halves[i] = static_cast<std::uint16_t>(((bits & kSignless) > kNotFinite ? quiet : rounded) >> 16);
  }
}

OPTIREDUCE_TARGET void double_up(const std::uint16_t* halves, std::size_t count, float* values) {
  for (std::size_t i = 0; i < count; ++i)
    values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(halves[i]) << 16);
}

constexpr NarrowVariant kVariant{&encode_all, &decode_all, &reduce_all, &halve, &double_up};

}  // namespace
}  // namespace optireduce
