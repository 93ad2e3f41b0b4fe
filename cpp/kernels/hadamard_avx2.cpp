// The transform for x86 with AVX2 and F16C. The instructions are enabled function by function, so that the
// rest of the binary runs on any x86-64.
#include "kernels/hadamard_variants.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define OPTIREDUCE_TARGET __attribute__((target("avx2,f16c")))
#include "kernels/hadamard_loop.h"
#include "kernels/reduce_variants.h"

namespace optireduce {
namespace {

struct Avx2 {
  using Vector = __m256;
  using Signs = __m256i;

  OPTIREDUCE_TARGET static Vector load(const float* source) { return _mm256_loadu_ps(source); }
  OPTIREDUCE_TARGET static void store(float* destination, Vector value) {
    _mm256_storeu_ps(destination, value);
  }
  OPTIREDUCE_TARGET static void stream(float* destination, Vector value) {
    _mm256_stream_ps(destination, value);
  }
  OPTIREDUCE_TARGET static Vector broadcast(float value) { return _mm256_set1_ps(value); }

  /// Exchanges the 4x4 quarters, then transposes each.
  OPTIREDUCE_TARGET static void transpose(Vector (&x)[kLanes]) {
    for (std::size_t i = 0; i < 4; ++i) {
      const Vector low = _mm256_permute2f128_ps(x[i], x[i + 4], 0x20);
      x[i + 4] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x31);
      x[i] = low;
    }
    for (std::size_t i = 0; i < kLanes; i += 4) {
      const Vector a = _mm256_unpacklo_ps(x[i], x[i + 1]);
      const Vector b = _mm256_unpackhi_ps(x[i], x[i + 1]);
      const Vector c = _mm256_unpacklo_ps(x[i + 2], x[i + 3]);
      const Vector d = _mm256_unpackhi_ps(x[i + 2], x[i + 3]);
      x[i] = _mm256_shuffle_ps(a, c, 0x44);
      x[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
      x[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
      x[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
  }

  /// The upper half has the next four values: one bit further.
  OPTIREDUCE_TARGET static Signs signs(std::uint64_t low, std::uint64_t high) {
    const __m256i words = _mm256_broadcastsi128_si256(
        _mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low)));
    return _mm256_sllv_epi32(words, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
  }
  OPTIREDUCE_TARGET static Vector flip(Vector value, Signs signs, std::size_t shift) {
    const __m256i shifted = _mm256_slli_epi32(signs, static_cast<int>(shift));
    return _mm256_xor_ps(value, _mm256_and_ps(_mm256_castsi256_ps(shifted), _mm256_set1_ps(-0.0F)));
  }
};

struct Float32 {
  static constexpr std::size_t element_bytes = 4;
  OPTIREDUCE_TARGET static __m256 load(const std::byte* source) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(source));
  }
  OPTIREDUCE_TARGET static void store(std::byte* destination, __m256 value) {
    _mm256_storeu_ps(reinterpret_cast<float*>(destination), value);
  }
  OPTIREDUCE_TARGET static void stream(std::byte* destination, __m256 value) {
    _mm256_stream_ps(reinterpret_cast<float*>(destination), value);
  }
};

/// The upper half of a float32.
struct BFloat16 {
  static constexpr std::size_t element_bytes = 2;
  OPTIREDUCE_TARGET static __m256 load(const std::byte* source) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  OPTIREDUCE_TARGET static void store(std::byte* destination, __m256 value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(destination), narrow(value));
  }
  OPTIREDUCE_TARGET static void stream(std::byte* destination, __m256 value) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(destination), narrow(value));
  }

 private:
  /// Adding just under half a unit, and the last unit for halves to go to even, carries into the upper half.
  /// In a NaN that could carry into the sign: it is cut off instead, with a bit set that keeps it a NaN.
  OPTIREDUCE_TARGET static __m128i narrow(__m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i last_unit = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(last_unit, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet_nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i words = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet_nan, is_nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  }
};

/// IEEE half precision, converted by F16C: subnormals, infinity and NaN included.
struct Float16 {
  static constexpr std::size_t element_bytes = 2;
  OPTIREDUCE_TARGET static __m256 load(const std::byte* source) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
  }
  OPTIREDUCE_TARGET static void store(std::byte* destination, __m256 value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(destination), narrow(value));
  }
  OPTIREDUCE_TARGET static void stream(std::byte* destination, __m256 value) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(destination), narrow(value));
  }

 private:
  OPTIREDUCE_TARGET static __m128i narrow(__m256 value) {
    return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
  }
};

constexpr HadamardVariant kAvx2 = {&encode_with<Avx2, Float32, BFloat16, Float16>,
                                   &decode_with<Avx2, Float32, BFloat16, Float16>};

}  // namespace

const HadamardVariant* find_hadamard_avx2() {
  // The reduction needs the same instructions.
  return find_reduce_avx2() != nullptr ? &kAvx2 : nullptr;
}

}  // namespace optireduce

#else

namespace optireduce {

const HadamardVariant* find_hadamard_avx2() {
  return nullptr;
}

}  // namespace optireduce

#endif
