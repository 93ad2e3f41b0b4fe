// The randomized Hadamard transform and its inverse against their definition, for every size, dtype, address
// and instruction set.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "hadamard_case.h"
#include "kernels/hadamard_variants.h"

using namespace hadamardcase;

namespace {

using Bytes = std::vector<std::byte>;

constexpr DType kDTypes[] = {DType::Float32, DType::BFloat16, DType::Float16};

float get(DType dtype, const std::byte* memory, std::size_t index) {
  if (dtype == DType::Float32) {
    float value;
    std::memcpy(&value, memory + 4 * index, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, memory + 2 * index, 2);
  if (dtype == DType::BFloat16) return std::bit_cast<float>(std::uint32_t{bits} << 16);
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) return mantissa != 0 ? std::nanf("") : sign * std::numeric_limits<float>::infinity();
  return sign * std::ldexp(static_cast<float>(exponent == 0 ? mantissa : mantissa + 1024),
                           std::max(exponent, 1) - 25);
}

void set(DType dtype, std::byte* memory, std::size_t index, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (dtype == DType::Float32) {
    std::memcpy(memory + 4 * index, &bits, 4);
    return;
  }
  // Cut off instead of rounded, which for test values is as good; normal numbers only.
  const std::uint32_t half = (bits >> 16 & 0x8000) | (((bits >> 13 & 0x3ffff) - (112 << 10)) & 0x7fff);
  const auto cut = static_cast<std::uint16_t>(dtype == DType::BFloat16 ? bits >> 16 : half);
  std::memcpy(memory + 2 * index, &cut, 2);
}

/// On a heap block of its own with nothing to spare, so that a sanitizer sees any access outside.
Bytes stored(DType dtype, const Floats& values, std::size_t misalignment = 0) {
  Bytes memory(misalignment + values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) set(dtype, memory.data() + misalignment, i, values[i]);
  return memory;
}

Doubles loaded(DType dtype, const Bytes& memory, std::size_t elements, std::size_t misalignment = 0) {
  Doubles values(elements);
  for (std::size_t i = 0; i < elements; ++i) values[i] = get(dtype, memory.data() + misalignment, i);
  return values;
}

Doubles reference_encode(const HadamardLayout& layout, std::uint64_t seed, const Doubles& values) {
  Doubles encoded(layout.encoded_elements(), 0.0);
  for (std::size_t b = 0; b < layout.blocks(); ++b) {
    Doubles block(layout.block, 0.0);
    for (std::size_t i = b * layout.block; i < std::min(layout.elements, (b + 1) * layout.block); ++i) {
      block[i - b * layout.block] = values[i] * reference_sign(seed, layout, i);
    }
    reference_transform(block);
    for (std::size_t j = 0; j < layout.block; ++j) encoded[j * layout.stride + b] = block[j];
  }
  return encoded;
}

struct NamedVariant {
  const char* name;
  HadamardVariant variant;
};

std::vector<NamedVariant> variants() {
  std::vector<NamedVariant> all = {{"plain", hadamard_plain}};
  if (const HadamardVariant* avx2 = find_hadamard_avx2()) all.push_back({"avx2", *avx2});
  return all;
}

/// The signs of all values, times a constant: what decoding makes of a first coefficient of 1 in each block.
Doubles signs_of(const HadamardLayout& layout, std::uint64_t seed) {
  Floats encoded(layout.encoded_elements(), 0.0F);
  std::fill_n(encoded.begin(), layout.stride, 1.0F);
  return decode(encoded, layout, seed, {});
}

/// The first cache line that starts in there.
template <class T>
T* at_line(T* memory) {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(memory) % 64;
  return memory + (64 - past) % 64 / sizeof(T);
}

bool throws(const std::function<void()>& call, const std::string& expected) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    const bool found = std::string(error.what()).find(expected) != std::string::npos;
    if (!found) std::printf("says: %s\n", error.what());
    return found;
  }
  return false;
}

