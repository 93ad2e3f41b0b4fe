// The loops of int8_block.h and bfloat16.h, written once for all instruction sets, in vectors of eight lanes.
//
// A block is handled as eight vectors of eight numbers, of which the first two are its scale: blocks and
// values are then read and written in place, without a copy in between. Blocks are rounded in groups, because
// most of the time of a single one is spent waiting for its largest value and two divisions.
//
// A .cpp for an instruction set defines OPTIREDUCE_TARGET (the function attribute that enables it), includes
// narrow_lanes.h, and defines, before it includes this file, what compilers do not do well on their own:
//   void store_numbers(const Whole& numbers, std::byte* out)    64 numbers from 32 to 8 bits, clamped
//   void load_numbers(const std::byte* source, I32x8& numbers)  8 numbers from 8 to 32 bits
//   void widen_some(const U16x8& halves, F32x8& values)         8 bfloat16 to float32
//   void largest_of_rows(const Rows& rows, U32x8& largest)      of each row's numbers, all below 2^31
// Everything here has internal linkage: code for one instruction set must never be linked for another's.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/int8_block.h"
#include "kernels/narrow_lanes.h"
#include "kernels/narrow_variants.h"

namespace optireduce {
namespace {

constexpr std::uint32_t kSignless = 0x7fff'ffffu;
constexpr std::uint32_t kNotFinite = 0x7f80'0000u;   // this magnitude and above: infinity, NaN
constexpr std::uint32_t kNegligible = 0x0d80'0000u;  // 2^-100: below it kOne / scale would overflow
constexpr std::uint32_t kNanScale = 0x7fc0'0000u;
constexpr float kLargest = 127.0F;
constexpr int kFraction = 20;  // bits of a number behind the point before it is rounded
constexpr float kOne = 0x1p20F;
constexpr std::size_t kScaleLanes = kPadded - kInt8BlockValues;
constexpr std::size_t kHalfBytes = sizeof(std::uint16_t);
constexpr U32x8 kNoScale{0, 0, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u};

/// splitmix64, as in proto/mix.h: kernels know nothing of proto.
OPTIREDUCE_TARGET inline std::uint64_t scramble(std::uint64_t z) {
  z += 0x9e37'79b9'7f4a'7c15u;
  z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9u;
  z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11ebu;
  return z ^ (z >> 31);
}

/// Eight xorshift generators (Marsaglia 2003) side by side, far apart by murmur3's last step.
struct Dice {
  U32x8 state;

  OPTIREDUCE_TARGET explicit Dice(std::uint64_t seed) {
    state = U32x8{0, 1, 2, 3, 4, 5, 6, 7} * 0x9e37'79b9u + static_cast<std::uint32_t>(seed);
    state = (state ^ (state >> 16)) * 0x85eb'ca6bu;
    state = (state ^ (state >> 13)) * 0xc2b2'ae35u;
    state = (state ^ (state >> 16) ^ static_cast<std::uint32_t>(seed >> 32)) | 1u;  // zero would stay zero
  }

  OPTIREDUCE_TARGET void roll() {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
  }

