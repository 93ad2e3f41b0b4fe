// reduce() and copy_streaming() against a slow reference that shares no code with them: sums in the
// documented order, conversions by arithmetic on doubles instead of by bits. Results are compared bit by bit
// (a NaN equals any NaN).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/reduce.h"
#include "kernels/reduce_variants.h"

using namespace optireduce;

namespace {

using Bits = std::uint64_t;
using Bytes = std::vector<std::byte>;

constexpr DType kDTypes[] = {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16};

// ---- Reference: any IEEE format with at most 16 bits, by the definition of its values.

struct SmallFormat {
  int mantissa_bits;
  int lowest_exponent;  // of the normal numbers; the largest one is 1 - lowest_exponent
};

constexpr SmallFormat kBFloat16{7, -126};
constexpr SmallFormat kFloat16{10, -14};

double decode_small(SmallFormat format, Bits bits) {
  const int mantissa = static_cast<int>(bits & ((1U << format.mantissa_bits) - 1));
  const int exponent_field = static_cast<int>((bits & 0x7fff) >> format.mantissa_bits);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent_field == (0x7fff >> format.mantissa_bits)) {
    return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  const int implicit_one = exponent_field == 0 ? 0 : 1 << format.mantissa_bits;
  const int exponent = std::max(exponent_field, 1) - 1 + format.lowest_exponent;
  return sign * std::ldexp(mantissa + implicit_one, exponent - format.mantissa_bits);
}

Bits encode_small(SmallFormat format, double value) {
  const Bits sign = std::signbit(value) ? 0x8000 : 0;
  const Bits infinity = (0x7fff >> format.mantissa_bits) << format.mantissa_bits;
  if (std::isnan(value)) return infinity + 1;
  const double magnitude = std::fabs(value);
  if (magnitude == 0.0) return sign;
  if (std::isinf(magnitude)) return sign | infinity;
  // nearbyint rounds halves to even; the scaling by powers of two is exact.
  const int exponent = std::max(std::ilogb(magnitude), format.lowest_exponent);
  const auto units =
      static_cast<Bits>(std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent)));
  // Consecutive numbers have consecutive bits, so that rounding up to the next binade, or to infinity, just
  // adds.
  const auto binade = static_cast<Bits>(exponent - format.lowest_exponent);
  return sign | std::min((binade << format.mantissa_bits) + units, infinity);
}

double decode(DType dtype, Bits bits) {
  switch (dtype) {
    case DType::Float32:
      return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    case DType::Float64:
      return std::bit_cast<double>(bits);
    case DType::BFloat16:
      return decode_small(kBFloat16, bits);
    case DType::Float16:
      return decode_small(kFloat16, bits);
    case DType::Int8Block:  // test_narrow.cpp
      break;
  }
  return 0.0;
}

Bits encode(DType dtype, double value) {
  switch (dtype) {
    case DType::Float32:
      return std::bit_cast<std::uint32_t>(static_cast<float>(value));
    case DType::Float64:
      return std::bit_cast<Bits>(value);
    case DType::BFloat16:
      return encode_small(kBFloat16, value);
    case DType::Float16:
      return encode_small(kFloat16, value);
    case DType::Int8Block:
      break;
  }
  return 0;
}

template <class Accumulator>
Bits reference_in(DType dtype, std::span<const Bits> column, double divisor) {
  auto sum = static_cast<Accumulator>(decode(dtype, column[0]));
  for (const Bits bits : column.subspan(1)) sum += static_cast<Accumulator>(decode(dtype, bits));
  return encode(dtype, static_cast<double>(sum / static_cast<Accumulator>(divisor)));
}

Bits reference(DType dtype, std::span<const Bits> column, double divisor) {
  return dtype == DType::Float64 ? reference_in<double>(dtype, column, divisor)
                                 : reference_in<float>(dtype, column, divisor);
}

bool same(DType dtype, Bits a, Bits b) {
  return a == b || (std::isnan(decode(dtype, a)) && std::isnan(decode(dtype, b)));
}

// ---- Buffers: each on its own heap block with nothing to spare, so that a sanitizer sees any access
// outside.

class Buffer {
 public:
  Buffer(DType dtype, std::size_t elements, std::size_t misalignment)
      : dtype_(dtype), misalignment_(misalignment), bytes_(misalignment + elements * size_of(dtype)) {}

  std::byte* data() { return bytes_.data() + misalignment_; }

  Bits get(std::size_t index) const {
    // Little-endian, as every platform the project runs on.
    Bits bits = 0;
    std::memcpy(&bits, bytes_.data() + misalignment_ + index * size_of(dtype_), size_of(dtype_));
    return bits;
  }

