// Eight lanes: one AVX2 register, two of smaller machines.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace optireduce {
namespace {

constexpr std::size_t kLanes = 8;
constexpr std::size_t kPadded = 64;  // values of a block, and two zeros that make whole vectors

using F32x8 = float __attribute__((vector_size(32)));
using U32x8 = std::uint32_t __attribute__((vector_size(32)));
using I32x8 = std::int32_t __attribute__((vector_size(32)));

using Values = std::array<F32x8, kPadded / kLanes>;
using Whole = std::array<I32x8, kPadded / kLanes>;

}  // namespace
}  // namespace optireduce
