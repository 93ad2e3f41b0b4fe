// SipHash-2-4: the reference's own results, in one piece or two, alone or side by side, on every instruction
// set.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "check.h"
#include "kernels/siphash_variants.h"
#include "sim/random.h"

using namespace optireduce;

namespace {

using Bytes = std::vector<std::byte>;

/// vectors_sip64 of the reference implementation: key 00 01 .. 0f, messages of 0 .. 63 bytes 00 01 02 ...
constexpr std::array<std::uint64_t, 64> kReference = {
    0x726fdb47dd0e0e31, 0x74f839c593dc67fd, 0x0d6c8009d9a94f5a, 0x85676696d7fb7e2d, 0xcf2794e0277187b7,
    0x18765564cd99a68d, 0xcbc9466e58fee3ce, 0xab0200f58b01d137, 0x93f5f5799a932462, 0x9e0082df0ba9e4b0,
    0x7a5dbbc594ddb9f3, 0xf4b32f46226bada7, 0x751e8fbc860ee5fb, 0x14ea5627c0843d90, 0xf723ca908e7af2ee,
    0xa129ca6149be45e5, 0x3f2acc7f57c29bdb, 0x699ae9f52cbe4794, 0x4bc1b3f0968dd39c, 0xbb6dc91da77961bd,
    0xbed65cf21aa2ee98, 0xd0f2cbb02e3b67c7, 0x93536795e3a33e88, 0xa80c038ccd5ccec8, 0xb8ad50c6f649af94,
    0xbce192de8a85b8ea, 0x17d835b85bbb15f3, 0x2f2e6163076bcfad, 0xde4daaaca71dc9a5, 0xa6a2506687956571,
    0xad87a3535c49ef28, 0x32d892fad841c342, 0x7127512f72f27cce, 0xa7f32346f95978e3, 0x12e0b01abb051238,
    0x15e034d40fa197ae, 0x314dffbe0815a3b4, 0x027990f029623981, 0xcadcd4e59ef40c4d, 0x9abfd8766a33735c,
    0x0e3ea96b5304a7d0, 0xad0c42d6fc585992, 0x187306c89bc215a9, 0xd4a60abcf3792b95, 0xf935451de4f21df2,
    0xa9538f0419755787, 0xdb9acddff56ca510, 0xd06c98cd5c0975eb, 0xe612a3cb9ecba951, 0xc766e62cfcadaf96,
    0xee64435a9752fe72, 0xa192d576b245165a, 0x0a8787bf8ecb74b2, 0x81b3e73d20b49b6f, 0x7fa8220ba3b2ecea,
    0x245731c13ca42499, 0xb78dbfaf3a8d83bd, 0xea1ad565322a1a0b, 0x60e61c23a3795013, 0x6606d7e446282b93,
    0x6ca4ecb15c5f91e1, 0x9f626da15c9625f3, 0xe51b38608ef25f57, 0x958a324ceb064572};

/// More than any variant takes at once: twice eight lanes.
constexpr std::size_t kMostCopies = 17;

constexpr SipKey kKey{0x0706'0504'0302'0100u, 0x0f0e'0d0c'0b0a'0908u};

std::vector<SipVariant> variants() {
  std::vector<SipVariant> all{&siphash_plain, static_cast<SipVariant>(&siphash)};
  if (const SipVariant avx2 = find_siphash_avx2()) all.push_back(avx2);
  if (const SipVariant avx512 = find_siphash_avx512()) all.push_back(avx512);
  return all;
}

Bytes counting(std::size_t bytes) {
  Bytes message(bytes);
  for (std::size_t i = 0; i < bytes; ++i) message[i] = static_cast<std::byte>(i & 0xff);
  return message;
}

SipMessage split(const Bytes& message, std::size_t head, const SipKey& key = kKey) {
  const std::span all(message);
  return {key, all.first(head), all.subspan(head)};
}

}  // namespace

