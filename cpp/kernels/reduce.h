// Reduction of several equally long inputs into one output.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/dtype.h"

namespace optireduce {

/// out[i] = (((inputs[0][i] + inputs[1][i]) + inputs[2][i]) + ...) / divisor, added in exactly that order, so
/// that equal inputs give equal bits on every machine. float32, bfloat16 and float16 accumulate in float32
/// and are rounded once (to nearest even) on the way out; float64 accumulates in float64. A divisor of 1
/// divides nothing. Int8Block: see int8_reduce(). `out` may be one of the inputs. No alignment is required.
/// At least one input.
void reduce(DType dtype, std::span<const std::byte* const> inputs, double divisor, std::byte* out,
            std::size_t elements);

/// Copies without bringing the destination into the cache: for data that is not read again soon. Whole cache
/// lines are fast, parts of them slow. Call finish_streaming() after the last copy and before telling another
/// thread: these stores are not ordered with ordinary ones.
void copy_streaming(std::byte* destination, const std::byte* source, std::size_t bytes);
void finish_streaming();

/// The instruction set chosen at run time: "avx2", "neon" or "plain".
const char* simd_level();

}  // namespace optireduce
