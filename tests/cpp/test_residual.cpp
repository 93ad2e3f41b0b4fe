// Excluded contributions: kept by stream and place, added to the next ones, and never counted twice.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "recovery/residual.h"

using namespace optireduce;

namespace {

constexpr std::size_t kValues = 4096;  // four blocks of ages
constexpr std::size_t kBytes = kValues * sizeof(float);
constexpr std::uint32_t kStream = 5;

ValueSpace space_at(std::uint64_t step, float scale = 1) {
  return {.stream = kStream, .type = DType::Float32, .bytes = kBytes, .step = step, .scale = scale};
}

std::span<const std::byte> bytes_of(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}

void keep(Residuals& residuals, std::uint64_t step, std::size_t first, const std::vector<float>& values,
          float scale = 1) {
  residuals.keep(space_at(step, scale), first * sizeof(float), bytes_of(values));
}

/// What the next contribution of zeros becomes.
std::vector<float> add_to_zeros(Residuals& residuals, std::uint64_t step, std::size_t first,
                                std::size_t count, float scale = 1) {
  std::vector<float> values(count, 0.0F);
  residuals.add_to(space_at(step, scale), first * sizeof(float), std::as_writable_bytes(std::span(values)));
  return values;
}

std::vector<float> floats_of(const KeptValues& kept) {
  std::vector<float> values(kept.values.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), kept.values.data(), kept.values.size());
  return values;
}

}  // namespace

TEST(what_is_kept_is_added_to_the_next_contribution_and_forgotten) {
  Residuals residuals;
  CHECK(!residuals.any(kStream));
  keep(residuals, 3, 100, {1, 2, 3});
  CHECK(residuals.any(kStream) && !residuals.any(kStream + 1));
  std::vector<float> next(5, 10.0F);
  const std::size_t had =
      residuals.add_to(space_at(4), 99 * sizeof(float), std::as_writable_bytes(std::span(next)));
  CHECK((next == std::vector<float>{10, 11, 12, 13, 10}));
  CHECK_EQ(had, 5 * sizeof(float));
  CHECK(!residuals.any(kStream));
  CHECK((add_to_zeros(residuals, 5, 99, 5) == std::vector<float>(5, 0.0F)));
}

TEST(what_is_excluded_again_and_again_adds_up) {
  Residuals residuals;
  keep(residuals, 1, 0, {1, 2});
  keep(residuals, 2, 1, {10, 20});
  CHECK((add_to_zeros(residuals, 3, 0, 4) == std::vector<float>{1, 12, 20, 0}));
}

TEST(streams_do_not_mix) {
  Residuals residuals;
  keep(residuals, 1, 0, {1});
  ValueSpace other = space_at(1);
  other.stream = kStream + 1;
  std::vector<float> values(1, 0.0F);
  CHECK_EQ(residuals.add_to(other, 0, std::as_writable_bytes(std::span(values))), 0u);
  CHECK_EQ(values[0], 0.0F);
  CHECK(residuals.any(kStream));
}

TEST(only_the_values_that_leave_are_added) {
  Residuals residuals;
  keep(residuals, 1, 0, std::vector<float>(kValues, 2.0F));
  CHECK((add_to_zeros(residuals, 2, 1000, 3) == std::vector<float>(3, 2.0F)));
  CHECK(residuals.any(kStream));
  std::vector<float> all = add_to_zeros(residuals, 2, 0, kValues);
  for (std::size_t i = 0; i < kValues; ++i) CHECK_EQ(all[i], i >= 1000 && i < 1003 ? 0.0F : 2.0F);
}

