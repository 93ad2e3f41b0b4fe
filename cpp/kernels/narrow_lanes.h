// Eight lanes: one AVX2 register, two of smaller machines.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace optireduce {
namespace {

constexpr std::size_t kLanes = 8;
constexpr std::size_t kPadded = 64;  // bytes of a block: its numbers, and two of the scale

using F32x8 = float __attribute__((vector_size(32)));
using U32x8 = std::uint32_t __attribute__((vector_size(32)));
using I32x8 = std::int32_t __attribute__((vector_size(32)));
using U16x8 = std::uint16_t __attribute__((vector_size(16)));

/// Eight floats anywhere in memory. (memcpy goes through halves of a vector, and reading the whole afterwards
/// then waits for both.)
struct Anywhere {
  F32x8 lanes;
} __attribute__((packed, may_alias));

/// The same of eight bfloat16.
struct HalvesAnywhere {
  U16x8 lanes;
} __attribute__((packed, may_alias));

using Values = std::array<F32x8, kPadded / kLanes>;
using Whole = std::array<I32x8, kPadded / kLanes>;
using Rows = std::array<U32x8, kLanes>;

}  // namespace
}  // namespace optireduce
