#include "kernels/narrow_variants.h"

#if defined(__x86_64__) || defined(__i386__)

#include <immintrin.h>

#define OPTIREDUCE_TARGET __attribute__((target("avx2")))
#include "kernels/narrow_lanes.h"

namespace optireduce {
namespace {

/// Packing works within halves of a register: the last step puts the pieces in order.
OPTIREDUCE_TARGET inline void store_half(const I32x8* numbers, std::byte* out) {
  const __m256i low = _mm256_packs_epi32((__m256i)numbers[0], (__m256i)numbers[1]);
  const __m256i high = _mm256_packs_epi32((__m256i)numbers[2], (__m256i)numbers[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
}

OPTIREDUCE_TARGET inline void store_numbers(const Whole& numbers, std::byte* out) {
  store_half(numbers.data(), out);
  store_half(numbers.data() + 4, out + kPadded / 2);
}

OPTIREDUCE_TARGET inline void load_numbers(const std::byte* source, I32x8& numbers) {
  numbers = (I32x8)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(source)));
}

OPTIREDUCE_TARGET inline void widen_some(const U16x8& halves, F32x8& values) {
  values = (F32x8)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)halves), 16);
}

/// Three rounds, each of which halves the lanes of a row and puts two rows together.
OPTIREDUCE_TARGET inline void largest_of_rows(const Rows& rows, U32x8& largest) {
  __m256i pairs[kLanes / 2];
  for (std::size_t i = 0; i < kLanes / 2; ++i) {
    const __m256i a = (__m256i)rows[2 * i], b = (__m256i)rows[2 * i + 1];
    pairs[i] = _mm256_max_epu32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  }
  __m256i fours[kLanes / 4];
  for (std::size_t i = 0; i < kLanes / 4; ++i) {
    const __m256i a = pairs[2 * i], b = pairs[2 * i + 1];
    fours[i] = _mm256_max_epu32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
  }
  const __m256i low = _mm256_permute2x128_si256(fours[0], fours[1], 0x20);
  const __m256i high = _mm256_permute2x128_si256(fours[0], fours[1], 0x31);
  largest = (U32x8)_mm256_max_epu32(low, high);
}

}  // namespace
}  // namespace optireduce

#include "kernels/narrow_loop.h"

namespace optireduce {

const NarrowVariant* find_narrow_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") ? &kVariant : nullptr;
}

}  // namespace optireduce

#else

namespace optireduce {

const NarrowVariant* find_narrow_avx2() {
  return nullptr;
}

}  // namespace optireduce

#endif
