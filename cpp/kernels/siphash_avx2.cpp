#include "kernels/siphash_variants.h"

#if defined(__x86_64__) || defined(__i386__)

#include <immintrin.h>

#include <array>
#include <cstring>

#define OPTIREDUCE_TARGET __attribute__((target("avx2")))

namespace optireduce {
namespace {

constexpr std::size_t kLanes = 4;
constexpr std::size_t kBlockWords = 4;
using Word = std::uint64_t __attribute__((vector_size(32)));
using Sources = std::array<const std::byte*, kLanes>;

/// Whole bytes are moved by one shuffle, others by two shifts.
template <int bits>
OPTIREDUCE_TARGET inline Word rotate(Word word) {
  if constexpr (bits == 32) {
    return (Word)_mm256_shuffle_epi32((__m256i)word, 0xb1);
  } else if constexpr (bits == 16) {
    const __m256i order = _mm256_setr_epi8(6, 7, 0, 1, 2, 3, 4, 5, 14, 15, 8, 9, 10, 11, 12, 13, 6, 7, 0, 1,
                                           2, 3, 4, 5, 14, 15, 8, 9, 10, 11, 12, 13);
    return (Word)_mm256_shuffle_epi8((__m256i)word, order);
  } else {
    return word << bits | word >> (64 - bits);
  }
}

OPTIREDUCE_TARGET inline Word load(const Sources& sources, std::size_t at) {
  std::array<std::uint64_t, kLanes> words;
  for (std::size_t lane = 0; lane < kLanes; ++lane)
    std::memcpy(&words[lane], sources[lane] + at, sizeof words[lane]);
  Word word;
  std::memcpy(&word, words.data(), sizeof word);
  return word;
}

/// Four words of each message, turned so that each vector has one word of all.
OPTIREDUCE_TARGET inline void load_block(const Sources& sources, std::size_t at, Word* block) {
  __m256i rows[kLanes];
  for (std::size_t lane = 0; lane < kLanes; ++lane)
    rows[lane] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sources[lane] + at));
  const __m256i even_01 = _mm256_unpacklo_epi64(rows[0], rows[1]);
  const __m256i odd_01 = _mm256_unpackhi_epi64(rows[0], rows[1]);
  const __m256i even_23 = _mm256_unpacklo_epi64(rows[2], rows[3]);
  const __m256i odd_23 = _mm256_unpackhi_epi64(rows[2], rows[3]);
  block[0] = (Word)_mm256_permute2x128_si256(even_01, even_23, 0x20);
  block[1] = (Word)_mm256_permute2x128_si256(odd_01, odd_23, 0x20);
  block[2] = (Word)_mm256_permute2x128_si256(even_01, even_23, 0x31);
  block[3] = (Word)_mm256_permute2x128_si256(odd_01, odd_23, 0x31);
}

inline void hash_few(std::span<const SipMessage> messages, std::uint64_t* hashes) {
  siphash_plain(messages, hashes);
}

}  // namespace
}  // namespace optireduce

#include "kernels/siphash_loop.h"

namespace optireduce {
namespace {

OPTIREDUCE_TARGET void siphash_avx2(std::span<const SipMessage> messages, std::uint64_t* hashes) {
  hash_all(messages, hashes);
}

}  // namespace

SipVariant find_siphash_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") ? &siphash_avx2 : nullptr;
}

}  // namespace optireduce

#else

namespace optireduce {

SipVariant find_siphash_avx2() {
  return nullptr;
}

}  // namespace optireduce

#endif