struct Shape {
  std::size_t elements;
  std::uint32_t block;
};

void check_encoded(const char* variant, DType dtype, const HadamardLayout& layout, const Doubles& values,
                   const Doubles& expected, const Floats& encoded) {
  const Doubles tolerance = tolerances(layout, values);
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    if (std::fabs(encoded[i] - expected[i]) <= tolerance[i % layout.stride]) continue;
    return report("encoded", variant, dtype, layout, i);
  }
}

void check_shape(const Shape& shape) {
  const HadamardLayout layout = hadamard_layout(shape.elements, shape.block);
  const std::uint64_t seed = 77 + shape.elements;
  const Floats source = random_values(shape.elements, seed);
  const Floats scales(layout.stride + kHadamardGroup, 1.0F / std::sqrt(static_cast<float>(layout.block)));
  for (const DType dtype : kDTypes) {
    const Bytes in = stored(dtype, source, 3);
    const Doubles values = loaded(dtype, in, shape.elements, 3);
    const Doubles expected = reference_encode(layout, seed, values);
    Floats first_encoded;
    Bytes first_decoded;
    for (const auto& [name, variant] : variants()) {
      Floats encoded(layout.encoded_elements(), std::nanf(""));
      variant.encode(dtype, in.data() + 3, layout, seed, encoded.data());
      check_encoded(name, dtype, layout, values, expected, encoded);

      Bytes out(shape.elements * size_of(dtype));
      variant.decode(dtype, encoded.data(), layout, seed, scales.data(), out.data());
      check_decoded(name, dtype, layout, values, loaded(dtype, out, shape.elements));

      if (first_encoded.empty()) first_encoded = encoded, first_decoded = out;
      CHECK(std::ranges::equal(std::as_bytes(std::span(encoded)), std::as_bytes(std::span(first_encoded))));
      CHECK(out == first_decoded);
    }
  }
}

}  // namespace

TEST(the_reference_is_the_definition) {
  // Coefficient j is the sum of all values, those with an odd number of common bits of i and j negative.
  Doubles block(32);
  std::mt19937_64 random(1);
  for (double& value : block) value = std::normal_distribution<double>()(random);
  Doubles expected(32, 0.0);
  for (std::size_t j = 0; j < 32; ++j) {
    for (std::size_t i = 0; i < 32; ++i) {
      expected[j] += (std::popcount(i & j) % 2 == 0 ? block[i] : -block[i]) / std::sqrt(32.0);
    }
  }
  reference_transform(block);
  CHECK(squared_distance(block, expected) < 1e-20);
}

TEST(layouts_cover_all_elements_and_cost_little) {
  for (const std::uint32_t block : {8, 64, 1024, 16384}) {
    for (std::size_t elements = 0; elements < 9'000'000; elements = elements * 5 / 4 + 1) {
      const HadamardLayout layout = hadamard_layout(elements, block);
      CHECK(layout.block <= block && layout.block >= std::min(block, kSmallestHadamardBlock));
      CHECK(std::has_single_bit(layout.block));
      CHECK_EQ(layout.encoded_elements(), layout.stride * layout.block);
      CHECK_EQ(layout.blocks(), (elements + layout.block - 1) / layout.block);
      CHECK(layout.stride >= layout.blocks());
      CHECK(layout.stride - layout.blocks() <= layout.blocks() / 64);
    }
  }
  CHECK_EQ(hadamard_layout(0).encoded_elements(), std::size_t{0});
  CHECK_EQ(hadamard_layout(1).block, 8U);
  CHECK_EQ(hadamard_layout(9).block, 16U);
  CHECK_EQ(hadamard_layout(513).block, 1024U);
  CHECK_EQ(hadamard_layout(1'000'000).block, 1024U);
  CHECK_EQ(hadamard_layout(1025).encoded_elements(), std::size_t{2048});
  CHECK_EQ(hadamard_layout(500 * 1024).stride, std::size_t{500});    // 33 lines would cost too much
  CHECK_EQ(hadamard_layout(1024 * 1024).stride, std::size_t{1040});  // 65 lines
  CHECK_EQ(hadamard_layout(4096 * 1024).stride, std::size_t{4144});  // 259, because 257 are slow
  CHECK_EQ(hadamard_layout(6400 * 1024).stride, std::size_t{6416});  // 401
}

