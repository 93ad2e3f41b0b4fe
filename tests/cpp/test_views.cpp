// Random schedules of membership views over the real classes, checked after every step.
#include <cinttypes>
#include <cstdio>

#include "check.h"
#include "views_seeds.h"

using namespace views_test;

namespace {

void print(const char* name, const Totals& totals) {
  std::printf("%s: %" PRIu64 " schedules, %" PRIu64 " steps, %" PRIu64 " views, %" PRIu64 " removed, %" PRIu64
              " joined, ",
              name, totals.schedules, totals.steps, totals.views, totals.removed, totals.joined);
  std::printf("%" PRIu64 " shards passed on, %" PRIu64 " left behind, %" PRIu64 " restarts, %" PRIu64
              " snapshots, %" PRIu64 " learned, %" PRIu64 " leaves; ",
              totals.passed, totals.left_behind, totals.restarts, totals.restores, totals.learned,
              totals.leaves);
  std::printf("%" PRIu64 " finished, %" PRIu64 " blocked\n", totals.finished, totals.blocked);
}

void check_shape(const char* name, const Shape& shape, std::uint64_t first) {
  Totals totals;
  const Outcome outcome = run_seeds(shape, {}, first, seeds(400), totals);
  print(name, totals);
  if (outcome.violations != 0) std::printf("%s", outcome.first.c_str());
  CHECK_EQ(outcome.violations, 0);
}

/// The checks must notice within so many schedules that a rule is missing.
void check_noticed(bool Broken::* rule, std::uint64_t count, const Shape& shape) {
  Broken broken;
  broken.*rule = true;
  Totals totals;
  const Outcome outcome = run_seeds(shape, broken, 1, count, totals);
  std::printf("  noticed after %" PRIu64 " schedules: %s\n", outcome.schedules,
              outcome.first.substr(0, outcome.first.find('\n')).c_str());
  CHECK_EQ(outcome.violations, 1);
}

const Shape kFour{};
const Shape kLong{.ranks = 3, .operations = 12, .places = 3};
const Shape kExact{.operations = 8, .exact = 0b10110100};

}  // namespace

TEST(four_ranks_agree_under_random_schedules) {
  check_shape("4 ranks", kFour, 1);
}

TEST(five_ranks_with_two_places_each_agree) {
  check_shape("5 ranks, 10 places", {.ranks = 5, .operations = 6, .places = 10, .max_lag = 2}, 100'000);
}

TEST(three_ranks_agree_over_many_steps) {
  check_shape("3 ranks, 12 operations", kLong, 200'000);
}

TEST(two_ranks_agree_where_the_lowest_goes_on_alone) {
  check_shape("2 ranks", {.ranks = 2, .operations = 8, .places = 4}, 300'000);
}

TEST(a_majority_of_the_group_is_needed_by_default) {
  check_shape("4 ranks, 3 needed", {.min_ranks = 0}, 400'000);
}

TEST(exact_operations_end_alike_on_all_members) {
  check_shape("4 ranks, some exact", kExact, 500'000);
}

TEST(exact_operations_only) {
  check_shape("3 ranks, all exact", {.ranks = 3, .operations = 6, .places = 3, .exact = 0b111111}, 600'000);
}

TEST(without_deafness_void_decisions_are_held) {
  check_noticed(&Broken::no_deaf, 200, kFour);
}
TEST(deafness_of_the_last_ballot_is_not_enough) {
  check_noticed(&Broken::deaf_of_last_ballot, 200, kFour);
}
TEST(deafness_is_by_sender_not_by_owner) {
  check_noticed(&Broken::deaf_by_owner, 1000, kExact);
}
TEST(states_of_all_that_stay_are_needed) {
  check_noticed(&Broken::states_of_some, 300, kFour);
}
TEST(an_adopted_view_must_be_carried_through) {
  check_noticed(&Broken::adopted_ignored, 500, kFour);
}
TEST(any_half_is_no_quorum) {
  check_noticed(&Broken::half_is_quorum, 500, kLong);
}
TEST(nothing_is_touched_beyond_the_reach) {
  check_noticed(&Broken::no_reach, 300, kFour);
}
TEST(the_cut_is_above_everybodys_reach) {
  check_noticed(&Broken::cut_by_own_reach, 300, kFour);
}
TEST(a_returned_rank_serves_only_from_its_cut_on) {
  check_noticed(&Broken::no_since, 300, kFour);
}
TEST(a_joiner_forgets_what_it_held) {
  check_noticed(&Broken::joiner_keeps_held, 100, kFour);
}
TEST(digests_are_compared) {
  check_noticed(&Broken::no_digest, 200, kFour);
}
TEST(what_is_gone_is_not_void) {
  check_noticed(&Broken::gone_is_void, 500, kFour);
}
TEST(a_restarted_rank_must_not_vote) {
  check_noticed(&Broken::restarted_votes, 600, kLong);
}
TEST(leaving_frees_no_slot) {
  check_noticed(&Broken::away_frees_slots, 100, kFour);
}
TEST(an_owner_decides_once) {
  check_noticed(&Broken::owner_adds_late, 100, kFour);
}
TEST(outside_the_view_only_what_all_have_completed_is_learned) {
  check_noticed(&Broken::learns_ahead, 3000, kLong);
}
TEST(what_all_have_completed_is_not_undone) {
  check_noticed(&Broken::no_stable, 2000, kLong);
}

RUN_TESTS()
