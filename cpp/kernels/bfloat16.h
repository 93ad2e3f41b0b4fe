// Float32 values in half of their size.
#pragma once

#include <cstddef>
#include <cstdint>

namespace optireduce {

/// Rounds to nearest, halves to even. What is no number stays none.
void bfloat16_encode(const float* values, std::size_t count, std::uint16_t* halves);

/// Exact: every bfloat16 is a float32.
void bfloat16_decode(const std::uint16_t* halves, std::size_t count, float* values);

}  // namespace optireduce
