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

/// The age when an operation of the stream begins in that step.
int oldest_at(Residuals& residuals, std::uint64_t step) {
  residuals.note_begun(kStream, step);
  return residuals.oldest(step);
}

// ---- Weighted: pieces with weights

constexpr std::size_t kPieceValues = 100, kPieceBytes = kPieceValues * sizeof(float);

ValueSpace weighted_at(std::uint64_t step, float scale = 1) {
  ValueSpace space = space_at(step, scale);
  space.bytes = 3 * kPieceBytes - 4;  // the last piece is shorter
  space.piece_bytes = kPieceBytes;
  return space;
}

void keep_piece(Residuals& residuals, std::uint64_t step, std::size_t piece, float value,
                std::uint32_t weight, float scale = 1) {
  const std::vector<float> values(piece == 2 ? kPieceValues - 1 : kPieceValues, value);
  residuals.keep(weighted_at(step, scale), piece * kPieceBytes, bytes_of(values), weight);
}

struct Taken {
  float value;
  std::uint32_t weight;
  bool operator==(const Taken&) const = default;
};

/// What a piece of zeros becomes.
Taken take_piece(Residuals& residuals, std::uint64_t step, std::size_t piece, float scale = 1) {
  std::vector<float> values(piece == 2 ? kPieceValues - 1 : kPieceValues, 0.0F);
  const Residuals::Carried carried = residuals.add_to(weighted_at(step, scale), piece * kPieceBytes,
                                                      std::as_writable_bytes(std::span(values)));
  return {values.back(), carried.weight};
}

}  // namespace

