// The implementations behind reduce(), one for each instruction set. They give equal bits: reduce() and the
// tests may pick any that this CPU can run.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/dtype.h"

namespace optireduce {

using ReduceVariant = void (*)(DType dtype, std::span<const std::byte* const> inputs, double divisor,
                               std::byte* out, std::size_t elements);

/// Runs everywhere: 16-byte vectors, which the compiler makes SSE2, NEON or scalar code.
void reduce_plain(DType dtype, std::span<const std::byte* const> inputs, double divisor, std::byte* out,
                  std::size_t elements);

/// For x86 with AVX2 and F16C; nullptr where the CPU lacks them.
ReduceVariant find_reduce_avx2();

}  // namespace optireduce
