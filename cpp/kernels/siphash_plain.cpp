// Runs everywhere.
#include <array>
#include <bit>
#include <cstring>

#include "kernels/siphash_variants.h"

#define OPTIREDUCE_TARGET

namespace optireduce {
namespace {

constexpr std::size_t kLanes = 1;
constexpr std::size_t kBlockWords = 1;
using Word = std::uint64_t;
using Sources = std::array<const std::byte*, kLanes>;

template <int bits>
Word rotate(Word word) {
  return std::rotl(word, bits);
}

inline Word load(const Sources& sources, std::size_t at) {
  Word word;
  std::memcpy(&word, sources[0] + at, sizeof word);
  return word;
}

inline void load_block(const Sources& sources, std::size_t at, Word* block) {
  block[0] = load(sources, at);
}

/// There is no lane that could be idle.
inline void hash_few(std::span<const SipMessage>, std::uint64_t*) {}

}  // namespace
}  // namespace optireduce

#include "kernels/siphash_loop.h"

namespace optireduce {

void siphash_plain(std::span<const SipMessage> messages, std::uint64_t* hashes) {
  hash_all(messages, hashes);
}

}  // namespace optireduce
