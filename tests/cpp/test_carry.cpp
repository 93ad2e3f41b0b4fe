// What goes along with the next operation of a stream: with a bounded or an exact one, with and without
// weights.
#include <algorithm>
#include <limits>

#include "ranks_case.h"

using namespace rankscase;

namespace {

constexpr float kNothing = std::numeric_limits<float>::quiet_NaN();  // values of no samples do not matter

GroupConfig impatient() {
  GroupConfig config;
  config.exact_silence = Duration::millis(300);
  return config;
}

Call weighted(std::uint64_t step, std::uint32_t weight, bool is_bounded = true) {
  Call call = bounded(step);
  call.descriptor.op = ReduceOp::WeightedMean;
  call.descriptor.bounded = is_bounded;
  call.weight = weight;
  return call;
}

Call exact_sum(std::uint64_t step) {
  Call call = bounded(step);
  call.descriptor.bounded = false;
  return call;
}

/// Three ranks whose owners know what is usual.
struct Three {
  explicit Three(const GroupConfig& config = {}) : ranks(3, config), step(learn(ranks, 3)) {}

  /// What each rank gives; the last one comes later than any deadline. All ranks get the same.
  float call_late(const std::vector<float>& given, const std::vector<Call>& calls) {
    return call(given, calls, Duration::millis(100));
  }
  float call_all(const std::vector<float>& given, const std::vector<Call>& calls) {
    return call(given, calls, Duration{});
  }
  float call(const std::vector<float>& given, const std::vector<Call>& calls, Duration late) {
    values.clear();
    for (const float each : given) values.emplace_back(kElements, each);
    for (Rank rank = 0; rank < 3; ++rank) {
      if (rank == 2) ranks.run(late);
      ranks.start(rank, Ranks::with(calls[rank], values[rank]));
    }
    ranks.run(Duration::millis(50));
    reports.clear();
    for (Rank rank = 0; rank < 3; ++rank) {
      for (const Report& report : ranks.take_reports(rank)) reports.push_back(report);
      CHECK(same_bits(values[rank], values[0]));
    }
    CHECK_EQ(reports.size(), 3u);
    for (const Report& report : reports) CHECK(report.error == ErrorCode::None);
    CHECK(all_are(values[0], values[0][0]));
    ++step;
    return values[0][0];
  }
  std::uint64_t excluded_bytes() const {
    std::uint64_t bytes = 0;
    for (const Excluded& each : reports[0].excluded) bytes += each.bytes;
    return bytes;
  }

  Ranks ranks;
  std::uint64_t step;
  std::vector<Values> values;
  std::vector<Report> reports;
};

}  // namespace

TEST(a_late_rank_s_samples_are_in_the_next_mean_with_their_weight) {
  Three group;
  const auto by = [&](std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    return std::vector<Call>{weighted(group.step, a), weighted(group.step, b), weighted(group.step, c)};
  };
  CHECK_EQ(group.call_late({6, 12, 70}, by(1, 2, 7)), 18.0F / 3);
  CHECK(group.reports[0].closed_by == ClosedBy::Deadline);
  CHECK_EQ(group.excluded_bytes(), kElements * sizeof(float));
  CHECK_EQ(group.call_all({6, 12, 5}, by(1, 2, 5)), 93.0F / 15);
  CHECK_EQ(group.excluded_bytes(), 0u);
  CHECK_EQ(group.call_all({6, 12, 5}, by(1, 2, 5)), 23.0F / 8);
}

TEST(a_rank_without_samples_contributes_its_residual) {
  Three group;
  const auto by = [&](std::uint32_t c) {
    return std::vector<Call>{weighted(group.step, 1), weighted(group.step, 2), weighted(group.step, c)};
  };
  CHECK_EQ(group.call_late({6, 12, 70}, by(7)), 6.0F);
  CHECK_EQ(group.call_all({6, 12, kNothing}, by(0)), 88.0F / 10);
  CHECK_EQ(group.call_all({6, 12, kNothing}, by(0)), 6.0F);
  CHECK_EQ(group.excluded_bytes(), 0u);
  CHECK(group.reports[0].closed_by == ClosedBy::Complete);
}

