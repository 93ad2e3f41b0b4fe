// Narrow forms of float32, bfloat16 and blocks of 8-bit numbers: what they keep of float32 values, that they
// are right on average, and that all instruction sets give the same bits.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "check.h"
#include "kernels/bfloat16.h"
#include "kernels/finite.h"
#include "kernels/int8_block.h"
#include "kernels/narrow_variants.h"
#include "kernels/reduce.h"

using namespace optireduce;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

std::vector<std::byte> encode(std::span<const float> values, std::uint64_t seed) {
  std::vector<std::byte> blocks(int8_blocks(values.size()) * kInt8BlockBytes, std::byte{0xee});
  int8_encode(values.data(), values.size(), seed, blocks.data());
  return blocks;
}

std::vector<float> decode(std::span<const std::byte> blocks, std::size_t count) {
  std::vector<float> values(count, -1.0F);
  int8_decode(blocks.data(), count, values.data());
  return values;
}

/// The step between neighbouring numbers of the block that holds this value: its scale is rounded up by less
/// than 1/128.
float step_of(std::span<const float> values, std::size_t index) {
  const std::size_t first = index / kInt8BlockValues * kInt8BlockValues;
  float largest = 0;
  for (std::size_t i = first; i < std::min(first + kInt8BlockValues, values.size()); ++i)
    largest = std::max(largest, std::abs(values[i]));
  return largest / 127 * (1 + 1 / 128.0F);
}

TEST(what_is_decoded_is_within_one_step_at_every_length) {
  for (std::size_t count = 0; count <= 3 * kInt8BlockValues + 1; ++count) {
    const std::vector<float> values = random_values(count, static_cast<std::uint32_t>(count));
    const std::vector<float> decoded = decode(encode(values, 7), count);
    for (std::size_t i = 0; i < count; ++i) CHECK(std::abs(decoded[i] - values[i]) <= step_of(values, i));
  }
}

TEST(padding_is_zero_and_nothing_is_written_behind_the_last_block) {
  const std::vector<float> values = random_values(kInt8BlockValues + 1, 1);
  std::vector<std::byte> blocks(3 * kInt8BlockBytes, std::byte{0xee});
  int8_encode(values.data(), values.size(), 1, blocks.data());
  for (std::size_t i = kInt8BlockBytes + 3; i < 2 * kInt8BlockBytes; ++i) CHECK(blocks[i] == std::byte{0});
  for (std::size_t i = 2 * kInt8BlockBytes; i < blocks.size(); ++i) CHECK(blocks[i] == std::byte{0xee});
}

TEST(the_largest_value_and_zero_are_not_rounded_away) {
  for (const float largest : {1.0F, -3.14F, 1e30F, 1e-30F, 127.0F, 3.4e38F}) {
    const std::vector<float> values = {largest, 0.0F};
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      const std::vector<float> decoded = decode(encode(values, seed), 2);
      CHECK(std::abs(decoded[0] / largest - 1) < 1 / 64.0F);
      CHECK_EQ(decoded[1], 0.0F);
    }
  }
}

TEST(values_too_small_for_a_scale_become_zeros) {
  const std::vector<float> values = {1e-38F, -1e-40F, 0.0F};
  for (const float value : decode(encode(values, 1), 3)) CHECK_EQ(value, 0.0F);
}

TEST(a_block_with_what_is_no_number_becomes_nans_and_others_do_not) {
  for (const float bad : {kInfinity, -kInfinity, kNan}) {
    std::vector<float> values = random_values(2 * kInt8BlockValues, 3);
    values[5] = bad;
    const std::vector<std::byte> blocks = encode(values, 1);
    const std::vector<float> decoded = decode(blocks, values.size());
    CHECK(std::isnan(decoded[5]));
    CHECK(std::isnan(decoded[6]));
    CHECK(std::isfinite(decoded[kInt8BlockValues]));
    CHECK(!all_finite(DType::Int8Block, blocks.data(), 2));
    CHECK(all_finite(DType::Int8Block, blocks.data() + kInt8BlockBytes, 1));
  }
}

