// What the randomized Hadamard transform is for: whatever part of the coefficients is lost, the decoded
// values are right on average and the error is the lost share.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "hadamard_case.h"

using namespace hadamardcase;

namespace {

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

}  // namespace

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

RUN_TESTS()
