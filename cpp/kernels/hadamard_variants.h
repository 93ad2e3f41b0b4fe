// The implementations behind hadamard_encode() and hadamard_decode(), one for each instruction set. They give
// equal bits: the callers and the tests may pick any that this CPU can run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/hadamard.h"

namespace optireduce {

/// Blocks that go through the cache together. Their coefficients of one number are a cache line on the wire.
constexpr std::size_t kHadamardGroup = 16;

struct HadamardVariant {
  void (*encode)(DType dtype, const std::byte* in, const HadamardLayout& layout, std::uint64_t seed,
                 float* out);
  /// `scales`: what each block's coefficients are multiplied with before they are added and subtracted;
  /// readable up to a multiple of kHadamardGroup.
  void (*decode)(DType dtype, const float* in, const HadamardLayout& layout, std::uint64_t seed,
                 const float* scales, std::byte* out);
};

/// Runs everywhere: 16-byte vectors, which the compiler makes SSE2, NEON or scalar code.
extern const HadamardVariant hadamard_plain;

/// For x86 with AVX2 and F16C; nullptr where the CPU lacks them.
const HadamardVariant* find_hadamard_avx2();

}  // namespace optireduce
