#include "kernels/fingerprint.h"

#include <array>
#include <bit>
#include <cstring>

namespace optireduce {
namespace {

// The odd multipliers and the round of xxHash64 (Collet). Every step is invertible in the word and in the
// state, so one changed word changes the result. Eight lanes hide the latency of the multiplication.
constexpr std::uint64_t kPrime1 = 0x9e37'79b1'85eb'ca87u, kPrime2 = 0xc2b2'ae3d'27d4'eb4fu;
constexpr std::size_t kLanes = 8, kWord = sizeof(std::uint64_t), kBlock = kLanes * kWord;

std::uint64_t mixed(std::uint64_t state, std::uint64_t word) {
  return std::rotl(state + word * kPrime2, 31) * kPrime1;
}

std::uint64_t word_at(const std::byte* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, kWord);
  return word;
}

}  // namespace

std::uint64_t fingerprint(std::span<const std::byte> bytes, std::uint64_t before) {
  std::array<std::uint64_t, kLanes> lanes{};
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= kBlock; left -= kBlock, at += kBlock) {
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] = mixed(lanes[lane], word_at(at + lane * kWord));
  }
  std::uint64_t all = mixed(before, bytes.size());
  for (const std::uint64_t lane : lanes) all = mixed(all, lane);
  for (; left >= kWord; left -= kWord, at += kWord) all = mixed(all, word_at(at));
  std::uint64_t last = 0;
  if (left != 0) std::memcpy(&last, at, left);
  all = mixed(all, last);
  all = (all ^ all >> 29) * kPrime2;
  return all ^ all >> 32;
}

}  // namespace optireduce
