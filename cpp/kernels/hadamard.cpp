// Layout, checks and the share of each block that came; picks the fastest transform that this CPU can run.
#include "kernels/hadamard.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/hadamard_variants.h"

namespace optireduce {
namespace {

/// Rounding the stride up may cost one part in so many.
constexpr std::size_t kStrideShare = 64;

const HadamardVariant& variant() {
  static const HadamardVariant* const avx2 = find_hadamard_avx2();
  return avx2 != nullptr ? *avx2 : hadamard_plain;
}

/// An odd number of cache lines. With a multiple of a large power of two, the coefficients of one block would
/// share a few sets of the cache and a few channels of the memory; with parts of lines, none could be written
/// past the cache. One line more than a power of two was measured to be slow, too (not in huge pages).
std::size_t fast_stride(std::size_t blocks) {
  const std::size_t odd = (blocks + kHadamardGroup - 1) / kHadamardGroup | 1;
  for (const std::size_t lines : {std::has_single_bit(odd - 1) ? odd + 2 : odd, odd}) {
    const std::size_t stride = lines * kHadamardGroup;
    if ((stride - blocks) * kStrideShare <= blocks) return stride;
  }
  return blocks;
}

void require_supported(DType dtype) {
  if (size_of(dtype) <= sizeof(float)) return;
  throw std::invalid_argument(std::string("dtype is ") + name_of(dtype) +
                              ", must be float32, bfloat16 or float16");
}

void require_inside(const LostRange& range, std::size_t encoded) {
  if (range.first <= encoded && range.count <= encoded - range.first) return;
  throw std::invalid_argument("a lost range is " + std::to_string(range.count) + " floats from " +
                              std::to_string(range.first) + ", must be within the " +
                              std::to_string(encoded) + " encoded floats");
}

/// How many coefficients of each block are lost, for `stride` blocks. Only the ends of a range are looked at:
/// every `stride` floats have one coefficient of each block.
std::vector<std::size_t> count_lost(const HadamardLayout& layout, std::span<const LostRange> lost) {
  std::size_t of_every_block = 0;
  // The difference to the block before; unsigned, so that negative ones wrap around and back.
  std::vector<std::size_t> counts(layout.stride + 1, 0);
  for (const LostRange& range : lost) {
    require_inside(range, layout.encoded_elements());
    of_every_block += range.count / layout.stride;
    const std::size_t begin = range.first % layout.stride;
    const std::size_t end = begin + range.count % layout.stride;
    ++counts[begin];
    --counts[std::min(end, layout.stride)];
    if (end > layout.stride) {
      ++counts[0];
      --counts[end - layout.stride];
    }
  }
  std::size_t running = of_every_block;
  for (std::size_t& count : counts) count = running += count;
  return counts;
}

float upscaling(std::size_t block, std::size_t lost, float cap) {
  if (lost > block) {
    throw std::invalid_argument("lost has " + std::to_string(lost) +
                                " coefficients of one block, which has " + std::to_string(block) +
                                ": ranges must not overlap");
  }
  if (lost == block) return 0.0F;
  return std::min(cap, static_cast<float>(block) / static_cast<float>(block - lost));
}

std::vector<float> block_scales(const HadamardLayout& layout, std::span<const LostRange> lost, float cap) {
  const float orthonormal = 1.0F / std::sqrt(static_cast<float>(layout.block));
  std::vector<float> scales(layout.stride + kHadamardGroup, orthonormal);
  if (lost.empty() || layout.stride == 0) return scales;
  const std::vector<std::size_t> counts = count_lost(layout, lost);
  for (std::size_t b = 0; b < layout.stride; ++b) scales[b] *= upscaling(layout.block, counts[b], cap);
  return scales;
}

}  // namespace

HadamardLayout hadamard_layout(std::size_t elements, std::uint32_t block) {
  if (!std::has_single_bit(block) || block < kSmallestHadamardBlock || block > kLargestHadamardBlock) {
    throw std::invalid_argument("block is " + std::to_string(block) + ", must be a power of two from " +
                                std::to_string(kSmallestHadamardBlock) + " to " +
                                std::to_string(kLargestHadamardBlock));
  }
  if (elements < block) {
    block = std::max(kSmallestHadamardBlock, std::bit_ceil(static_cast<std::uint32_t>(elements)));
  }
  HadamardLayout layout{elements, block, 0};
  layout.stride = fast_stride(layout.blocks());
  return layout;
}

void hadamard_encode(DType dtype, const std::byte* in, const HadamardLayout& layout, std::uint64_t seed,
                     float* out) {
  require_supported(dtype);
  variant().encode(dtype, in, layout, seed, out);
}

void hadamard_decode(DType dtype, const float* in, const HadamardLayout& layout, std::uint64_t seed,
                     std::span<const LostRange> lost, float cap, std::byte* out) {
  require_supported(dtype);
  if (!(cap >= 1.0F)) throw std::invalid_argument("cap is " + std::to_string(cap) + ", must be at least 1");
  const std::vector<float> scales = block_scales(layout, lost, cap);
  variant().decode(dtype, in, layout, seed, scales.data(), out);
}

}  // namespace optireduce
