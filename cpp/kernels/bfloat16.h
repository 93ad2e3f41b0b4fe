// Float32 values in half of their size.
#pragma once

#include <cstddef>
#include <span>

namespace optireduce {

/// Rounds to nearest, halves to even. What is no number stays none. Here and below halves need no alignment.
void bfloat16_encode(const float* values, std::size_t count, std::byte* halves);

/// Exact: every bfloat16 is a float32.
void bfloat16_decode(const std::byte* halves, std::size_t count, float* values);

/// halves = own = (own + inputs[0] + inputs[1] + ...) / divisor, added in float32 in that order and rounded
/// once: `own` ends with what the halves are. There may be no inputs.
void bfloat16_reduce_onto(float* own, std::size_t count, std::span<const std::byte* const> inputs,
                          double divisor, std::byte* halves);

}  // namespace optireduce