  void set(std::size_t index, Bits bits) {
    std::memcpy(data() + index * size_of(dtype_), &bits, size_of(dtype_));
  }

 private:
  DType dtype_;
  std::size_t misalignment_;
  Bytes bytes_;
};

std::vector<const std::byte*> pointers_to(std::vector<Buffer>& buffers) {
  std::vector<const std::byte*> pointers;
  for (Buffer& buffer : buffers) pointers.push_back(buffer.data());
  return pointers;
}

/// One value for each input. Mostly all near 1, so that every sum rounds and its order shows; in one column
/// of four any bits at all, zeros of both signs and infinity among them.
std::vector<Bits> random_column(DType dtype, std::size_t inputs, std::mt19937_64& random) {
  const bool wild = random() % 4 == 0;
  std::vector<Bits> column(inputs);
  for (Bits& bits : column) {
    const auto kind = wild ? random() % 16 : 15;
    if (kind < 8) {
      bits = random() >> (64 - 8 * size_of(dtype));
    } else if (kind == 8) {
      bits = encode(dtype, std::numeric_limits<double>::infinity());
    } else if (kind < 11) {
      bits = encode(dtype, kind == 9 ? 0.0 : -0.0);
    } else {
      bits = encode(dtype, std::uniform_real_distribution<double>(-4.0, 4.0)(random));
    }
  }
  return column;
}

struct Shape {
  DType dtype;
  std::size_t inputs;
  std::size_t elements;
  double divisor;
};

std::string describe(const Shape& shape, const char* variant, std::size_t index) {
  return std::string(variant) + " " + name_of(shape.dtype) + ", " + std::to_string(shape.inputs) +
         " inputs of " + std::to_string(shape.elements) + " elements, divisor " +
         std::to_string(shape.divisor) + ", element " + std::to_string(index);
}

/// Random inputs at odd addresses, and what their reduction must be.
struct Problem {
  Problem(const Shape& problem_shape, std::mt19937_64& random) : shape(problem_shape) {
    for (std::size_t k = 0; k < shape.inputs; ++k)
      inputs.emplace_back(shape.dtype, shape.elements, random() % 5);
    for (std::size_t i = 0; i < shape.elements; ++i) {
      const std::vector<Bits> column = random_column(shape.dtype, shape.inputs, random);
      for (std::size_t k = 0; k < shape.inputs; ++k) inputs[k].set(i, column[k]);
      expected.push_back(reference(shape.dtype, column, shape.divisor));
    }
  }

  void check(const char* variant, const Buffer& out) const {
    for (std::size_t i = 0; i < shape.elements; ++i) {
      if (same(shape.dtype, out.get(i), expected[i])) continue;
      CHECK_EQ(out.get(i), expected[i]);
      check::fail(__FILE__, __LINE__, describe(shape, variant, i));
      return;
    }
  }

  Shape shape;
  std::vector<Buffer> inputs;
  std::vector<Bits> expected;
};

void check_variant(const char* name, ReduceVariant variant, const Shape& shape, std::mt19937_64& random) {
  Problem problem(shape, random);
  Buffer out(shape.dtype, shape.elements, random() % 5);
  variant(shape.dtype, pointers_to(problem.inputs), shape.divisor, out.data(), shape.elements);
  problem.check(name, out);

  // The untouched inputs once more, in place over any one of them.
  Buffer& in_place = problem.inputs[random() % shape.inputs];
  variant(shape.dtype, pointers_to(problem.inputs), shape.divisor, in_place.data(), shape.elements);
  problem.check(name, in_place);
}

void check_shape(const Shape& shape, std::mt19937_64& random) {
  check_variant("plain", &reduce_plain, shape, random);
  check_variant(simd_level(), &reduce, shape, random);
}

/// One element through the chosen and the plain variant, which must agree.
Bits reduce_one(DType dtype, std::vector<Bits> values, double divisor = 1.0) {
  std::vector<Buffer> inputs;
  for (const Bits bits : values) {
    inputs.emplace_back(dtype, 1, 0);
    inputs.back().set(0, bits);
  }
  Buffer out(dtype, 1, 0);
  reduce_plain(dtype, pointers_to(inputs), divisor, out.data(), 1);
  const Bits plain = out.get(0);
  reduce(dtype, pointers_to(inputs), divisor, out.data(), 1);
  CHECK(same(dtype, out.get(0), plain));
  return out.get(0);
}

/// All 65,536 values of a 16-bit type, in order.
Buffer every_value(DType dtype) {
  Buffer values(dtype, 1 << 16, 0);
  for (Bits bits = 0; bits < (1 << 16); ++bits) values.set(bits, bits);
  return values;
}

