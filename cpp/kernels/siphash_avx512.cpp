#include "kernels/siphash_variants.h"

#if defined(__x86_64__) || defined(__i386__)

#include <immintrin.h>

#include <array>
#include <cstring>

#define OPTIREDUCE_TARGET __attribute__((target("avx512f")))

namespace optireduce {
namespace {

constexpr std::size_t kLanes = 8;
constexpr std::size_t kBlockWords = 4;
using Word = std::uint64_t __attribute__((vector_size(64)));
using Sources = std::array<const std::byte*, kLanes>;

/// GCC 12 warns of its own headers (bug 105593) where an intrinsic has no mask: with all lanes in it, it is
/// the same instruction.
constexpr __mmask8 kAll = 0xff;

/// Compilers know it: one vprolq.
template <int bits>
OPTIREDUCE_TARGET inline Word rotate(Word word) {
  return word << bits | word >> (64 - bits);
}

OPTIREDUCE_TARGET inline Word load(const Sources& sources, std::size_t at) {
  std::array<std::uint64_t, kLanes> words;
  for (std::size_t lane = 0; lane < kLanes; ++lane)
    std::memcpy(&words[lane], sources[lane] + at, sizeof words[lane]);
  Word word;
  std::memcpy(&word, words.data(), sizeof word);
  return word;
}

/// Four words of each of two messages. The second is inserted as it is loaded, which saves a shuffle.
OPTIREDUCE_TARGET inline __m512i load_two(const std::byte* low, const std::byte* high) {
  const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low));
  const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high));
  return _mm512_maskz_inserti64x4(kAll, _mm512_castsi256_si512(first), second, 1);
}

/// Four words of each message, turned so that each vector has one word of all. Gathers are slower.
OPTIREDUCE_TARGET inline void load_block(const Sources& sources, std::size_t at, Word* block) {
  const __m512i rows_02 = load_two(sources[0] + at, sources[2] + at);
  const __m512i rows_13 = load_two(sources[1] + at, sources[3] + at);
  const __m512i rows_46 = load_two(sources[4] + at, sources[6] + at);
  const __m512i rows_57 = load_two(sources[5] + at, sources[7] + at);
  const __m512i even_0123 = _mm512_maskz_unpacklo_epi64(kAll, rows_02, rows_13);
  const __m512i odd_0123 = _mm512_maskz_unpackhi_epi64(kAll, rows_02, rows_13);
  const __m512i even_4567 = _mm512_maskz_unpacklo_epi64(kAll, rows_46, rows_57);
  const __m512i odd_4567 = _mm512_maskz_unpackhi_epi64(kAll, rows_46, rows_57);
  block[0] = (Word)_mm512_maskz_shuffle_i64x2(kAll, even_0123, even_4567, 0x88);
  block[1] = (Word)_mm512_maskz_shuffle_i64x2(kAll, odd_0123, odd_4567, 0x88);
  block[2] = (Word)_mm512_maskz_shuffle_i64x2(kAll, even_0123, even_4567, 0xdd);
  block[3] = (Word)_mm512_maskz_shuffle_i64x2(kAll, odd_0123, odd_4567, 0xdd);
}

inline void hash_few(std::span<const SipMessage> messages, std::uint64_t* hashes) {
  static const SipVariant avx2 = find_siphash_avx2();
  avx2(messages, hashes);
}

}  // namespace
}  // namespace optireduce

#include "kernels/siphash_loop.h"

namespace optireduce {
namespace {

OPTIREDUCE_TARGET void siphash_avx512(std::span<const SipMessage> messages, std::uint64_t* hashes) {
  hash_all(messages, hashes);
}

}  // namespace

SipVariant find_siphash_avx512() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx2") ? &siphash_avx512 : nullptr;
}

}  // namespace optireduce

#else

namespace optireduce {

SipVariant find_siphash_avx512() {
  return nullptr;
}

}  // namespace optireduce

#endif