  /// Adds numbers between 0 and kOne, multiples of 2^-16 of it plus half of that: two from each roll.
  OPTIREDUCE_TARGET void add_first(I32x8& to) const { to += (I32x8)(((state & 0xffffu) << 4) | 8u); }
  OPTIREDUCE_TARGET void add_second(I32x8& to) const { to += (I32x8)(((state >> 16) << 4) | 8u); }
};

OPTIREDUCE_TARGET inline float scale_of(const std::byte* block) {
  std::uint16_t bits;
  std::memcpy(&bits, block, sizeof bits);
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

OPTIREDUCE_TARGET inline void set_scale(std::byte* block, std::uint32_t scale) {
  const auto bits = static_cast<std::uint16_t>(scale >> 16);
  std::memcpy(block, &bits, sizeof bits);
}

/// Blocks that are rounded together.
struct Group {
  std::array<Values, kLanes> values;
  Rows largest{};  // magnitudes of each block's values, lane by lane
  std::array<std::uint64_t, kLanes> seeds;
  std::size_t count = 0;

  /// The block's values are in place; what lies in the lanes of its scale does not matter.
  OPTIREDUCE_TARGET void add(std::uint64_t seed) {
    Values& block = values[count];
    block[0] = (F32x8)((U32x8)block[0] & kNoScale);
    I32x8 most{};
    for (const F32x8& value : block) {
      const auto magnitude = (I32x8)((U32x8)value & kSignless);
      most = magnitude > most ? magnitude : most;
    }
    largest[count] = (U32x8)most;
    seeds[count++] = seed;
  }
};

/// For each block its scale, as the bits of a float32, and what a value is multiplied with to count in
/// kOne-th parts of it.
OPTIREDUCE_TARGET inline void find_scales(const U32x8& largest, U32x8& scales, F32x8& factors) {
  // Rounded up to a bfloat16, so that the largest value is at most 127 of it.
  const auto exact = (U32x8)((F32x8)largest / kLargest);
  const U32x8 scale = (exact + 0xffffu) & 0xffff'0000u;
  const auto nothing = (U32x8)((I32x8)largest < static_cast<std::int32_t>(kNegligible));
  const auto not_finite = (U32x8)((I32x8)largest >= static_cast<std::int32_t>(kNotFinite));
  scales = (scale & ~nothing & ~not_finite) | (kNanScale & not_finite);
  factors = (F32x8)((U32x8)(kOne / (F32x8)scale) & ~nothing);
}

/// Up or down at random: adding a fraction and cutting off what is behind the point.
OPTIREDUCE_TARGET inline void round_block(const Values& values, float factor, Dice dice, std::byte* block) {
  Whole rounded;
  for (std::size_t i = 0; i < values.size(); i += 2) {
    dice.roll();
    rounded[i] = __builtin_convertvector(values[i] * factor, I32x8);
    rounded[i + 1] = __builtin_convertvector(values[i + 1] * factor, I32x8);
    dice.add_first(rounded[i]);
    dice.add_second(rounded[i + 1]);
    rounded[i] >>= kFraction;
    rounded[i + 1] >>= kFraction;
  }
  store_numbers(rounded, block);
}

OPTIREDUCE_TARGET inline void round_group(Group& group, std::byte* blocks) {
  U32x8 largest, scales;
  F32x8 factors;
  largest_of_rows(group.largest, largest);
  find_scales(largest, scales, factors);
  for (std::size_t i = 0; i < group.count; ++i, blocks += kInt8BlockBytes) {
    if (scales[i] == kNanScale) {
      std::memset(blocks, 0, kInt8BlockBytes);
    } else {
      round_block(group.values[i], factors[i], Dice(group.seeds[i]), blocks);
    }
    set_scale(blocks, scales[i]);
  }
  group.count = 0;
}

/// Also adds to the lanes of the scale, whatever that gives.
OPTIREDUCE_TARGET inline void add_block(const std::byte* block, Values& sums) {
  const float scale = scale_of(block);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    I32x8 whole;
    load_numbers(block + i * kLanes, whole);
    sums[i] += scale * __builtin_convertvector(whole, F32x8);
  }
}

OPTIREDUCE_TARGET inline void load(const float* from, Values& block) {
  const auto* vectors = reinterpret_cast<const Anywhere*>(from);
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = vectors[i].lanes;
}

OPTIREDUCE_TARGET inline void store(const Values& block, float* to) {
  auto* vectors = reinterpret_cast<Anywhere*>(to);
  for (std::size_t i = 0; i < block.size(); ++i) vectors[i].lanes = block[i];
}

/// The values of the block that begins there. Before the first one there may be no memory.
OPTIREDUCE_TARGET inline void load_values(const float* values, std::size_t count, bool first, Values& block) {
  if (!first && count >= kInt8BlockValues) return load(values - kScaleLanes, block);
  std::array<float, kPadded> padded{};
  std::memcpy(padded.data() + kScaleLanes, values, std::min(count, kInt8BlockValues) * sizeof(float));
  load(padded.data(), block);
}

OPTIREDUCE_TARGET void encode_all(const float* values, std::size_t count, std::uint64_t seed,
                                  std::byte* blocks) {
  Group group;
  for (std::size_t done = 0; done < count;) {
    for (; done < count && group.count < kLanes; done += kInt8BlockValues) {
      load_values(values + done, count - done, done == 0, group.values[group.count]);
      group.add(scramble(seed ^ scramble(done)));
    }
    const std::size_t rounded = group.count;
    round_group(group, blocks);
    blocks += rounded * kInt8BlockBytes;
  }
}

OPTIREDUCE_TARGET inline void decode_apart(const std::byte* block, std::size_t count, float* values) {
  Values decoded{};
  add_block(block, decoded);
  std::array<float, kPadded> padded;
  store(decoded, padded.data());
  std::memcpy(values, padded.data() + kScaleLanes, count * sizeof(float));
}

/// From the end: what the lanes of a scale write over are values of the block before, which comes next.
OPTIREDUCE_TARGET void decode_all(const std::byte* blocks, std::size_t count, float* values) {
  std::size_t block = count / kInt8BlockValues;
  if (const std::size_t rest = count % kInt8BlockValues; rest != 0)
    decode_apart(blocks + block * kInt8BlockBytes, rest, values + block * kInt8BlockValues);
  for (; block > 1; --block) {
    Values decoded{};
    add_block(blocks + (block - 1) * kInt8BlockBytes, decoded);
    store(decoded, values + (block - 1) * kInt8BlockValues - kScaleLanes);
  }
  if (block == 1) decode_apart(blocks, kInt8BlockValues, values);
}

/// From what is rounded: the same blocks give the same bits, whoever adds them, with however many others.
OPTIREDUCE_TARGET inline std::uint64_t seed_from(std::span<const std::byte* const> inputs,
                                                 std::size_t offset) {
  std::uint64_t seed = 0;
  for (const std::byte* input : inputs) {
    std::uint64_t first, last;
    std::memcpy(&first, input + offset, sizeof first);
    std::memcpy(&last, input + offset + kInt8BlockBytes - sizeof last, sizeof last);
    seed = scramble(seed ^ first ^ std::rotl(last, 29));
  }
  return seed;
}

OPTIREDUCE_TARGET void reduce_all(std::span<const std::byte* const> inputs, float divisor, std::byte* out,
                                  std::size_t blocks) {
  const float share = 1.0F / divisor;
  Group group;
  for (std::size_t done = 0; done < blocks;) {
    const std::size_t begin = done;
    for (; done < blocks && group.count < kLanes; ++done) {
      Values& sums = group.values[group.count];
      sums = {};
      for (const std::byte* input : inputs) add_block(input + done * kInt8BlockBytes, sums);
      for (F32x8& sum : sums) sum *= share;
      group.add(seed_from(inputs, done * kInt8BlockBytes));
    }
    round_group(group, out + begin * kInt8BlockBytes);
  }
}

/// From the values that are rounded, all of them: what is in a float32 differs from one operation to the next
/// where a few numbers of 8 bits may not. (Rotations and exclusive or: a multiplication would take longer
/// than all else that is done to a vector.)
OPTIREDUCE_TARGET inline std::uint64_t seed_of(const Values& block) {
  U32x8 mixed{};
  for (const F32x8& value : block) mixed = ((mixed << 7) | (mixed >> 25)) ^ (U32x8)value;
  std::array<std::uint64_t, kLanes / 2> words;
  std::memcpy(words.data(), &mixed, sizeof mixed);
  return scramble(scramble(words[0] ^ std::rotl(words[1], 29)) ^ words[2] ^ std::rotl(words[3], 41));
}

/// A group's results are widened as soon as they are rounded: what they replace has just been read.
OPTIREDUCE_TARGET void reduce_onto(float* own, std::size_t count, std::span<const std::byte* const> inputs,
                                   float divisor, std::byte* blocks) {
  const float share = 1.0F / divisor;
  Group group;
  for (std::size_t done = 0; done < count;) {
    const std::size_t begin = done;
    for (; done < count && group.count < kLanes; done += kInt8BlockValues) {
      Values& sums = group.values[group.count];
      load_values(own + done, count - done, done == 0, sums);
      const std::size_t offset = done / kInt8BlockValues * kInt8BlockBytes;
      for (const std::byte* input : inputs) add_block(input + offset, sums);
      for (F32x8& sum : sums) sum *= share;
      sums[0] = (F32x8)((U32x8)sums[0] & kNoScale);
      group.add(seed_of(sums));
    }
    std::byte* const out = blocks + begin / kInt8BlockValues * kInt8BlockBytes;
    round_group(group, out);
    decode_all(out, std::min(done, count) - begin, own + begin);
  }
}

/// Adding just under half a unit, and the last unit for halves to go to even, carries into the upper half.
/// What is no number stays none: rounding could carry it to an infinity, or to zero.
/// The values become what the halves are.
OPTIREDUCE_TARGET inline void halve_some(F32x8& values, U16x8& halves) {
  const auto bits = (U32x8)values;
  const U32x8 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const U32x8 quiet = bits | 0x0040'0000u;
  const auto no_number = (U32x8)((I32x8)(bits & kSignless) > static_cast<std::int32_t>(kNotFinite));
  const U32x8 upper = (quiet & no_number) | (rounded & ~no_number);
  halves = __builtin_convertvector(upper >> 16, U16x8);
  values = (F32x8)(upper & 0xffff'0000u);
}

/// The last values of a piece, fewer than a vector has.
struct Rest {
  F32x8 values{};
  U16x8 halves{};
  std::size_t count;

  OPTIREDUCE_TARGET void load(const float* from) { std::memcpy(&values, from, count * sizeof(float)); }
  OPTIREDUCE_TARGET void load(const std::byte* from) { std::memcpy(&halves, from, count * kHalfBytes); }
  OPTIREDUCE_TARGET void store(float* to) const { std::memcpy(to, &values, count * sizeof(float)); }
  OPTIREDUCE_TARGET void store(std::byte* to) const { std::memcpy(to, &halves, count * kHalfBytes); }
};

OPTIREDUCE_TARGET void halve(const float* values, std::size_t count, std::byte* halves) {
  std::size_t done = 0;
  U16x8 some;
  for (; done + kLanes <= count; done += kLanes) {
    F32x8 wide = reinterpret_cast<const Anywhere*>(values + done)->lanes;
    halve_some(wide, some);
    reinterpret_cast<HalvesAnywhere*>(halves + done * kHalfBytes)->lanes = some;
  }
  if (done == count) return;
  Rest rest{.count = count - done};
  rest.load(values + done);
  halve_some(rest.values, rest.halves);
  rest.store(halves + done * kHalfBytes);
}

OPTIREDUCE_TARGET void double_up(const std::byte* halves, std::size_t count, float* values) {
  std::size_t done = 0;
  F32x8 wide;
  for (; done + kLanes <= count; done += kLanes) {
    const U16x8 some = reinterpret_cast<const HalvesAnywhere*>(halves + done * kHalfBytes)->lanes;
    widen_some(some, wide);
    reinterpret_cast<Anywhere*>(values + done)->lanes = wide;
  }
  if (done == count) return;
  Rest rest{.count = count - done};
  rest.load(halves + done * kHalfBytes);
  widen_some(rest.halves, rest.values);
  rest.store(values + done);
}

OPTIREDUCE_TARGET void add_onto(float* own, std::size_t count, std::span<const std::byte* const> inputs,
                                float divisor, std::byte* halves) {
  std::size_t done = 0;
  F32x8 sums, more;
  U16x8 some;
  for (; done + kLanes <= count; done += kLanes) {
    auto& mine = *reinterpret_cast<Anywhere*>(own + done);
    sums = mine.lanes;
    for (const std::byte* input : inputs) {
      const U16x8 theirs = reinterpret_cast<const HalvesAnywhere*>(input + done * kHalfBytes)->lanes;
      widen_some(theirs, more);
      sums += more;
    }
    sums /= divisor;
    halve_some(sums, some);
    reinterpret_cast<HalvesAnywhere*>(halves + done * kHalfBytes)->lanes = some;
    mine.lanes = sums;
  }
  if (done == count) return;
  Rest rest{.count = count - done};
  rest.load(own + done);
  for (const std::byte* input : inputs) {
    rest.load(input + done * kHalfBytes);
    widen_some(rest.halves, more);
    rest.values += more;
  }
  rest.values /= divisor;
  halve_some(rest.values, rest.halves);
  rest.store(own + done);
  rest.store(halves + done * kHalfBytes);
}

constexpr NarrowVariant kVariant{&encode_all, &decode_all, &reduce_all, &reduce_onto,
                                 &halve,      &double_up,  &add_onto};

}  // namespace
}  // namespace optireduce