void check_round_trip(DType dtype, ReduceVariant variant) {
  Buffer values = every_value(dtype);
  Buffer out(dtype, 1 << 16, 0);
  const std::byte* input = values.data();
  variant(dtype, std::span(&input, 1), 1.0, out.data(), 1 << 16);
  int changed = 0;
  for (Bits bits = 0; bits < (1 << 16); ++bits) changed += same(dtype, out.get(bits), bits) ? 0 : 1;
  CHECK_EQ(changed, 0);
}

/// Each value divided by an odd number lands anywhere between two neighbours, subnormal ones included.
void check_rounding_everywhere(DType dtype, ReduceVariant variant, double divisor) {
  Buffer values = every_value(dtype);
  Buffer out(dtype, 1 << 16, 0);
  const std::byte* input = values.data();
  variant(dtype, std::span(&input, 1), divisor, out.data(), 1 << 16);
  int wrong = 0;
  for (Bits bits = 0; bits < (1 << 16); ++bits) {
    const Bits column[] = {bits};
    wrong += same(dtype, out.get(bits), reference(dtype, column, divisor)) ? 0 : 1;
  }
  CHECK_EQ(wrong, 0);
}

}  // namespace

TEST(every_dtype_count_and_small_size) {
  std::mt19937_64 random(1);
  for (const DType dtype : kDTypes) {
    for (const std::size_t inputs : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64}) {
      for (std::size_t elements = 0; elements <= 70; ++elements) {
        check_shape({dtype, inputs, elements, 1.0}, random);
        check_shape({dtype, inputs, elements, static_cast<double>(inputs)}, random);
      }
    }
  }
}

TEST(sizes_around_and_beyond_the_tiles) {
  std::mt19937_64 random(2);
  for (const DType dtype : kDTypes) {
    for (const std::size_t inputs : {2, 8, 9, 15, 16, 23}) {
      for (const std::size_t elements : {1023, 1024, 1025, 2047, 2048, 2049, 12289}) {
        check_shape({dtype, inputs, elements, static_cast<double>(inputs)}, random);
      }
    }
    check_shape({dtype, 3, 300'001, 3.0}, random);
  }
}

TEST(elements_beyond_the_end_are_left_alone) {
  for (const DType dtype : kDTypes) {
    for (const std::size_t elements : {0, 1, 3, 5, 8, 13}) {
      Buffer input(dtype, 32, 0);
      Buffer out(dtype, 32, 0);
      for (std::size_t i = 0; i < 32; ++i) out.set(i, 77);
      const std::byte* pointer = input.data();
      reduce(dtype, std::span(&pointer, 1), 1.0, out.data(), elements);
      CHECK_EQ(out.get(elements), Bits{77});
      reduce_plain(dtype, std::span(&pointer, 1), 1.0, out.data(), elements);
      CHECK_EQ(out.get(elements), Bits{77});
    }
  }
}

TEST(nothing_to_reduce_needs_no_memory) {
  const std::byte* null = nullptr;
  reduce(DType::Float32, std::span(&null, 1), 1.0, nullptr, 0);
  reduce_plain(DType::Float16, std::span(&null, 1), 2.0, nullptr, 0);
}

TEST(sixteen_bit_types_survive_a_round_trip) {
  for (const DType dtype : {DType::BFloat16, DType::Float16}) {
    check_round_trip(dtype, &reduce);
    check_round_trip(dtype, &reduce_plain);
  }
}

TEST(sixteen_bit_types_round_to_nearest_everywhere) {
  for (const DType dtype : {DType::BFloat16, DType::Float16}) {
    for (const double divisor : {2.0, 3.0, 7.0, 1024.0, 0.3}) {
      check_rounding_everywhere(dtype, &reduce, divisor);
      check_rounding_everywhere(dtype, &reduce_plain, divisor);
    }
  }
}

TEST(bfloat16_ties_go_to_even) {
  const Bits one = 0x3f80, half_unit = 0x3b80;  // 2^-8, half of the unit at 1
  CHECK_EQ(reduce_one(DType::BFloat16, {one, half_unit}), one);
  CHECK_EQ(reduce_one(DType::BFloat16, {one + 1, half_unit}), one + 2);
  CHECK_EQ(reduce_one(DType::BFloat16, {one, half_unit + 1}), one + 1);
  CHECK_EQ(reduce_one(DType::BFloat16, {0x7f7f, 0x7b00}),
           Bits{0x7f80});  // the largest and half its unit: infinity
}

TEST(float16_ties_go_to_even) {
  const Bits half_unit_at_2048 = 0x3c00, at_2048 = 0x6800;
  CHECK_EQ(reduce_one(DType::Float16, {at_2048, half_unit_at_2048}), at_2048);
  CHECK_EQ(reduce_one(DType::Float16, {at_2048 + 1, half_unit_at_2048}), at_2048 + 2);
  CHECK_EQ(reduce_one(DType::Float16, {at_2048, half_unit_at_2048 + 1}), at_2048 + 1);
  CHECK_EQ(reduce_one(DType::Float16, {0x0001}, 2.0), Bits{0});       // half the smallest subnormal
  CHECK_EQ(reduce_one(DType::Float16, {0x0003}, 2.0), Bits{2});       // one and a half of it
  CHECK_EQ(reduce_one(DType::Float16, {0x07ff}, 2.0), Bits{0x0400});  // the largest subnormal's upper tie
}

TEST(float16_overflows_to_infinity_only_past_the_largest) {
  const Bits largest = 0x7bff, fifteen = 0x4b80, sixteen = 0x4c00, infinity = 0x7c00, minus = 0x8000;
  CHECK_EQ(reduce_one(DType::Float16, {largest, fifteen}), largest);
  CHECK_EQ(reduce_one(DType::Float16, {largest, sixteen}), infinity);
  CHECK_EQ(reduce_one(DType::Float16, {largest | minus, sixteen | minus}), infinity | minus);
  CHECK_EQ(reduce_one(DType::Float16, {largest, largest}, 2.0), largest);  // the sum itself is a float32
}

TEST(intermediate_sums_of_many_sixteen_bit_inputs_are_not_rounded) {
  // 256 + 16 * 1 is representable in bfloat16, but each single 1 would vanish if the sum were rounded in
  // between.
  std::vector<Bits> values(17, encode(DType::BFloat16, 1.0));
  values[0] = encode(DType::BFloat16, 256.0);
  CHECK_EQ(reduce_one(DType::BFloat16, values), encode(DType::BFloat16, 272.0));
}

TEST(a_nan_in_any_input_stays_one) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : kDTypes) {
    const Bits one = encode(dtype, 1.0), all_ones = ~Bits{0} >> (65 - 8 * size_of(dtype));
    for (const Bits nan : {encode(dtype, std::nan("")), all_ones}) {
      CHECK(std::isnan(decode(dtype, reduce_one(dtype, {nan}))));
      CHECK(std::isnan(decode(dtype, reduce_one(dtype, {one, one, nan}, 3.0))));
    }
    const Bits difference = reduce_one(dtype, {encode(dtype, infinity), encode(dtype, -infinity)});
    CHECK(std::isnan(decode(dtype, difference)));
  }
}