TEST(rounding_is_right_on_average) {
  const std::vector<float> values = random_values(kInt8BlockValues, 11);
  constexpr int kRounds = 20'000;
  std::vector<double> sums(values.size(), 0.0);
  for (std::uint64_t seed = 0; seed < kRounds; ++seed) {
    const std::vector<float> decoded = decode(encode(values, seed), values.size());
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += decoded[i];
  }
  const double step = step_of(values, 0);
  for (std::size_t i = 0; i < sums.size(); ++i)  // one step's standard deviation is at most half of it
    CHECK(std::abs(sums[i] / kRounds - values[i]) < 5 * 0.5 * step / std::sqrt(kRounds));
}

TEST(the_same_seed_gives_the_same_bits_and_another_seed_others) {
  const std::vector<float> values = random_values(1000, 5);
  CHECK(encode(values, 9) == encode(values, 9));
  CHECK(encode(values, 9) != encode(values, 10));
}

TEST(a_mean_is_within_one_step_and_right_on_average) {
  constexpr int kRounds = 20'000;
  std::vector<double> errors(kInt8BlockValues, 0.0);
  double step = 0;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    std::vector<std::vector<std::byte>> inputs;
    std::vector<double> exact(kInt8BlockValues, 0.0);
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      inputs.push_back(encode(random_values(kInt8BlockValues, round * 3 + rank), rank));
      const std::vector<float> given = decode(inputs.back(), kInt8BlockValues);
      for (std::size_t i = 0; i < exact.size(); ++i) exact[i] += given[i] / 3.0;
    }
    const std::array<const std::byte*, 3> pointers{inputs[0].data(), inputs[1].data(), inputs[2].data()};
    std::vector<std::byte> out(kInt8BlockBytes);
    reduce(DType::Int8Block, pointers, 3.0, out.data(), 1);
    const std::vector<float> found = decode(out, kInt8BlockValues);
    const std::vector<float> as_floats(exact.begin(), exact.end());
    for (std::size_t i = 0; i < exact.size(); ++i) {
      CHECK(std::abs(found[i] - exact[i]) <= step_of(as_floats, i) * 1.0001);
      errors[i] += found[i] - exact[i];
    }
    step = std::max<double>(step, step_of(as_floats, 0));
  }
  for (const double error : errors) CHECK(std::abs(error / kRounds) < 5 * 0.5 * step / std::sqrt(kRounds));
}

TEST(the_output_may_be_an_input_and_one_alone_is_copied) {
  const std::vector<float> values = random_values(500, 6);
  std::vector<std::byte> first = encode(values, 1), second = encode(values, 2);
  const std::size_t blocks = int8_blocks(values.size());
  std::vector<std::byte> apart(first.size());
  const std::array<const std::byte*, 2> both{first.data(), second.data()};
  reduce(DType::Int8Block, both, 2.0, apart.data(), blocks);
  reduce(DType::Int8Block, both, 2.0, first.data(), blocks);
  CHECK(first == apart);
  const std::array<const std::byte*, 1> alone{second.data()};
  reduce(DType::Int8Block, alone, 1.0, apart.data(), blocks);
  CHECK(apart == second);
}

TEST(a_block_is_reduced_the_same_alone_and_with_others) {
  const std::vector<float> values = random_values(3 * kInt8BlockValues, 12);
  const std::vector<std::byte> first = encode(values, 1), second = encode(values, 2);
  std::vector<std::byte> together(first.size()), alone(first.size());
  const std::array<const std::byte*, 2> both{first.data(), second.data()};
  reduce(DType::Int8Block, both, 2.0, together.data(), 3);
  for (std::size_t at = 0; at < first.size(); at += kInt8BlockBytes) {
    const std::array<const std::byte*, 2> one{first.data() + at, second.data() + at};
    reduce(DType::Int8Block, one, 2.0, alone.data() + at, 1);
  }
  CHECK(together == alone);
}

TEST(a_nan_of_one_input_is_one_of_the_result) {
  std::vector<float> values = random_values(kInt8BlockValues, 8);
  const std::vector<std::byte> good = encode(values, 1);
  values[0] = kNan;
  const std::vector<std::byte> bad = encode(values, 2);
  const std::array<const std::byte*, 2> both{good.data(), bad.data()};
  std::vector<std::byte> out(kInt8BlockBytes);
  reduce(DType::Int8Block, both, 2.0, out.data(), 1);
  CHECK(!all_finite(DType::Int8Block, out.data(), 1));
}