TEST(what_is_kept_is_added_to_the_next_contribution_and_forgotten) {
  Residuals residuals;
  CHECK(!residuals.any(kStream));
  keep(residuals, 3, 100, {1, 2, 3});
  CHECK(residuals.any(kStream) && !residuals.any(kStream + 1));
  std::vector<float> next(5, 10.0F);
  const std::size_t had =
      residuals.add_to(space_at(4), 99 * sizeof(float), std::as_writable_bytes(std::span(next))).bytes;
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
  CHECK_EQ(residuals.add_to(other, 0, std::as_writable_bytes(std::span(values))).bytes, 0u);
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
  CHECK_EQ(oldest_at(residuals, 9), 0);
  keep(residuals, 3, 0, {1});
  CHECK_EQ(oldest_at(residuals, 3), 1);
  CHECK_EQ(oldest_at(residuals, 4), 1);
  CHECK_EQ(oldest_at(residuals, 5), 2);
  CHECK_EQ(oldest_at(residuals, 1'000), 255);
}

TEST(what_goes_along_and_is_excluded_again_is_as_old_as_it_was) {
  Residuals residuals;
  keep(residuals, 3, 0, {1});
  const std::vector<float> sent = add_to_zeros(residuals, 4, 0, 1);
  CHECK_EQ(oldest_at(residuals, 4), 1);  // it is on its way, and may come back
  keep(residuals, 4, 0, sent);
  residuals.settle(kStream);
  CHECK_EQ(oldest_at(residuals, 5), 2);
  CHECK_EQ(oldest_at(residuals, 6), 3);
}

TEST(what_was_included_has_no_age_once_the_outcome_is_known) {
  Residuals residuals;
  keep(residuals, 3, 0, {1});
  add_to_zeros(residuals, 4, 0, 1);
  CHECK(oldest_at(residuals, 5) != 0);
  residuals.settle(kStream);
  CHECK_EQ(oldest_at(residuals, 5), 0);
  CHECK_EQ(residuals.bytes(), 0u);  // and takes no memory
}

TEST(zeros_do_not_get_old) {
  Residuals residuals;
  keep(residuals, 3, 0, std::vector<float>(100, 0.0F));
  CHECK_EQ(oldest_at(residuals, 9), 0);
  keep(residuals, 3, 0, std::vector<float>(100, 1.0F));
  keep(residuals, 4, 0, std::vector<float>(100, -1.0F));
  add_to_zeros(residuals, 5, 0, kValues);
  residuals.settle(kStream);
  CHECK_EQ(oldest_at(residuals, 9), 0);
}

TEST(another_place_of_the_stream_does_not_get_older_with_it) {
  Residuals residuals;
  keep(residuals, 1, 0, {1});
  keep(residuals, 8, kValues - 1, {1});
  CHECK_EQ(oldest_at(residuals, 9), 8);
  add_to_zeros(residuals, 9, 0, 1);
  residuals.settle(kStream);
  CHECK_EQ(oldest_at(residuals, 9), 1);
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
  CHECK_EQ(oldest_at(residuals, 5), 0);
}

TEST(a_stream_that_is_not_called_any_more_does_not_age) {
  Residuals residuals;
  keep(residuals, 3, 0, {1});
  CHECK_EQ(int{residuals.oldest(50)}, 1);
  CHECK_EQ(oldest_at(residuals, 6), 3);
  CHECK_EQ(int{residuals.oldest(50)}, 3);
}

TEST(values_and_weight_go_along_together_piece_by_piece) {
  Residuals residuals;
  keep_piece(residuals, 1, 1, 5, 7);
  keep_piece(residuals, 2, 1, 2, 3);
  keep_piece(residuals, 2, 2, 4, 1);
  CHECK((take_piece(residuals, 3, 0) == Taken{0, 0}));
  CHECK((take_piece(residuals, 3, 1) == Taken{7, 10}));
  CHECK((take_piece(residuals, 3, 1) == Taken{0, 0}));
  CHECK((take_piece(residuals, 3, 2) == Taken{4, 1}));
  CHECK(!residuals.any(kStream));
}

TEST(samples_whose_values_are_zero_are_kept_and_get_old) {
  Residuals residuals;
  keep_piece(residuals, 1, 1, 0, 7);
  CHECK(residuals.any(kStream));
  CHECK_EQ(oldest_at(residuals, 4), 3);
  CHECK((take_piece(residuals, 4, 1) == Taken{0, 7}));
  residuals.settle(kStream);
  CHECK_EQ(residuals.bytes(), 0u);
  keep_piece(residuals, 1, 1, 5, 2);  // and ones that cancel each other
  keep_piece(residuals, 1, 1, -5, 2);
  CHECK((take_piece(residuals, 2, 1) == Taken{0, 4}));
}

TEST(without_samples_nothing_is_kept_unless_a_residual_came_along) {
  Residuals residuals;
  keep_piece(residuals, 1, 1, 0, 0);
  CHECK(!residuals.any(kStream));
}

TEST(a_scale_changes_values_and_not_their_weight) {
  Residuals residuals;
  keep_piece(residuals, 1, 0, 3, 7, 1024);
  CHECK((take_piece(residuals, 2, 0, 512) == Taken{1.5F, 7}));
}

TEST(what_is_not_finite_is_dropped_with_its_weight) {
  Residuals residuals;
  keep_piece(residuals, 1, 1, std::numeric_limits<float>::infinity(), 7);
  CHECK(!residuals.any(kStream));
  CHECK_EQ(residuals.dropped_bytes(), kPieceBytes);
  CHECK((take_piece(residuals, 2, 1) == Taken{0, 0}));
}

TEST(what_is_taken_has_its_weights) {
  Residuals residuals;
  keep_piece(residuals, 1, 1, 5, 7);
  const KeptValues kept = residuals.take(kStream);
  CHECK((kept.weights == std::vector<std::uint32_t>{0, 7, 0}));
  CHECK_EQ(kept.values.size(), 3 * kPieceBytes - 4);
}

TEST(what_went_along_with_an_operation_that_failed_is_kept_again_as_old_as_it_was) {
  Residuals residuals;
  keep_piece(residuals, 1, 1, 5, 7);
  keep_piece(residuals, 3, 2, 1, 2);
  const Residuals::Loan loan = residuals.lend(kStream);
  CHECK((take_piece(residuals, 4, 1) == Taken{5, 7}));
  CHECK((take_piece(residuals, 4, 2) == Taken{1, 2}));
  keep_piece(residuals, 4, 2, 10, 20);  // another one
  residuals.give_back(loan);
  residuals.settle(kStream);
  CHECK_EQ(oldest_at(residuals, 4), 3);
  CHECK((take_piece(residuals, 5, 1) == Taken{5, 7}));
  CHECK((take_piece(residuals, 5, 2) == Taken{11, 22}));
}

TEST(a_loan_of_nothing_gives_nothing_back) {
  Residuals residuals;
  const Residuals::Loan loan = residuals.lend(kStream);
  CHECK(!loan.any());
  residuals.give_back(loan);
  CHECK(!residuals.any(kStream));
}

RUN_TESTS()
