// SipHash-2-4, written once for all instruction sets: kLanes messages side by side, a word of each in a Word,
// and two such groups in turns where there are enough messages: a round is one long chain, so that one group
// alone leaves the CPU waiting.
//
// A .cpp for an instruction set defines OPTIREDUCE_TARGET (the function attribute that enables it), and, in
// an unnamed namespace before it includes this file:
//   kLanes, Word                        how many messages, and a word of each
//   Sources                             where their bytes are
//   Word rotate<bits>(Word)             to the left
//   Word load(Sources, at)              the word that begins there, of each
//   kBlockWords, void load_block(Sources, at, Word*)  so many of them
//   void hash_few(messages, hashes)     what is faster if half of the lanes or more would be idle
// Everything here has internal linkage: code for one instruction set must never be linked for another's.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

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

template <std::size_t groups>
OPTIREDUCE_TARGET inline void sip_rounds(SipState (&s)[groups], int rounds) {
  for (int round = 0; round < rounds; ++round)
    for (SipState& group : s) sip_round(group);
}

template <std::size_t groups>
OPTIREDUCE_TARGET inline void absorb(SipState (&s)[groups], const Word (&words)[groups]) {
  for (std::size_t g = 0; g < groups; ++g) s[g].v3 ^= words[g];
  sip_rounds(s, 2);
  for (std::size_t g = 0; g < groups; ++g) s[g].v0 ^= words[g];
}

template <std::size_t groups>
OPTIREDUCE_TARGET inline void absorb_words(SipState (&s)[groups], const Sources (&sources)[groups],
                                           std::size_t words) {
  std::size_t at = 0;
  Word next[groups];
  for (; at + kBlockWords <= words; at += kBlockWords) {
    Word blocks[groups][kBlockWords];
    for (std::size_t g = 0; g < groups; ++g) load_block(sources[g], at * kWordBytes, blocks[g]);
    for (std::size_t i = 0; i < kBlockWords; ++i) {
      for (std::size_t g = 0; g < groups; ++g) next[g] = blocks[g][i];
      absorb(s, next);
    }
  }
  for (; at < words; ++at) {
    for (std::size_t g = 0; g < groups; ++g) next[g] = load(sources[g], at * kWordBytes);
    absorb(s, next);
  }
}

/// The bytes behind the last whole word, and the length of all in the highest byte.
inline std::uint64_t last_word(const SipMessage& message) {
  const std::size_t rest = message.body.size() % kWordBytes;
  std::uint64_t word = 0;
  if (rest != 0) std::memcpy(&word, message.body.data() + message.body.size() - rest, rest);
  return word | static_cast<std::uint64_t>(message.head.size() + message.body.size()) << 56;
}

OPTIREDUCE_TARGET inline SipState keyed(const SipMessage* messages) {
  std::array<std::uint64_t, kLanes> low, high;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    low[lane] = messages[lane].key.low;
    high[lane] = messages[lane].key.high;
  }
  Word k0, k1;
  std::memcpy(&k0, low.data(), sizeof k0);
  std::memcpy(&k1, high.data(), sizeof k1);
  return {k0 ^ 0x736f'6d65'7073'6575u, k1 ^ 0x646f'7261'6e64'6f6du, k0 ^ 0x6c79'6765'6e65'7261u,
          k1 ^ 0x7465'6462'7974'6573u};  // "somepseudorandomlygeneratedbytes"
}

OPTIREDUCE_TARGET inline Word last_words(const SipMessage* messages) {
  std::array<std::uint64_t, kLanes> last;
  for (std::size_t lane = 0; lane < kLanes; ++lane) last[lane] = last_word(messages[lane]);
  Word word;
  std::memcpy(&word, last.data(), sizeof word);
  return word;
}

/// `messages`: kLanes for each group, equally long in both parts.
template <std::size_t groups>
OPTIREDUCE_TARGET inline void hash_groups(const SipMessage* messages, std::uint64_t* hashes) {
  SipState s[groups];
  Sources heads[groups], bodies[groups];
  Word last[groups];
  for (std::size_t g = 0; g < groups; ++g) {
    const SipMessage* const mine = messages + g * kLanes;
    s[g] = keyed(mine);
    last[g] = last_words(mine);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      heads[g][lane] = mine[lane].head.data();
      bodies[g][lane] = mine[lane].body.data();
    }
  }
  absorb_words(s, heads, messages[0].head.size() / kWordBytes);
  absorb_words(s, bodies, messages[0].body.size() / kWordBytes);
  absorb(s, last);
  for (SipState& group : s) group.v2 ^= 0xffu;
  sip_rounds(s, 4);
  for (std::size_t g = 0; g < groups; ++g) {
    const Word hash = s[g].v0 ^ s[g].v1 ^ s[g].v2 ^ s[g].v3;
    std::memcpy(hashes + g * kLanes, &hash, sizeof hash);
  }
}

/// Idle lanes cost as much as others: the last message fills those that are left.
template <std::size_t groups>
OPTIREDUCE_TARGET inline void hash_run(std::span<const SipMessage> run, std::uint64_t* hashes) {
  if (run.size() == groups * kLanes) return hash_groups<groups>(run.data(), hashes);
  std::array<SipMessage, groups * kLanes> lanes;
  std::array<std::uint64_t, groups * kLanes> all;
  for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = run[std::min(i, run.size() - 1)];
  hash_groups<groups>(lanes.data(), all.data());
  std::copy_n(all.begin(), run.size(), hashes);
}

/// Those from the first on that can be hashed side by side.
inline std::span<const SipMessage> equal_run(std::span<const SipMessage> messages) {
  std::size_t run = 1;
  while (run < 2 * kLanes && run < messages.size() && messages[run].head.size() == messages[0].head.size() &&
         messages[run].body.size() == messages[0].body.size()) {
    ++run;
  }
  return messages.first(run);
}

OPTIREDUCE_TARGET inline void hash_all(std::span<const SipMessage> messages, std::uint64_t* hashes) {
  while (!messages.empty()) {
    const auto run = equal_run(messages);
    if (run.size() <= kLanes / 2) {
      hash_few(run, hashes);
    } else if (run.size() <= kLanes) {
      hash_run<1>(run, hashes);
    } else {
      hash_run<2>(run, hashes);
    }
    messages = messages.subspan(run.size());
    hashes += run.size();
  }
}

}  // namespace
}  // namespace optireduce