TEST(every_small_size) {
  for (std::size_t elements = 0; elements <= 70; ++elements) {
    check_shape({elements, kHadamardBlock});
    check_shape({elements, 8});
  }
}

TEST(sizes_around_powers_of_two) {
  for (std::size_t power = 128; power <= (1 << 20); power *= 2) {
    for (const std::size_t elements : {power - 1, power, power + 1}) check_shape({elements, kHadamardBlock});
  }
}

TEST(odd_sizes_and_other_blocks) {
  for (const std::size_t elements : {99, 1000, 5555, 16'383, 16'385, 17'408, 33'333, 123'457, 777'777}) {
    check_shape({elements, kHadamardBlock});
  }
  for (std::uint32_t block = kSmallestHadamardBlock; block <= kLargestHadamardBlock; block *= 2) {
    for (const std::size_t elements : {1000, 20'000, 100'001}) check_shape({elements, block});
  }
}

TEST(large_buffers_that_go_past_the_cache) {
  check_shape({(2 << 20) + 5, kHadamardBlock});
  check_shape({(2 << 20) + 3, 16384});  // a stride that is no whole number of lines
}

TEST(any_address_gives_the_same_bits) {
  // At a cache line whole lines are written past the cache; elsewhere the ends of the buffers are not.
  const HadamardLayout layout = hadamard_layout((2 << 20) + 5);
  const Floats values = random_values(layout.elements, 5);
  for (const DType dtype : kDTypes) {
    const Bytes in = stored(dtype, values);
    Floats first_encoded;
    Bytes first_decoded;
    for (const std::size_t shift : {0, 1, 5, 12}) {
      Floats wire(layout.encoded_elements() + 32);
      const std::span encoded(at_line(wire.data()) + shift, layout.encoded_elements());
      hadamard_encode(dtype, in.data(), layout, 6, encoded.data());
      Bytes memory(in.size() + 128);
      const std::span decoded(at_line(memory.data()) + shift, in.size());
      hadamard_decode(dtype, encoded.data(), layout, 6, {}, kHadamardCap, decoded.data());

      if (shift == 0) first_encoded.assign(encoded.begin(), encoded.end());
      if (shift == 0) first_decoded.assign(decoded.begin(), decoded.end());
      CHECK(std::ranges::equal(encoded, first_encoded));
      CHECK(std::ranges::equal(decoded, first_decoded));
    }
  }
}