TEST(an_age_counts_from_the_step_in_which_values_were_first_excluded) {
  Residuals residuals;
  CHECK_EQ(residuals.oldest(9), 0);
  keep(residuals, 3, 0, {1});
  CHECK_EQ(residuals.oldest(3), 1);
  CHECK_EQ(residuals.oldest(4), 1);
  CHECK_EQ(residuals.oldest(5), 2);
  CHECK_EQ(residuals.oldest(1'000), 255);
}

TEST(what_goes_along_and_is_excluded_again_is_as_old_as_it_was) {
  Residuals residuals;
  keep(residuals, 3, 0, {1});
  const std::vector<float> sent = add_to_zeros(residuals, 4, 0, 1);
  CHECK_EQ(residuals.oldest(4), 1);  // it is on its way, and may come back
  keep(residuals, 4, 0, sent);
  residuals.settle(kStream);
  CHECK_EQ(residuals.oldest(5), 2);
  CHECK_EQ(residuals.oldest(6), 3);
}

TEST(what_was_included_has_no_age_once_the_outcome_is_known) {
  Residuals residuals;
  keep(residuals, 3, 0, {1});
  add_to_zeros(residuals, 4, 0, 1);
  CHECK(residuals.oldest(5) != 0);
  residuals.settle(kStream);
  CHECK_EQ(residuals.oldest(5), 0);
  CHECK_EQ(residuals.bytes(), 0u);  // and takes no memory
}

TEST(zeros_do_not_get_old) {
  Residuals residuals;
  keep(residuals, 3, 0, std::vector<float>(100, 0.0F));
  CHECK_EQ(int{residuals.oldest(9)}, 0);
  keep(residuals, 3, 0, std::vector<float>(100, 1.0F));
  keep(residuals, 4, 0, std::vector<float>(100, -1.0F));
  add_to_zeros(residuals, 5, 0, kValues);
  residuals.settle(kStream);
  CHECK_EQ(int{residuals.oldest(9)}, 0);
}

TEST(another_place_of_the_stream_does_not_get_older_with_it) {
  Residuals residuals;
  keep(residuals, 1, 0, {1});
  keep(residuals, 8, kValues - 1, {1});
  CHECK_EQ(residuals.oldest(9), 8);
  add_to_zeros(residuals, 9, 0, 1);
  residuals.settle(kStream);
  CHECK_EQ(residuals.oldest(9), 1);
}

TEST(a_residual_follows_the_scale_of_the_values) {
  Residuals residuals;
  keep(residuals, 1, 0, {3}, 1024);
  CHECK_EQ(add_to_zeros(residuals, 2, 0, 1, 512)[0], 1.5F);
  keep(residuals, 2, 0, {8}, 512);
  keep(residuals, 3, 0, {1}, 1024);  // what is kept becomes 16
  CHECK_EQ(add_to_zeros(residuals, 4, 0, 1, 1024)[0], 17.0F);
}

TEST(what_is_not_finite_is_dropped_and_counted) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Residuals residuals;
    keep(residuals, 1, 0, {1, bad});
    CHECK(!residuals.any(kStream));
    CHECK_EQ(residuals.dropped_bytes(), 2 * sizeof(float));
    CHECK((add_to_zeros(residuals, 2, 0, 2) == std::vector<float>(2, 0.0F)));
  }
}

TEST(another_layout_of_a_stream_drops_what_was_kept_and_counts_it) {
  Residuals residuals;
  keep(residuals, 1, 0, {1});
  ValueSpace shorter = space_at(2);
  shorter.bytes = 8;
  const std::vector<float> values{5, 6};
  residuals.keep(shorter, 0, bytes_of(values));
  CHECK_EQ(residuals.dropped_bytes(), kBytes);
  CHECK((floats_of(residuals.take(kStream)) == values));
}

TEST(what_is_taken_is_gone) {
  Residuals residuals;
  CHECK(residuals.take(kStream).values.empty());
  keep(residuals, 1, 2, {7});
  const std::vector<float> taken = floats_of(residuals.take(kStream));
  CHECK_EQ(taken.size(), kValues);
  CHECK_EQ(taken[2], 7.0F);
  CHECK(!residuals.any(kStream));
  CHECK(residuals.take(kStream).values.empty());
  CHECK_EQ(residuals.dropped_bytes(), 0u);
}

TEST(what_is_taken_says_its_type_and_scale) {
  Residuals residuals;
  keep(residuals, 1, 2, {7}, 256);
  const KeptValues kept = residuals.take(kStream);
  CHECK(kept.type == DType::Float32);
  CHECK_EQ(kept.scale, 256.0F);
}

TEST(forgetting_everything_counts_it) {
  Residuals residuals;
  keep(residuals, 1, 2, {7});
  residuals.drop_all();
  CHECK_EQ(residuals.dropped_bytes(), 4096u);  // a block
  CHECK(!residuals.any(kStream));
  CHECK_EQ(residuals.oldest(5), 0);
}

RUN_TESTS()