std::byte* bytes_of(std::vector<std::uint16_t>& halves) {
  return reinterpret_cast<std::byte*>(halves.data());
}

/// Rounding to nearest, halves to even, done with integers.
std::uint16_t rounded(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t low = bits & 0xffffu, high = bits >> 16;
  const bool up = low > 0x8000u || (low == 0x8000u && (high & 1u) != 0);
  return static_cast<std::uint16_t>(high + (up ? 1u : 0u));
}

TEST(bfloat16_rounds_to_nearest_even_and_keeps_what_is_no_number) {
  std::vector<float> values = random_values(1000, 4);
  for (const std::uint32_t bits : {0x3f80'8000u, 0x3f81'8000u, 0x3f80'8001u, 0x3f80'7fffu, 0x7f7f'ffffu, 0u,
                                   0x8000'0000u, 0x0000'0001u, 0x7f80'0000u, 0xff80'0000u})
    values.push_back(std::bit_cast<float>(bits));
  std::vector<std::uint16_t> halves(values.size());
  bfloat16_encode(values.data(), values.size(), bytes_of(halves));
  for (std::size_t i = 0; i < values.size(); ++i) CHECK_EQ(halves[i], rounded(values[i]));
  std::vector<float> widened(values.size());
  bfloat16_decode(bytes_of(halves), halves.size(), widened.data());
  for (std::size_t i = 0; i < values.size(); ++i)
    CHECK_EQ(std::bit_cast<std::uint32_t>(widened[i]), std::uint32_t{halves[i]} << 16);
  for (const std::uint32_t bits : {0x7f80'0001u, 0xffff'ffffu, 0x7fff'8000u}) {
    const float nan = std::bit_cast<float>(bits);
    bfloat16_encode(&nan, 1, bytes_of(halves));
    bfloat16_decode(bytes_of(halves), 1, widened.data());
    CHECK(std::isnan(widened[0]));
  }
}

TEST(a_mean_onto_own_values_rounds_once_and_leaves_them_as_they_travel) {
  for (const std::size_t count : {1u, 7u, 61u, 62u, 63u, 511u, 512u, 513u, 1500u}) {
    const std::vector<float> own = random_values(count, 1), other = random_values(count, 2);
    std::vector<float> exact(count);

    std::vector<std::byte> given = encode(other, 5);
    std::vector<float> given_values = decode(given, count), result = own;
    std::vector<std::byte> blocks(given.size() + 1, std::byte{0xee});
    const std::array<const std::byte*, 1> inputs{given.data()};
    int8_reduce_onto(result.data(), count, inputs, 2.0, blocks.data());
    for (std::size_t i = 0; i < count; ++i) exact[i] = (own[i] + given_values[i]) / 2;
    for (std::size_t i = 0; i < count; ++i)
      CHECK(std::abs(result[i] - exact[i]) <= step_of(exact, i) * 1.0001F);
    CHECK(result == decode(blocks, count));
    CHECK(blocks.back() == std::byte{0xee});

    std::vector<std::uint16_t> halves(count), out(count + 1, 0xeeee);
    bfloat16_encode(other.data(), count, bytes_of(halves));
    std::vector<std::byte> anywhere(1 + 2 * count);
    std::memcpy(anywhere.data() + 1, halves.data(), 2 * count);
    bfloat16_decode(anywhere.data() + 1, count, given_values.data());
    result = own;
    const std::array<const std::byte*, 2> twice{anywhere.data() + 1, anywhere.data() + 1};
    bfloat16_reduce_onto(result.data(), count, twice, 3.0, bytes_of(out));
    for (std::size_t i = 0; i < count; ++i) {
      CHECK_EQ(out[i], rounded((own[i] + given_values[i] + given_values[i]) / 3.0F));
      CHECK_EQ(std::bit_cast<std::uint32_t>(result[i]), std::uint32_t{out[i]} << 16);
    }
    CHECK_EQ(out.back(), 0xeeeeu);
  }
}

TEST(a_mean_onto_own_values_is_right_on_average) {
  constexpr int kRounds = 20'000;
  double error = 0, largest = 0;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    std::vector<float> values = random_values(kInt8BlockValues, round);
    const std::vector<float> own = values;
    const std::vector<std::byte> other = encode(random_values(kInt8BlockValues, round + kRounds), round);
    const std::vector<float> given = decode(other, kInt8BlockValues);
    std::vector<std::byte> blocks(kInt8BlockBytes);
    const std::array<const std::byte*, 1> inputs{other.data()};
    int8_reduce_onto(values.data(), values.size(), inputs, 2.0, blocks.data());
    for (std::size_t i = 0; i < values.size(); ++i) error += values[i] - (own[i] + given[i]) / 2;
    largest = std::max<double>(largest, step_of(values, 0));
  }
  CHECK(std::abs(error / kRounds / kInt8BlockValues) < 5 * 0.5 * largest / std::sqrt(kRounds * 62.0));
}