TEST(nothing_is_written_outside) {
  for (const std::size_t elements : {0, 1, 7, 100, 1024, 1500, 16 * 1024, 20'000}) {
    const HadamardLayout layout = hadamard_layout(elements);
    const Floats values = random_values(elements, 7);
    for (const DType dtype : kDTypes) {
      const Bytes in = stored(dtype, values);
      for (const auto& [name, variant] : variants()) {
        Floats encoded(layout.encoded_elements() + 2, 99.0F);
        variant.encode(dtype, in.data(), layout, 1, encoded.data() + 1);
        CHECK_EQ(encoded.front(), 99.0F);
        CHECK_EQ(encoded.back(), 99.0F);
        const Floats scales(layout.stride + kHadamardGroup, 1.0F);
        Bytes out(in.size() + 128, std::byte{0xa5});
        variant.decode(dtype, encoded.data() + 1, layout, 1, scales.data(), out.data() + 64);
        CHECK(std::count(out.begin(), out.begin() + 64, std::byte{0xa5}) == 64);
        CHECK(std::count(out.end() - 64, out.end(), std::byte{0xa5}) == 64);
      }
    }
  }
}

TEST(no_elements_need_no_memory) {
  hadamard_encode(DType::Float32, nullptr, hadamard_layout(0), 1, nullptr);
  hadamard_decode(DType::Float32, nullptr, hadamard_layout(0), 1, {}, kHadamardCap, nullptr);
}

TEST(equal_seeds_give_equal_signs_and_others_do_not) {
  const HadamardLayout layout = hadamard_layout(1 << 16);
  const Doubles zero = signs_of(layout, 0), one = signs_of(layout, 1), large = signs_of(layout, ~0ULL);
  CHECK(zero == signs_of(layout, 0));
  const double chance = 4 * std::sqrt(65'536.0);  // four standard deviations of a sum of signs
  for (const Doubles& signs : {zero, one, large}) {
    double sum = 0, with_next = 0, with_next_block = 0;
    for (std::size_t i = 0; i + 1024 < signs.size(); ++i) {
      CHECK_EQ(std::fabs(signs[i]), 1.0 / 32.0);
      sum += 32 * signs[i];
      with_next += 1024 * signs[i] * signs[i + 1];
      with_next_block += 1024 * signs[i] * signs[i + 1024];
    }
    CHECK(std::fabs(sum) < chance);
    CHECK(std::fabs(with_next) < chance);
    CHECK(std::fabs(with_next_block) < chance);
  }
  for (const Doubles& other : {one, large}) {
    double agreement = 0;
    for (std::size_t i = 0; i < zero.size(); ++i) agreement += 1024 * zero[i] * other[i];
    CHECK(std::fabs(agreement) < chance);
  }
}

TEST(a_nan_stays_in_its_block_and_is_one_in_every_format) {
  const HadamardLayout layout = hadamard_layout(3 * 1024);
  for (const DType dtype : kDTypes) {
    for (const auto& [name, variant] : variants()) {
      Floats encoded(layout.encoded_elements(), 1.0F);
      encoded[5 * layout.stride + 1] = std::bit_cast<float>(0x7fff'ffffU);
      const Floats scales(layout.stride + kHadamardGroup, 1.0F / 32.0F);
      Bytes out(layout.elements * size_of(dtype));
      variant.decode(dtype, encoded.data(), layout, 1, scales.data(), out.data());
      for (std::size_t i = 0; i < layout.elements; ++i) {
        CHECK_EQ(std::isnan(get(dtype, out.data(), i)), i / 1024 == 1);
      }
    }
  }
}

TEST(misuse_is_refused_by_name) {
  for (const std::uint32_t block : {0U, 4U, 1000U, 1U << 15}) {
    CHECK(throws([&] { hadamard_layout(100, block); }, "block is " + std::to_string(block)));
  }
  const HadamardLayout layout = hadamard_layout(2048);
  Floats floats(layout.encoded_elements());
  Bytes bytes(layout.elements * 8);
  const auto decoding = [&](DType dtype, const Lost& lost, float cap) {
    return
        [&, dtype, lost, cap] { hadamard_decode(dtype, floats.data(), layout, 1, lost, cap, bytes.data()); };
  };
  CHECK(throws([&] { hadamard_encode(DType::Float64, bytes.data(), layout, 1, floats.data()); },
               "dtype is float64"));
  CHECK(throws(decoding(DType::Float64, {}, 2.0F), "dtype is float64"));
  CHECK(throws(decoding(DType::Float32, {}, 0.5F), "cap is 0.5"));
  CHECK(throws(decoding(DType::Float32, {}, std::nanf("")), "cap is nan"));
  CHECK(throws(decoding(DType::Float32, {{2047, 2}}, 2.0F), "2 floats from 2047"));
  CHECK(throws(decoding(DType::Float32, {{~0ULL, 2}}, 2.0F), "must be within the 2048"));
  CHECK(throws(decoding(DType::Float32, {{0, 2048}, {0, 2}}, 2.0F), "must not overlap"));
}

RUN_TESTS()
