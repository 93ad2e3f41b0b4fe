// SipHash-2-4, written once for all instruction sets: kLanes messages side by side, a word of each in a Word.
//
// A .cpp for an instruction set defines OPTIREDUCE_TARGET (the function attribute that enables it), and, in
// an unnamed namespace before it includes this file:
//   kLanes, Word                        how many messages, and a word of each
//   Sources                             where their bytes are
//   Word rotate<bits>(Word)             to the left
//   Word load(Sources, at)              the word that begins there, of each
//   kBlockWords, void load_block(Sources, at, Word*)  so many of them
// Everything here has internal linkage: code for one instruction set must never be linked for another's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/siphash.h"

namespace optireduce {
namespace {

constexpr std::size_t kWordBytes = 8;

struct SipState {
  Word v0, v1, v2, v3;
};

OPTIREDUCE_TARGET inline void sip_round(SipState& s) {
  s.v0 += s.v1;
  s.v2 += s.v3;
  s.v1 = rotate<13>(s.v1) ^ s.v0;
  s.v3 = rotate<16>(s.v3) ^ s.v2;
  s.v0 = rotate<32>(s.v0);
  s.v2 += s.v1;
  s.v0 += s.v3;
  s.v1 = rotate<17>(s.v1) ^ s.v2;
  s.v3 = rotate<21>(s.v3) ^ s.v0;
  s.v2 = rotate<32>(s.v2);
}

OPTIREDUCE_TARGET inline void absorb(SipState& s, Word word) {
  s.v3 ^= word;
  sip_round(s);
  sip_round(s);
  s.v0 ^= word;
}

OPTIREDUCE_TARGET inline void absorb_words(SipState& s, const Sources& sources, std::size_t words) {
  std::size_t at = 0;
  for (; at + kBlockWords <= words; at += kBlockWords) {
    Word block[kBlockWords];
    load_block(sources, at * kWordBytes, block);
    for (const Word& word : block) absorb(s, word);
  }
  for (; at < words; ++at) absorb(s, load(sources, at * kWordBytes));
}

/// The bytes behind the last whole word, and the length of all in the highest byte.
inline std::uint64_t last_word(const SipMessage& message) {
  const std::size_t rest = message.body.size() % kWordBytes;
  std::uint64_t word = 0;
  if (rest != 0) std::memcpy(&word, message.body.data() + message.body.size() - rest, rest);
  return word | static_cast<std::uint64_t>(message.head.size() + message.body.size()) << 56;
}

/// `messages`: kLanes of them, equally long in both parts.
OPTIREDUCE_TARGET inline void hash_lanes(const SipMessage* messages, std::uint64_t* hashes) {
  std::array<std::uint64_t, kLanes> low, high, last;
  Sources heads, bodies;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    low[lane] = messages[lane].key.low;
    high[lane] = messages[lane].key.high;
    last[lane] = last_word(messages[lane]);
    heads[lane] = messages[lane].head.data();
    bodies[lane] = messages[lane].body.data();
  }
  Word k0, k1, end;
  std::memcpy(&k0, low.data(), sizeof k0);
  std::memcpy(&k1, high.data(), sizeof k1);
  std::memcpy(&end, last.data(), sizeof end);
  SipState s{k0 ^ 0x736f'6d65'7073'6575u, k1 ^ 0x646f'7261'6e64'6f6du, k0 ^ 0x6c79'6765'6e65'7261u,
             k1 ^ 0x7465'6462'7974'6573u};  // "somepseudorandomlygeneratedbytes"
  absorb_words(s, heads, messages[0].head.size() / kWordBytes);
  absorb_words(s, bodies, messages[0].body.size() / kWordBytes);
  absorb(s, end);
  s.v2 ^= 0xffu;
  for (int round = 0; round < 4; ++round) sip_round(s);
  const Word hash = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
  std::memcpy(hashes, &hash, sizeof hash);
}

}  // namespace
}  // namespace optireduce