TEST(own_values_that_are_no_numbers_stay_none) {
  for (const std::uint32_t bits : {0x7f80'0000u, 0x7f80'0001u, 0xffff'ffffu, 0x7fff'8000u}) {
    std::vector<float> values(3, std::bit_cast<float>(bits)), blocked = values;
    std::vector<std::uint16_t> halves(3);
    bfloat16_reduce_onto(values.data(), 3, {}, 2.0, bytes_of(halves));
    CHECK_EQ(std::isinf(values[0]), bits == 0x7f80'0000u);
    CHECK_EQ(std::isnan(values[0]), bits != 0x7f80'0000u);
    std::vector<std::byte> blocks(kInt8BlockBytes);
    int8_reduce_onto(blocked.data(), 3, {}, 2.0, blocks.data());
    CHECK(std::isnan(blocked[0]) && !all_finite(DType::Int8Block, blocks.data(), 1));
  }
}

TEST(all_instruction_sets_give_the_same_bits) {
  const NarrowVariant* const fast = find_narrow_avx2();
  if (fast == nullptr) return;
  for (const std::size_t count : {1u, 61u, 62u, 63u, 1000u, 12'345u}) {
    std::vector<float> values = random_values(count, static_cast<std::uint32_t>(count));
    values[count / 2] *= 1e20F;
    std::array<std::vector<std::byte>, 2> blocks;
    std::array<std::vector<float>, 2> decoded;
    std::array<std::vector<std::byte>, 2> reduced;
    for (std::size_t i = 0; i < 2; ++i) {
      const NarrowVariant& variant = i == 0 ? narrow_plain() : *fast;
      blocks[i].resize(int8_blocks(count) * kInt8BlockBytes);
      decoded[i].resize(count);
      reduced[i].resize(blocks[i].size());
      variant.int8_encode(values.data(), count, 3, blocks[i].data());
      variant.int8_decode(blocks[i].data(), count, decoded[i].data());
      const std::array<const std::byte*, 2> inputs{blocks[i].data(), blocks[i].data()};
      variant.int8_reduce(inputs, 3.0F, reduced[i].data(), int8_blocks(count));
    }
    CHECK(blocks[0] == blocks[1]);
    CHECK(decoded[0] == decoded[1]);
    CHECK(reduced[0] == reduced[1]);
    std::array<std::vector<std::uint16_t>, 2> halves{std::vector<std::uint16_t>(count),
                                                     std::vector<std::uint16_t>(count)};
    narrow_plain().bfloat16_encode(values.data(), count, bytes_of(halves[0]));
    fast->bfloat16_encode(values.data(), count, bytes_of(halves[1]));
    CHECK(halves[0] == halves[1]);
    const std::array<const std::byte*, 2> inputs{blocks[0].data(), blocks[1].data()};
    const std::array<const std::byte*, 1> half{bytes_of(halves[0])};
    std::array<std::vector<float>, 2> onto{values, values}, onto_halves{values, values};
    for (std::size_t i = 0; i < 2; ++i) {
      const NarrowVariant& variant = i == 0 ? narrow_plain() : *fast;
      variant.int8_reduce_onto(onto[i].data(), count, inputs, 3.0F, reduced[i].data());
      std::vector<std::uint16_t> out(count);
      variant.bfloat16_reduce_onto(onto_halves[i].data(), count, half, 3.0F, bytes_of(out));
    }
    CHECK(onto[0] == onto[1]);
    CHECK(reduced[0] == reduced[1]);
    CHECK(onto_halves[0] == onto_halves[1]);
  }
}

}  // namespace

RUN_TESTS()
