// The randomized Hadamard transform against its definition in double precision, and what it is for: whatever
// part of the coefficients is lost, the decoded values are right on average and the error is the lost share.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/hadamard.h"
#include "kernels/hadamard_variants.h"
#include "kernels/reduce.h"

using namespace optireduce;

namespace {

using Bytes = std::vector<std::byte>;
using Doubles = std::vector<double>;
using Floats = std::vector<float>;
using Lost = std::vector<LostRange>;

constexpr DType kDTypes[] = {DType::Float32, DType::BFloat16, DType::Float16};
/// Rounding errors of ten levels of additions in float32, relative to the norm of the block.
constexpr double kRounding = 1e-6;

// ---- Values of any dtype

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

/// The unit of the last place of a stored value, relative to the value.
double relative_unit(DType dtype) {
  return dtype == DType::Float32 ? 0x1p-23 : dtype == DType::BFloat16 ? 0x1p-7 : 0x1p-10;
}

/// Values of very different size, as gradients have; none too small for float16.
Floats random_values(std::size_t elements, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Floats values(elements);
  for (float& value : values) {
    value = std::exp(2.0F * normal(random));
    value = std::copysign(std::clamp(value, 1e-3F, 1e4F), normal(random));
  }
  return values;
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

// ---- Reference

std::uint64_t splitmix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9u;
  z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11ebu;
  return z ^ (z >> 31);
}

/// As the numpy reference has it: 128 signs from two words of 64 bits, seen as four of 32.
double reference_sign(std::uint64_t seed, const HadamardLayout& layout, std::size_t index) {
  const std::size_t block = index / layout.block, within = index % layout.block;
  const std::size_t draws = std::max<std::size_t>(1, layout.block / 128);
  const std::size_t word = 2 * (block * draws + within / 128) + within % 4 / 2;
  const std::uint64_t bits = splitmix(splitmix(seed) + word * 0x9e37'79b9'7f4a'7c15u);
  const auto half = static_cast<std::uint32_t>(bits >> (32 * (within % 2)));
  return (half >> (31 - within % 128 / 4) & 1) != 0 ? -1.0 : 1.0;
}

void reference_transform(std::span<double> block) {
  for (std::size_t stride = 1; stride < block.size(); stride *= 2) {
    for (std::size_t i = 0; i < block.size(); ++i) {
      if ((i & stride) != 0) continue;
      const double a = block[i], b = block[i + stride];
      block[i] = a + b;
      block[i + stride] = a - b;
    }
  }
  for (double& value : block) value /= std::sqrt(static_cast<double>(block.size()));
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

std::vector<bool> lost_positions(const HadamardLayout& layout, const Lost& lost) {
  std::vector<bool> positions(layout.encoded_elements(), false);
  for (const LostRange& range : lost) {
    for (std::size_t i = range.first; i < range.first + range.count; ++i) positions[i] = true;
  }
  return positions;
}

Doubles reference_decode(const HadamardLayout& layout, std::uint64_t seed, const Floats& encoded,
                         const Lost& lost, double cap) {
  const std::vector<bool> is_lost = lost_positions(layout, lost);
  Doubles values(layout.elements);
  for (std::size_t b = 0; b < layout.blocks(); ++b) {
    Doubles block(layout.block);
    double received = 0;
    for (std::size_t j = 0; j < layout.block; ++j) {
      block[j] = encoded[j * layout.stride + b];
      received += is_lost[j * layout.stride + b] ? 0 : 1;
    }
    reference_transform(block);
    const double scale = received == 0 ? 0 : std::min(cap, layout.block / received);
    for (std::size_t i = b * layout.block; i < std::min(layout.elements, (b + 1) * layout.block); ++i) {
      values[i] = scale * block[i - b * layout.block] * reference_sign(seed, layout, i);
    }
  }
  return values;
}

// ---- Helpers

struct NamedVariant {
  const char* name;
  HadamardVariant variant;
};

std::vector<NamedVariant> variants() {
  std::vector<NamedVariant> all = {{"plain", hadamard_plain}};
  if (const HadamardVariant* avx2 = find_hadamard_avx2()) all.push_back({"avx2", *avx2});
  return all;
}

double squared_norm(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum;
}

double squared_distance(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

/// How far a result may be from the reference, for each block; nothing but zero is right in between blocks.
Doubles tolerances(const HadamardLayout& layout, const Doubles& values) {
  Doubles all(layout.stride, 0.0);
  for (std::size_t b = 0; b < layout.blocks(); ++b) {
    const std::size_t first = b * layout.block;
    const std::size_t count = std::min<std::size_t>(layout.block, layout.elements - first);
    all[b] = kRounding * std::sqrt(squared_norm(std::span(values).subspan(first, count)));
  }
  return all;
}

Floats encode(const Floats& values, const HadamardLayout& layout, std::uint64_t seed) {
  Floats encoded(layout.encoded_elements());
  hadamard_encode(DType::Float32, std::as_bytes(std::span(values)).data(), layout, seed, encoded.data());
  return encoded;
}

Doubles decode(const Floats& encoded, const HadamardLayout& layout, std::uint64_t seed, const Lost& lost,
               float cap = kHadamardCap) {
  Floats values(layout.elements);
  hadamard_decode(DType::Float32, encoded.data(), layout, seed, lost, cap,
                  std::as_writable_bytes(std::span(values)).data());
  return Doubles(values.begin(), values.end());
}

/// Encoded, robbed of `lost` and decoded.
Doubles through_loss(const Floats& values, const HadamardLayout& layout, std::uint64_t seed,
                     const Lost& lost) {
  Floats encoded = encode(values, layout, seed);
  for (const LostRange& range : lost) {
    std::fill_n(encoded.begin() + static_cast<std::ptrdiff_t>(range.first), range.count, 0.0F);
  }
  return decode(encoded, layout, seed, lost);
}

Lost tail(const HadamardLayout& layout, double share) {
  const auto count = static_cast<std::size_t>(share * static_cast<double>(layout.encoded_elements()));
  return {{layout.encoded_elements() - count, count}};
}

/// Packets of 350 floats, lost in bursts of `burst` that start anywhere, about `share` of them.
Lost random_packets(const HadamardLayout& layout, double share, std::size_t burst, std::mt19937_64& random) {
  constexpr std::size_t kPacket = 350;
  std::bernoulli_distribution starts(share / static_cast<double>(burst));
  Lost lost;
  for (std::size_t first = 0; first < layout.encoded_elements();) {
    const bool is_lost = starts(random);
    const std::size_t count = std::min((is_lost ? burst : 1) * kPacket, layout.encoded_elements() - first);
    if (is_lost) lost.push_back({first, count});
    first += count;
  }
  return lost;
}

double share_of(const HadamardLayout& layout, const Lost& lost) {
  std::size_t count = 0;
  for (const LostRange& range : lost) count += range.count;
  return static_cast<double>(count) / static_cast<double>(layout.encoded_elements());
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

// ---- One size, every dtype and variant

struct Shape {
  std::size_t elements;
  std::uint32_t block;
};

void report(const char* what, const char* variant, DType dtype, const HadamardLayout& layout,
            std::size_t index) {
  check::fail(__FILE__, __LINE__,
              std::string(what) + ": " + variant + " " + name_of(dtype) + ", " +
                  std::to_string(layout.elements) + " elements in blocks of " + std::to_string(layout.block) +
                  ", index " + std::to_string(index));
}

void check_encoded(const char* variant, DType dtype, const HadamardLayout& layout, const Doubles& values,
                   const Doubles& expected, const Floats& encoded) {
  const Doubles tolerance = tolerances(layout, values);
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    if (std::fabs(encoded[i] - expected[i]) <= tolerance[i % layout.stride]) continue;
    return report("encoded", variant, dtype, layout, i);
  }
}

void check_decoded(const char* variant, DType dtype, const HadamardLayout& layout, const Doubles& expected,
                   const Doubles& decoded) {
  const Doubles tolerance = tolerances(layout, expected);
  for (std::size_t i = 0; i < layout.elements; ++i) {
    const double rounding = relative_unit(dtype) / 2 * std::fabs(expected[i]);
    if (std::fabs(decoded[i] - expected[i]) <= tolerance[i / layout.block] + rounding) continue;
    return report("decoded", variant, dtype, layout, i);
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

TEST(lost_ranges_of_any_kind_are_counted_for_every_block) {
  std::mt19937_64 random(8);
  for (const std::size_t elements : {5, 300, 1024, 5000, 16 * 1024, 40'000, 2'200'000}) {
    const HadamardLayout layout = hadamard_layout(elements);
    const Floats values = random_values(elements, elements);
    for (int round = 0; round < (elements < 100'000 ? 20 : 1); ++round) {
      // Cuts at random places; every second piece is lost, empty ones and neighbours included.
      std::vector<std::size_t> cuts(2 * (random() % 6), 0);
      for (std::size_t& cut : cuts) cut = random() % (layout.encoded_elements() + 1);
      std::sort(cuts.begin(), cuts.end());
      Lost lost;
      for (std::size_t i = 0; i < cuts.size(); i += 2) lost.push_back({cuts[i], cuts[i + 1] - cuts[i]});
      std::shuffle(lost.begin(), lost.end(), random);
      Floats encoded = encode(values, layout, 9);
      const std::vector<bool> is_lost = lost_positions(layout, lost);
      for (std::size_t i = 0; i < encoded.size(); ++i) encoded[i] = is_lost[i] ? 0.0F : encoded[i];
      const Doubles expected = reference_decode(layout, 9, encoded, lost, 3.0);
      check_decoded("chosen", DType::Float32, layout, expected, decode(encoded, layout, 9, lost, 3.0F));
    }
  }
}

TEST(the_error_is_the_lost_share) {
  // Scaled up by 1 / (1 - p), a lost share p leaves an error of p / (1 - p).
  const HadamardLayout layout = hadamard_layout(400'000);
  const Floats values = random_values(layout.elements, 10);
  const Doubles exact(values.begin(), values.end());
  std::mt19937_64 random(11);
  const std::size_t eighth = layout.encoded_elements() / 8;
  std::vector<Lost> patterns = {tail(layout, 0.01), tail(layout, 0.1), {{3 * eighth, eighth}}};
  for (const double share : {0.03, 0.05, 0.2}) {
    patterns.push_back(random_packets(layout, share, 1, random));
    patterns.push_back(random_packets(layout, share, 8, random));
  }
  for (const Lost& lost : patterns) {
    const double share = share_of(layout, lost), expected = share / (1 - share);
    CHECK(share > 0.0);
    double error = 0;
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      error += squared_distance(through_loss(values, layout, seed, lost), exact) / squared_norm(exact) / 4;
    }
    if (std::fabs(error / expected - 1) > 0.1) CHECK_EQ(error, expected);
  }
}

TEST(the_mean_over_many_seeds_is_right) {
  // The last 10 % are always lost, and the values there are the largest.
  const HadamardLayout layout = hadamard_layout(10'000);
  Floats values = random_values(layout.elements, 12);
  std::sort(values.begin(), values.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  const Doubles exact(values.begin(), values.end());
  const Lost lost = tail(layout, 0.1);
  constexpr int kDraws = 400;
  Doubles mean(layout.elements, 0.0);
  for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
    const Doubles decoded = through_loss(values, layout, seed, lost);
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += decoded[i] / kDraws;
  }
  CHECK(squared_distance(mean, exact) / squared_norm(exact) < 0.002);
}

TEST(a_lost_tail_with_all_the_large_values_hurts_ten_times_less) {
  const HadamardLayout layout = hadamard_layout(100'000);
  Floats values = random_values(layout.elements, 13);
  const std::size_t first_large = 95'000;
  for (std::size_t i = first_large; i < values.size(); ++i) values[i] *= 50.0F;
  const Doubles exact(values.begin(), values.end());
  Doubles without = exact;
  std::fill(without.begin() + static_cast<std::ptrdiff_t>(first_large), without.end(), 0.0);
  const Doubles with = through_loss(values, layout, 14, tail(layout, 0.05));
  CHECK(10 * squared_distance(with, exact) < squared_distance(without, exact));
}

TEST(a_block_is_never_scaled_up_beyond_the_cap) {
  const HadamardLayout layout = hadamard_layout(4096);
  Floats encoded = encode(random_values(layout.elements, 15), layout, 16);
  const Lost three_quarters = tail(layout, 0.75);
  std::fill_n(encoded.begin() + static_cast<std::ptrdiff_t>(three_quarters[0].first), three_quarters[0].count,
              0.0F);
  const Doubles unscaled = decode(encoded, layout, 16, {});
  for (const float cap : {1.0F, 2.0F, 4.0F, 100.0F}) {
    Doubles expected = unscaled;
    for (double& value : expected) value *= std::min(cap, 4.0F);
    CHECK(decode(encoded, layout, 16, three_quarters, cap) == expected);
  }
}

TEST(a_block_of_which_nothing_came_is_zero_and_the_others_are_whole) {
  const HadamardLayout layout = hadamard_layout(20 * 1024);
  Floats encoded = encode(random_values(layout.elements, 17), layout, 18);
  const Doubles whole = decode(encoded, layout, 18, {});
  Lost lost;
  for (std::size_t j = 0; j < layout.block; ++j) {
    lost.push_back({j * layout.stride + 3, 1});
    encoded[lost.back().first] = 0.0F;
  }
  const Doubles decoded = decode(encoded, layout, 18, lost);
  for (std::size_t i = 0; i < decoded.size(); ++i) CHECK_EQ(decoded[i], i / 1024 == 3 ? 0.0 : whole[i]);
  const Lost everything = {{0, layout.encoded_elements()}};
  encoded.assign(encoded.size(), 0.0F);
  const float no_cap = std::numeric_limits<float>::infinity();
  CHECK_EQ(squared_norm(decode(encoded, layout, 18, everything, no_cap)), 0.0);
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
