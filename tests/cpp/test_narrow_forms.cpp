// All-reduces of float32 that travel narrow: what is rounded and how often, that all ranks get the same bits,
// and that what comes late, never, or from nobody is right in the caller's memory too.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "check.h"
#include "sim/network.h"

using namespace optireduce;

namespace {

using Values = std::vector<float>;

constexpr std::array<DType, 2> kForms{DType::BFloat16, DType::Int8Block};
constexpr std::uint32_t kWarmup = 5;

std::size_t elements_for(DType dtype, std::size_t values) {
  return dtype == DType::Int8Block ? int8_blocks(values) : values;
}

Values random_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  Values values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

sim::SimOptions quiet(Rank ranks) {
  sim::SimOptions options;
  options.ranks = ranks;
  options.egress = {1e9, 0};
  options.ingress = {1e9, 256 * 1024};
  return options;
}

/// All-reduces of every rank's values, one after the other.
struct Reductions {
  sim::Network network;
  DType dtype;
  bool bounded = false;
  std::vector<std::uint32_t> weights;  // by rank; empty: 1
  std::uint64_t seed = 0;
  std::vector<std::optional<Report>> reports;

  Reductions(const sim::SimOptions& options, DType form) : network(options), dtype(form) {}

  /// `values` by rank, in place; the last `spared` of them take no part.
  void reduce(std::vector<Values>& values, ReduceOp op, std::size_t spared = 0) {
    const std::size_t count = values[0].size() - spared;
    const auto elements = static_cast<std::uint32_t>(elements_for(dtype, count));
    // Room for rounding: what lies there must never be read.
    std::vector<std::vector<std::byte>> room(
        values.size(), std::vector<std::byte>(elements * size_of(dtype), std::byte{0xee}));
    sim::Collective collective;
    for (Rank rank = 0; rank < values.size(); ++rank) {
      sim::Call call{{elements, dtype, op, bounded}, room[rank].data()};
      call.weight = weights.empty() ? 1 : weights[rank];
      call.stream = 1;
      call.wide = {values[rank].data(), count, ++seed};
      collective.calls.push_back(call);
    }
    const sim::RunResult result = network.run({collective}, Duration::millis(600'000));
    CHECK(result.finished);
    reports = result.reports[0];
  }

  /// The values that the newest operation left out on this rank.
  std::vector<bool> missing(Rank rank, std::size_t count) const {
    const std::size_t each = dtype == DType::Int8Block ? kInt8BlockValues : 1;
    std::vector<bool> missing(count, false);
    for (const Hole& hole : reports[rank]->lost.holes) {
      if (hole.stage != PacketType::Decision) continue;
      const std::size_t first = hole.begin / size_of(dtype) * each;
      for (std::size_t i = 0; i < hole.bytes / size_of(dtype) * each && first + i < count; ++i)
        missing[first + i] = true;
    }
    return missing;
  }
};

bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

double largest_error(const Values& found, const std::vector<Values>& inputs) {
  double largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    double mean = 0;
    for (const Values& input : inputs) mean += input[i] / static_cast<double>(inputs.size());
    largest = std::max(largest, std::abs(found[i] - mean));
  }
  return largest;
}

}  // namespace

TEST(the_owner_does_not_round_its_own_bfloat16) {
  constexpr std::size_t kCount = 4096;
  Reductions group(quiet(2), DType::BFloat16);
  // Just between two bfloat16: what is added decides, unless it was rounded (to even, down) before.
  std::vector<Values> values{Values(kCount, 1 + 0x1p-8F), Values(kCount, 0x1p-10F)};
  group.reduce(values, ReduceOp::Sum);
  for (const Values& found : values) {  // of the first operation rank 0 owns the first half
    for (std::size_t i = 0; i < kCount; ++i) CHECK_EQ(found[i], i < kCount / 2 ? 1 + 0x1p-7F : 1.0F);
  }
}

TEST(the_owner_does_not_round_its_own_int8_block) {
  constexpr std::size_t kBlocks = 64;
  Reductions group(quiet(2), DType::Int8Block);
  std::vector<Values> values(2, Values(kBlocks * kInt8BlockValues, 0.5F));
  for (std::size_t block = 0; block < kBlocks; ++block) {
    const std::size_t first = block * kInt8BlockValues;
    values[0][first] = 100;  // the scale is about 0.79: 0.5 would be rounded
    values[0][first + 1] = 0;
    values[1][first] = 27;  // the scale is 0.5: nothing is rounded
    values[1][first + 1] = 63.5F;
  }
  group.reduce(values, ReduceOp::Sum);
  CHECK(same_bits(values[0], values[1]));
  std::size_t rounded = 0;
  for (std::size_t i = 0; i < values[0].size(); ++i) {
    if (i % kInt8BlockValues < 2) continue;
    if (i < values[0].size() / 2) CHECK_EQ(values[0][i], 1.0F);
    rounded += values[0][i] != 1.0F ? 1 : 0;
  }
  CHECK(rounded > 0);  // where rank 0 sends what it has
}

TEST(all_ranks_get_the_same_bits_at_every_border) {
  for (const DType dtype : kForms) {
    for (const Rank ranks : {Rank{2}, Rank{3}, Rank{4}}) {
      Reductions group(quiet(ranks), dtype);
      for (const std::size_t count : {1, 2, 61, 62, 63, 125, 700, 703, 705, 1408, 1409, 62 * 44 - 1, 62 * 44,
                                      62 * 44 + 1, 62 * 45, 30'000, 62 * 500 + 7, 1'100'003}) {
        std::vector<Values> values;
        for (Rank rank = 0; rank < ranks; ++rank)
          values.push_back(random_values(count + 1, static_cast<std::uint32_t>(count * ranks + rank)));
        const std::vector<Values> inputs = values;
        group.reduce(values, ReduceOp::Mean, 1);
        for (Rank rank = 0; rank < ranks; ++rank) {
          CHECK_EQ(values[rank].back(), inputs[rank].back());
          values[rank].pop_back();
          CHECK(same_bits(values[rank], values[0]));
        }
        CHECK(largest_error(values[0], inputs) < 0.1);
      }
    }
  }
}

TEST(what_is_lost_and_sent_again_is_rounded_only_once) {
  for (const DType dtype : kForms) {
    sim::SimOptions options = quiet(3);
    options.link.loss = 0.05;
    Reductions group(options, dtype);
    for (std::uint32_t step = 0; step < kWarmup; ++step) {
      std::vector<Values> values;
      for (std::uint32_t rank = 0; rank < 3; ++rank) values.push_back(random_values(50'000, 3 * step + rank));
      const std::vector<Values> inputs = values;
      group.reduce(values, ReduceOp::Mean);
      CHECK(same_bits(values[0], values[1]) && same_bits(values[0], values[2]));
      CHECK(largest_error(values[0], inputs) < 0.1);
    }
    CHECK(group.network.stats(0).resent_bytes > 0);
  }
}

TEST(in_best_effort_what_never_comes_is_zero_and_nothing_else_is) {
  constexpr std::size_t kCount = 62 * 900 - 5;
  for (const DType dtype : kForms) {
    sim::SimOptions options = quiet(4);
    options.protocol.delivery = Delivery::BestEffort;
    options.protocol.best_effort.warmup_operations = kWarmup;
    options.forced_loss.pattern = sim::ForcedLossOptions::Pattern::Random;
    options.forced_loss.share = 0.2;
    options.forced_loss.first_operation = kWarmup;
    Reductions group(options, dtype);
    group.bounded = true;
    std::size_t lost = 0, wrong = 0;
    for (std::uint32_t step = 0; step < kWarmup + 5; ++step) {
      std::vector<Values> values(4, Values(kCount, 127));
      group.reduce(values, ReduceOp::Mean);
      for (Rank rank = 0; rank < 4; ++rank) {
        const std::vector<bool> missing = group.missing(rank, kCount);
        for (std::size_t i = 0; i < kCount; ++i) {
          lost += missing[i] ? 1 : 0;
          wrong += (values[rank][i] == 0) != missing[i] ? 1 : 0;
        }
      }
    }
    CHECK(lost > 0);
    CHECK_EQ(wrong, std::size_t{0});
  }
}

TEST(who_abstains_gets_the_result_of_the_others_in_its_own_shard_too) {
  for (const DType dtype : kForms) {
    Reductions group(quiet(2), dtype);
    group.weights = {0, 1};
    std::vector<Values> values{Values(5000, std::numeric_limits<float>::quiet_NaN()), random_values(5000, 1)};
    const std::vector<Values> inputs{values[1]};
    group.reduce(values, ReduceOp::Mean);
    CHECK(same_bits(values[0], values[1]));
    CHECK(largest_error(values[0], inputs) < 0.1);
    CHECK(group.reports[0]->non_finite.empty());
    group.weights = {0, 0};
    group.reduce(values, ReduceOp::Mean);
    for (const Values& found : values) CHECK(same_bits(found, Values(5000, 0)));
  }
}

TEST(who_contributes_no_numbers_is_named_by_itself_and_by_others) {
  for (const DType dtype : kForms) {
    Reductions group(quiet(3), dtype);
    std::vector<Values> values(3, Values(9000, 1));
    std::fill(values[1].begin(), values[1].end(), std::numeric_limits<float>::infinity());
    group.reduce(values, ReduceOp::Mean);
    for (const auto& report : group.reports) CHECK(report->non_finite == std::vector<Rank>{1});
    for (const Values& found : values) CHECK(!std::isfinite(found[0]) && !std::isfinite(found.back()));
  }
}

TEST(alone_nothing_is_rounded) {
  for (const DType dtype : kForms) {
    Reductions group(quiet(1), dtype);
    std::vector<Values> values{random_values(1000, 2)};
    const Values given = values[0];
    group.reduce(values, ReduceOp::Mean);
    CHECK(same_bits(values[0], given));
  }
}

TEST(a_grid_narrows_and_widens_all) {
  for (const DType dtype : kForms) {
    sim::SimOptions options = quiet(4);
    options.protocol.rows = {{0, 1}, {2, 3}};
    Reductions group(options, dtype);
    for (const std::size_t count : {1, 63, 5000, 62 * 300 + 1}) {
      std::vector<Values> values;
      for (std::uint32_t rank = 0; rank < 4; ++rank) values.push_back(random_values(count, rank));
      const std::vector<Values> inputs = values;
      group.reduce(values, ReduceOp::Mean);
      for (const Values& found : values) CHECK(same_bits(found, values[0]));
      CHECK(largest_error(values[0], inputs) < 0.2);
    }
  }
}

TEST(only_narrow_types_stand_for_values_and_only_for_as_many_as_they_hold) {
  CHECK(can_stand_for(DType::BFloat16, 5, 5) && can_stand_for(DType::Int8Block, 2, 63));
  CHECK(can_stand_for(DType::Int8Block, 2, 124) && can_stand_for(DType::Int8Block, 0, 0));
  CHECK(!can_stand_for(DType::BFloat16, 5, 6) && !can_stand_for(DType::Int8Block, 2, 62));
  CHECK(!can_stand_for(DType::Int8Block, 2, 125) && !can_stand_for(DType::Float32, 5, 5));
  CHECK(!can_stand_for(DType::Float16, 5, 5));
}

RUN_TESTS()
