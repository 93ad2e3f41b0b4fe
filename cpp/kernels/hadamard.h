// The randomized Hadamard transform: spreads every value over many coefficients, so that whatever part of
// them is lost, what is decoded is the original plus noise of mean zero, and not the original with a hole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/dtype.h"

namespace optireduce {

constexpr std::uint32_t kHadamardBlock = 1024;
constexpr std::uint32_t kSmallestHadamardBlock = 8;
constexpr std::uint32_t kLargestHadamardBlock = 1 << 14;
constexpr float kHadamardCap = 2.0F;

/// How `elements` values of the user become `encoded_elements()` floats on the wire. The values are cut into
/// blocks, the last one is padded with zeros, and each is transformed on its own. Coefficient j of block b is
/// float j * stride + b on the wire: any run of consecutive floats takes about as many coefficients from
/// every block, never most of one. Make it with hadamard_layout().
struct HadamardLayout {
  std::size_t elements;
  std::uint32_t block;  // values in a block, a power of two
  std::size_t stride;   // at least blocks(); the floats between are zero

  constexpr std::size_t blocks() const { return (elements + block - 1) / block; }
  constexpr std::size_t encoded_elements() const { return stride * block; }
};

/// With blocks of `block` values, a power of two from kSmallestHadamardBlock to kLargestHadamardBlock; of
/// fewer elements one block of the next power of two. The stride is the number of blocks, but where it costs
/// at most 1.6 % it is rounded up to one that memory is fast at. std::invalid_argument for other blocks.
HadamardLayout hadamard_layout(std::size_t elements, std::uint32_t block = kHadamardBlock);

/// Positions [first, first + count) of the encoded floats.
struct LostRange {
  std::size_t first;
  std::size_t count;
};

/// Multiplies every value with a random sign and transforms the blocks (orthonormal: norms are kept). Use
/// each seed once: with the signs of another time the errors of equal losses add up instead of averaging out.
/// float32, bfloat16 and float16, computed in float32; equal inputs give equal bits on every machine. A NaN
/// or infinity spreads over its block. std::invalid_argument for float64. `out` must not overlap `in`.
void hadamard_encode(DType dtype, const std::byte* in, const HadamardLayout& layout, std::uint64_t seed,
                     float* out);

/// The inverse, with the same layout and seed. `lost` says which floats of `in` never came: they must be zero
/// there, and ranges must not overlap. Each block is scaled up by the share of its coefficients that came,
/// block / received, which makes what is decoded right on average; but at most by `cap` (at least 1), which
/// bounds the noise of a block of which little came. A block of which nothing came is zero. Writes
/// `layout.elements` values of `dtype`. std::invalid_argument for float64, a `cap` below 1, and ranges that
/// are not in `in` or more than a block has. `out` must not overlap `in`.
void hadamard_decode(DType dtype, const float* in, const HadamardLayout& layout, std::uint64_t seed,
                     std::span<const LostRange> lost, float cap, std::byte* out);

}  // namespace optireduce