TEST(the_reference_vectors_in_one_piece_or_two) {
  for (const SipVariant variant : variants()) {
    for (std::size_t length = 0; length < kReference.size(); ++length) {
      const Bytes message = counting(length);
      for (std::size_t head = 0; head <= length; head += 8) {
        for (std::size_t copies = 1; copies <= kMostCopies; ++copies) {
          const std::vector<SipMessage> messages(copies, split(message, head));
          std::vector<std::uint64_t> hashes(copies + 1, 77);
          variant(messages, hashes.data());
          for (std::size_t i = 0; i < copies; ++i) CHECK_EQ(hashes[i], kReference[length]);
          CHECK_EQ(hashes[copies], 77u);  // nothing behind them is written
        }
      }
    }
  }
}

TEST(one_message_is_as_many) {
  for (std::size_t length = 0; length < kReference.size(); ++length)
    CHECK_EQ(siphash(split(counting(length), 0)), kReference[length]);
}

// Whole blocks, words and bytes behind them, in full and in half-filled lanes; each message has its own
// bytes, place and key.
TEST(packets_of_every_length_and_a_shorter_last) {
  constexpr std::size_t kLongest = 2'000;
  sim::Random random(2);
  Bytes memory(2 * kLongest);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random.next() & 0xff);
  for (std::size_t length = 0; length <= kLongest; ++length) {
    const std::size_t count = 2 + length % (2 * kMostCopies);
    std::vector<SipMessage> messages;
    std::vector<std::uint64_t> expected;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t bytes = i + 1 < count ? length : random.below(length + 1);
      const auto message = std::span(memory).subspan(random.below(kLongest)).first(bytes);
      const std::size_t head = std::min<std::size_t>(48, bytes / 8 * 8);
      messages.push_back({{random.next(), random.next()}, message.first(head), message.subspan(head)});
      expected.push_back(siphash(messages.back()));
    }
    for (const SipVariant variant : variants()) {
      std::vector<std::uint64_t> hashes(count);
      variant(messages, hashes.data());
      CHECK(hashes == expected);
    }
  }
}

// Lanes must not mix: messages, keys and places in memory differ, and lengths change at any time.
TEST(all_instruction_sets_give_equal_bits_on_any_batch) {
  sim::Random random(1);
  for (int round = 0; round < 2'000; ++round) {
    std::vector<Bytes> memory;
    std::vector<SipMessage> messages;
    std::size_t length = random.below(3'000);
    const double change = random.chance(0.5) ? 0.2 : 0.02;  // short runs, and long ones that fill all lanes
    for (std::uint64_t left = 1 + random.below(40); left > 0; --left) {
      if (random.chance(change)) length = random.below(3'000);
      Bytes& bytes = memory.emplace_back(length + 1);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next() & 0xff);
      const auto body = std::span(bytes).subspan(random.below(2)).first(length);  // also at odd addresses
      const std::size_t head = random.chance(0.8) ? std::min<std::size_t>(48, length / 8 * 8) : 0;
      messages.push_back({{random.next(), random.next()}, body.first(head), body.subspan(head)});
    }
    std::vector<std::uint64_t> expected;
    for (const SipMessage& message : messages) expected.push_back(siphash(message));
    for (const SipVariant variant : variants()) {
      std::vector<std::uint64_t> hashes(messages.size());
      variant(messages, hashes.data());
      CHECK(hashes == expected);
    }
  }
}

TEST(every_bit_of_key_and_message_counts) {
  const Bytes message = counting(61);
  const std::uint64_t hash = siphash(split(message, 48));
  for (std::size_t bit = 0; bit < message.size() * 8; ++bit) {
    Bytes other = message;
    other[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    CHECK(siphash(split(other, 48)) != hash);
  }
  for (int bit = 0; bit < 64; ++bit) {
    CHECK(siphash(split(message, 48, {kKey.low ^ std::uint64_t{1} << bit, kKey.high})) != hash);
    CHECK(siphash(split(message, 48, {kKey.low, kKey.high ^ std::uint64_t{1} << bit})) != hash);
  }
}

RUN_TESTS()