TEST(zero_keeps_its_sign) {
  for (const DType dtype : kDTypes) {
    const Bits minus_zero = encode(dtype, -0.0);
    CHECK_EQ(reduce_one(dtype, {minus_zero}), minus_zero);
    CHECK_EQ(reduce_one(dtype, {minus_zero, minus_zero}, 2.0), minus_zero);
  }
}

TEST(the_mean_is_a_true_division) {
  // A product with the rounded reciprocal of 3 would be off by one unit.
  const Bits five = encode(DType::Float32, 5.0), seven = encode(DType::Float64, 7.0);
  CHECK_EQ(reduce_one(DType::Float32, {five}, 3.0), encode(DType::Float32, static_cast<double>(5.0F / 3.0F)));
  CHECK_EQ(reduce_one(DType::Float64, {seven}, 3.0), encode(DType::Float64, 7.0 / 3.0));
  CHECK_EQ(reduce_one(DType::Float64, {seven}, 0.1), encode(DType::Float64, 7.0 / 0.1));  // not a float32
}

TEST(copy_streaming_copies_exactly) {
  std::mt19937_64 random(3);
  std::vector<std::size_t> sizes = {4096, 65536, 65537, 1'000'003};
  for (std::size_t size = 0; size <= 300; ++size) sizes.push_back(size);
  for (const std::size_t size : sizes) {
    for (const std::size_t shift : {0, 1, 8, 16, 33, 63}) {
      const std::byte guard{0xa5};
      Bytes source(size + 3);
      Bytes destination(size + 128, guard);
      for (std::byte& byte : source) byte = static_cast<std::byte>(random());
      copy_streaming(destination.data() + shift, source.data() + 3, size);
      const auto copied = destination.begin() + static_cast<std::ptrdiff_t>(shift);
      const auto end = copied + static_cast<std::ptrdiff_t>(size);
      CHECK(std::equal(source.begin() + 3, source.end(), copied));
      CHECK(std::all_of(destination.begin(), copied, [&](std::byte byte) { return byte == guard; }));
      CHECK(std::all_of(end, destination.end(), [&](std::byte byte) { return byte == guard; }));
    }
  }
}

TEST(the_simd_level_is_a_known_name) {
  const std::string level = simd_level();
  CHECK(level == "avx2" || level == "neon" || level == "plain");
}

RUN_TESTS()
