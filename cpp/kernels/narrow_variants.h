// The implementations behind int8_block.h and bfloat16.h, one for each instruction set. They give equal bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace optireduce {

struct NarrowVariant {
  void (*int8_encode)(const float* values, std::size_t count, std::uint64_t seed, std::byte* blocks);
  void (*int8_decode)(const std::byte* blocks, std::size_t count, float* values);
  void (*int8_reduce)(std::span<const std::byte* const> inputs, float divisor, std::byte* out,
                      std::size_t blocks);
  void (*int8_reduce_onto)(float* own, std::size_t count, std::span<const std::byte* const> inputs,
                           float divisor, std::byte* blocks);
  void (*bfloat16_encode)(const float* values, std::size_t count, std::byte* halves);
  void (*bfloat16_decode)(const std::byte* halves, std::size_t count, float* values);
  void (*bfloat16_reduce_onto)(float* own, std::size_t count, std::span<const std::byte* const> inputs,
                               float divisor, std::byte* halves);
};

const NarrowVariant& narrow_plain();

/// nullptr where the CPU lacks AVX2.
const NarrowVariant* find_narrow_avx2();

}  // namespace optireduce
