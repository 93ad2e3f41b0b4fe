// The reduction for x86 with AVX2 and F16C (Intel since 2013, AMD since 2015). The instructions are enabled
// function by function, so that the rest of the binary runs on any x86-64.
#include "kernels/reduce_variants.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#define OPTIREDUCE_TARGET __attribute__((target("avx2,f16c")))
#include "kernels/reduce_loop.h"

namespace optireduce {
namespace {

struct Float32 {
  using Vector = __m256;
  using Scalar = float;
  static constexpr std::size_t lanes = 8;
  static constexpr std::size_t element_bytes = 4;
  OPTIREDUCE_TARGET static Vector load(const std::byte* source) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(source));
  }
  OPTIREDUCE_TARGET static void store(std::byte* destination, Vector value) {
    _mm256_storeu_ps(reinterpret_cast<float*>(destination), value);
  }
};

struct Float64 {
  using Vector = __m256d;
  using Scalar = double;
  static constexpr std::size_t lanes = 4;
  static constexpr std::size_t element_bytes = 8;
  OPTIREDUCE_TARGET static Vector load(const std::byte* source) {
    return _mm256_loadu_pd(reinterpret_cast<const double*>(source));
  }
  OPTIREDUCE_TARGET static void store(std::byte* destination, Vector value) {
    _mm256_storeu_pd(reinterpret_cast<double*>(destination), value);
  }
};

/// The sums of sixteen 16-bit elements, read as eight 32-bit words: one element of each in `low`, one in
/// `high`.
struct Halves {
  __m256 low;
  __m256 high;
};

OPTIREDUCE_TARGET inline Halves operator+(Halves a, Halves b) {
  return {a.low + b.low, a.high + b.high};
}

OPTIREDUCE_TARGET inline Halves operator/(Halves a, float by) {
  return {a.low / by, a.high / by};
}

/// The upper half of a float32.
struct BFloat16 {
  using Vector = Halves;
  using Scalar = float;
  static constexpr std::size_t lanes = 16;
  static constexpr std::size_t element_bytes = 2;

  OPTIREDUCE_TARGET static Vector load(const std::byte* source) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
    const __m256i high = _mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)), _mm256_castsi256_ps(high)};
  }

  OPTIREDUCE_TARGET static void store(std::byte* destination, Vector value) {
    constexpr int kOddHalves = 0xaa;
    const __m256i low = _mm256_srli_epi32(round(value.low), 16);
    const __m256i words = _mm256_blend_epi16(low, round(value.high), kOddHalves);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(destination), words);
  }

 private:
  /// The result is in the upper half; the lower one is undefined. Adding just under half a unit, and the last
  /// unit for halves to go to even, carries into the upper half. A NaN stays one: it comes from a bfloat16 or
  /// is the default NaN, so that its lower half is zero and nothing carries.
  OPTIREDUCE_TARGET static __m256i round(__m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i last_unit = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(bits, _mm256_add_epi32(last_unit, _mm256_set1_epi32(0x7fff)));
  }
};

/// IEEE half precision, converted by F16C: subnormals, infinity and NaN included.
struct Float16 {
  using Vector = __m256;
  using Scalar = float;
  static constexpr std::size_t lanes = 8;
  static constexpr std::size_t element_bytes = 2;
  OPTIREDUCE_TARGET static Vector load(const std::byte* source) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
  }
  OPTIREDUCE_TARGET static void store(std::byte* destination, Vector value) {
    const __m128i halves = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(destination), halves);
  }
};

void reduce_avx2(DType dtype, std::span<const std::byte* const> inputs, double divisor, std::byte* out,
                 std::size_t elements) {
  reduce_with<Float32, Float64, BFloat16, Float16>(dtype, inputs, divisor, out, elements);
}

/// Read from the CPU itself: not every supported compiler knows "f16c" in __builtin_cpu_supports.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

ReduceVariant find_reduce_avx2() {
  __builtin_cpu_init();
  // "avx2" also says that the operating system saves the wide registers.
  return __builtin_cpu_supports("avx2") && has_f16c() ? &reduce_avx2 : nullptr;
}

}  // namespace optireduce

#else

namespace optireduce {

ReduceVariant find_reduce_avx2() {
  return nullptr;
}

}  // namespace optireduce

#endif