TEST(a_rank_without_samples_that_is_late_keeps_its_residual) {
  Three group;
  const auto by = [&](std::uint32_t c) {
    return std::vector<Call>{weighted(group.step, 1), weighted(group.step, 2), weighted(group.step, c)};
  };
  CHECK_EQ(group.call_late({6, 12, 70}, by(7)), 6.0F);
  CHECK_EQ(group.call_late({6, 12, kNothing}, by(0)), 6.0F);
  CHECK_EQ(group.call_all({6, 12, 5}, by(5)), 93.0F / 15);
}

TEST(an_exact_weighted_mean_includes_what_is_left) {
  Three group;
  CHECK_EQ(group.call_late({6, 12, 70},
                           {weighted(group.step, 1), weighted(group.step, 2), weighted(group.step, 7)}),
           6.0F);
  const std::vector<Call> nothing(3, weighted(group.step, 0, false));
  CHECK_EQ(group.call_all({kNothing, kNothing, kNothing}, nothing), 10.0F);
  CHECK_EQ(group.call_all({kNothing, kNothing, kNothing}, nothing), 0.0F);
  CHECK(!group.reports[0].bounded);
}

TEST(an_exact_sum_includes_what_is_left) {
  Three group;
  CHECK_EQ(group.call_late({1, 2, 4}, std::vector<Call>(3, bounded(group.step))), 3.0F);
  CHECK_EQ(group.call_all({0, 0, 0}, std::vector<Call>(3, exact_sum(group.step))), 4.0F);
  CHECK_EQ(group.call_all({0, 0, 0}, std::vector<Call>(3, exact_sum(group.step))), 0.0F);
}

TEST(an_exact_operation_of_another_stream_leaves_it) {
  Three group;
  CHECK_EQ(group.call_late({1, 2, 4}, std::vector<Call>(3, bounded(group.step))), 3.0F);
  CHECK_EQ(group.call_all({0, 0, 0}, std::vector<Call>(3, exact())), 0.0F);
  CHECK_EQ(group.call_all({0, 0, 0}, std::vector<Call>(3, bounded(group.step))), 4.0F);
}

TEST(what_went_along_with_an_exact_operation_that_fails_is_kept) {
  Ranks ranks(4, impatient());
  const std::uint64_t step = learn(ranks, 4);
  std::vector<Values> values = values_of(4);
  for (Rank rank = 0; rank < 4; ++rank) {
    if (rank == 2) ranks.run(Duration::millis(100));
    ranks.start(rank, Ranks::with(bounded(step), values[rank]));
  }
  ranks.run(Duration::millis(50));
  for (Rank rank = 0; rank < 4; ++rank) CHECK_EQ(ranks.take_reports(rank).size(), 1u);
  CHECK(all_are(values[0], 3.0F));  // ranks 2 and 3 were late
  ranks.kill(3);
  std::vector<Values> nothing(4, Values(kElements, 0.0F));
  for (Rank rank = 0; rank < 3; ++rank) ranks.start(rank, Ranks::with(exact_sum(step + 1), nothing[rank]));
  ranks.run(Duration::millis(3'000));
  for (Rank rank = 0; rank < 3; ++rank) {
    const std::vector<Report> reports = ranks.take_reports(rank);
    CHECK_EQ(reports.size(), 1u);
    CHECK(reports[0].error == ErrorCode::RankLost);
  }
  nothing.assign(4, Values(kElements, 0.0F));
  for (Rank rank = 0; rank < 3; ++rank) ranks.start(rank, Ranks::with(exact_sum(step + 1), nothing[rank]));
  ranks.run(Duration::millis(100));
  for (Rank rank = 0; rank < 3; ++rank) {
    CHECK_EQ(ranks.take_reports(rank).size(), 1u);
    CHECK(same_bits(nothing[rank], nothing[0]));
  }
  CHECK(all_are(nothing[0], 4.0F));  // that of rank 3 is gone with it
}

RUN_TESTS()
