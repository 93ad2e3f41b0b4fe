// The owner's side of the first stage: when a packet is decided, what its sum is, and who is in it. And the
// contributor's side: what is sent, and sent again.
#include <limits>

#include "check.h"
#include "stage_case.h"

using namespace stagecase;

namespace {

constexpr std::uint64_t kAll = 0b111;
const Weights kEqual(1);

const WindowBounds kOpen{1 << 20, 1 << 20, 1 << 20};

SendWindow open_window() {
  return SendWindow(kOpen, kPayload, 64);
}

/// Asked long after everything was sent.
constexpr RequestContext kLongAfter{.from = 1, .rank = 1, .newest = 1'000, .now = 1'000'000, .min_age = 10};
constexpr RequestEntry kEverything{0, Shard::mask_of(0, kPackets)};

}  // namespace

TEST(a_packet_is_decided_when_all_contributions_are_here_and_includes_everybody) {
  Stages owner(0, 3);
  owner.begin(1);
  owner.contribute(1, 0, kPackets, 10);
  CHECK_EQ(owner.scatter.undecided_packets(), kPackets);
  owner.contribute(2, 1, 2, 100);
  CHECK_EQ(owner.scatter.undecided_packets(), kPackets - 2);
  CHECK_EQ(owner.scatter.decided(0), 0b0110u);
  CHECK_EQ(owner.value_of(1), 111.0F);
  CHECK_EQ(owner.value_of(0), 1.0F);  // as it was
  CHECK_EQ(owner.scatter.decided().detail(1), kAll);
}

TEST(nothing_is_decided_without_our_own_contribution_before_the_shard_is_closed) {
  Stages owner(0, 3);
  owner.contribute(1, 0, kPackets, 10);
  owner.contribute(2, 0, kPackets, 100);
  CHECK_EQ(owner.scatter.undecided_packets(), kPackets);
  owner.begin(1);
  CHECK_EQ(owner.scatter.undecided_packets(), 0u);
  CHECK_EQ(owner.value_of(3), 111.0F);
}

TEST(closing_decides_the_rest_with_the_contributions_that_are_here_and_says_who_is_in) {
  Stages owner(0, 3);
  owner.begin(1);
  owner.contribute(1, 0, 2, 10);
  owner.contribute(2, 1, 2, 100);
  owner.scatter.close(owner.bucket);
  CHECK_EQ(owner.scatter.undecided_packets(), 0u);
  const float sums[] = {11, 111, 101, 1};
  const std::uint64_t sets[] = {0b011, 0b111, 0b101, 0b001};
  for (std::uint32_t packet = 0; packet < kPackets; ++packet) {
    CHECK_EQ(owner.value_of(packet), sums[packet]);
    CHECK_EQ(owner.scatter.decided().detail(packet), sets[packet]);
  }
  CHECK_EQ(owner.scatter.excluded_packets(1), 2u);
  CHECK_EQ(owner.scatter.excluded_packets(2), 2u);
  CHECK_EQ(owner.scatter.excluded_packets(0), 0u);
}

TEST(an_owner_whose_process_is_late_decides_without_its_own_contribution) {
  Stages owner(0, 3);
  owner.contribute(1, 0, kPackets, 10);
  owner.scatter.close(owner.bucket);
  CHECK_EQ(owner.value_of(0), 10.0F);
  CHECK_EQ(owner.scatter.decided().detail(0), std::uint64_t{0b010});
  CHECK_EQ(owner.scatter.excluded_packets(0), kPackets);
}

TEST(what_nobody_contributed_to_is_void) {
  Stages owner(0, 3);
  owner.contribute(1, 0, 1, 10);
  owner.scatter.close(owner.bucket);
  CHECK_EQ(owner.scatter.decided().detail(2), std::uint64_t{0});
  CHECK_EQ(owner.value_of(2), 0.0F);
}

TEST(a_decision_is_final) {
  Stages owner(0, 3);
  owner.begin(1);
  owner.contribute(1, 0, kPackets, 10);
  owner.scatter.close(owner.bucket);
  CHECK_EQ(owner.contribute(2, 0, kPackets, 100), 0u);
  owner.scatter.close(owner.bucket);
  CHECK_EQ(owner.value_of(0), 11.0F);
  CHECK_EQ(owner.scatter.decided().detail(0), std::uint64_t{0b011});
  CHECK_EQ(owner.scatter.decided().packets(), kPackets);
}

TEST(closing_may_leave_the_first_packets_open) {
  Stages owner(0, 2);
  owner.begin(1);
  owner.contribute(1, 0, 1, 10);
  owner.scatter.close(owner.bucket, kPackets - 1);  // so many are open already
  CHECK_EQ(owner.scatter.undecided_packets(), kPackets - 1);
}

TEST(a_bounded_mean_divides_by_all_members_whoever_is_included) {
  Stages owner(0, 4, ReduceOp::Mean);
  owner.begin(4);
  owner.contribute(1, 0, kPackets, 8);
  owner.scatter.close(owner.bucket);
  CHECK_EQ(owner.value_of(0), 3.0F);
}

TEST(an_exact_mean_divides_by_the_weights) {
  Stages owner(0, 2, ReduceOp::Mean, false);
  owner.begin(4, 3);
  owner.contribute(1, 0, kPackets, 8, 1);
  CHECK_EQ(owner.value_of(0), 3.0F);
  CHECK_EQ(owner.scatter.contributed_weight(), std::uint64_t{4});
}

TEST(a_mean_of_one_rank_divides_by_its_weight) {
  for (const ReduceOp op : {ReduceOp::Mean, ReduceOp::WeightedMean}) {
    Stages owner(0, 1, op, false);
    owner.begin(12, 3);
    CHECK_EQ(owner.value_of(0), 4.0F);
  }
}

// ---- Weighted means

TEST(a_weighted_mean_divides_each_packet_by_the_weights_that_are_in_it) {
  Stages owner(0, 3, ReduceOp::WeightedMean);
  owner.begin(6, 3);
  owner.contribute(1, 0, 1, 12, 1);
  owner.contribute(1, 1, 1, 12, 6);  // a residual went along
  owner.contribute(2, 1, 2, 9, 0);   // without samples, but another packet has a residual
  owner.scatter.close(owner.bucket);
  const float means[] = {18.0F / 4, 27.0F / 9, 15.0F / 3, 6.0F / 3};
  const std::uint64_t sets[] = {0b011, 0b111, 0b101, 0b001};
  for (std::uint32_t packet = 0; packet < kPackets; ++packet) {
    CHECK_EQ(owner.value_of(packet), means[packet]);
    CHECK_EQ(owner.scatter.decided().detail(packet), sets[packet]);
  }
}

TEST(our_own_residual_weighs_in_the_packets_that_it_went_along_with) {
  Stages owner(0, 2, ReduceOp::WeightedMean);
  Weights weights(2);
  weights.divide(owner.schedule.bytes(), kPayload);
  weights.add(owner.scatter.shard(), 1, 3);
  owner.begin(10, weights);
  owner.contribute(1, 0, kPackets, 20, 5);
  CHECK_EQ(owner.value_of(0), 30.0F / 7);
  CHECK_EQ(owner.value_of(1), 30.0F / 10);
}

TEST(a_packet_that_comes_twice_weighs_once) {
  Stages owner(0, 3, ReduceOp::WeightedMean);
  owner.begin(6, 3);
  owner.contribute(1, 0, 1, 12, 1);
  owner.contribute(1, 0, 2, 12, 1);
  owner.contribute(2, 0, 2, 2, 1);
  CHECK_EQ(owner.value_of(0), 20.0F / 5);
  CHECK_EQ(owner.value_of(1), 20.0F / 5);
}

TEST(all_that_a_rank_without_samples_has_is_in_a_weighted_mean) {
  Stages owner(0, 3, ReduceOp::WeightedMean);
  owner.begin(6, 3);
  owner.contribute(1, 0, kPackets, 12, 1);
  owner.scatter.note_abstention(2, owner.bucket);
  CHECK_EQ(owner.value_of(0), 18.0F / 4);
  CHECK_EQ(owner.scatter.decided().detail(0), kAll);
  CHECK(owner.scatter.decided().all_usual());
}

TEST(a_batch_has_one_weight) {
  Stages rank(0, 2, ReduceOp::WeightedMean);
  Outbox& outbox = rank.scatter.outbox(1);
  const Shard shard = rank.schedule.shard(rank.schedule.shard_of(1));
  Weights weights(2);
  weights.divide(rank.schedule.bytes(), kPayload);
  weights.add(shard, 1, 3);
  weights.add(shard, 2, 3);
  outbox.begin();
  OutgoingBatch batch;
  const std::uint32_t firsts[] = {0, 1, 3}, packets[] = {1, 2, 1};
  for (int i = 0; i < 3; ++i) {
    CHECK(outbox.next(open_window(), rank.gather.inbox(1), weights, batch));
    CHECK_EQ(batch.first_packet, firsts[i]);
    CHECK_EQ(batch.packets, packets[i]);
  }
  CHECK(outbox.all_sent());
}

TEST(best_effort_divides_by_what_came_but_by_half_of_the_ranks_at_least) {
  OperationSetup setup = Stages::setup_of(0, 4, ReduceOp::Mean);
  setup.best_effort = true;
  Stages owner(setup);
  owner.begin(2);
  owner.contribute(1, 0, 1, 4);
  owner.contribute(2, 0, 1, 6);
  owner.scatter.close(owner.bucket);
  CHECK_EQ(owner.value_of(0), 4.0F);                              // three of four
  CHECK_EQ(owner.value_of(1), 1.0F);                              // one of four counts as two
  CHECK_EQ(owner.scatter.decided().detail(0), std::uint64_t{1});  // so many are missing
  CHECK_EQ(owner.scatter.decided().detail(1), std::uint64_t{3});
}

TEST(a_rank_that_abstains_is_not_waited_for_and_nothing_of_it_is_missing) {
  Stages owner(0, 3);
  owner.begin(1);
  owner.contribute(1, 0, kPackets, 10);
  owner.scatter.note_abstention(2, owner.bucket);
  CHECK_EQ(owner.scatter.undecided_packets(), 0u);
  CHECK_EQ(owner.value_of(0), 11.0F);
  CHECK_EQ(owner.scatter.excluded_packets(2), 0u);
}

TEST(a_rank_that_was_removed_is_not_waited_for) {
  Stages owner(0, 3);
  owner.begin(1);
  owner.contribute(1, 0, kPackets, 10);
  owner.contribute(2, 0, 1, 100);
  CHECK(owner.scatter.lacks(2));
  owner.scatter.stop_waiting_for(2, owner.bucket);
  CHECK(!owner.scatter.lacks(2));
  CHECK_EQ(owner.scatter.undecided_packets(), 0u);
  CHECK_EQ(owner.value_of(0), 111.0F);  // what came before counts
  CHECK_EQ(owner.value_of(1), 11.0F);
}

TEST(who_contributes_what_is_not_finite_is_named) {
  Stages owner(0, 3);
  owner.begin(1);
  owner.contribute(1, 0, kPackets, 10);
  owner.contribute(2, 0, 1, std::numeric_limits<float>::infinity());
  CHECK(owner.scatter.non_finite() == std::set<Rank>{2});
  Stages own(0, 2);
  own.begin(std::numeric_limits<float>::quiet_NaN());
  own.contribute(1, 0, 1, 1);
  CHECK(own.scatter.non_finite() == std::set<Rank>{0});
}

// ---- As a contributor

TEST(nothing_is_sent_before_the_process_has_begun_and_everything_after) {
  Stages rank(0, 2);
  OutgoingBatch batch;
  Outbox& outbox = rank.scatter.outbox(1);
  CHECK(!outbox.next(open_window(), rank.gather.inbox(1), kEqual, batch));
  CHECK(outbox.all_sent());
  outbox.begin();
  CHECK(!outbox.all_sent());
  CHECK(outbox.next(open_window(), rank.gather.inbox(1), kEqual, batch));
  CHECK_EQ(batch.first_packet, 0u);
  CHECK_EQ(batch.packets, kPackets);
  CHECK(outbox.all_sent());
}

TEST(what_was_decided_without_us_is_not_sent_any_more) {
  Stages rank(0, 2);
  Outbox& outbox = rank.scatter.outbox(1);
  outbox.begin();
  rank.gather.inbox(1).accept(kNow, 0, 0b0101);
  OutgoingBatch batch;
  CHECK(outbox.next(open_window(), rank.gather.inbox(1), kEqual, batch));
  CHECK_EQ(batch.first_packet, 1u);
  CHECK_EQ(batch.packets, 1u);
  CHECK(outbox.next(open_window(), rank.gather.inbox(1), kEqual, batch));
  CHECK_EQ(batch.first_packet, 3u);
  CHECK(!outbox.next(open_window(), rank.gather.inbox(1), kEqual, batch));
}

TEST(only_what_was_sent_and_is_not_decided_is_sent_again) {
  Stages rank(0, 2);
  Outbox& outbox = rank.scatter.outbox(1);
  CHECK_EQ(outbox.to_repair(kEverything, kLongAfter, rank.gather.inbox(1)), std::uint64_t{0});
  outbox.begin();
  CHECK_EQ(outbox.to_repair(kEverything, kLongAfter, rank.gather.inbox(1)), std::uint64_t{0});
  OutgoingBatch batch;
  CHECK(outbox.next(open_window(), rank.gather.inbox(1), kEqual, batch));
  outbox.stamp(batch, 500);
  CHECK_EQ(outbox.to_repair(kEverything, kLongAfter, rank.gather.inbox(1)), kEverything.missing);
  rank.gather.inbox(1).accept(kNow, 0, 0b0010);
  CHECK_EQ(outbox.to_repair(kEverything, kLongAfter, rank.gather.inbox(1)), std::uint64_t{0b1101});
  CHECK_EQ(outbox.to_repair({7, ~std::uint64_t{0}}, kLongAfter, rank.gather.inbox(1)), std::uint64_t{0});
}

TEST(what_may_still_be_under_way_is_not_sent_again) {
  Stages rank(0, 2);
  Outbox& outbox = rank.scatter.outbox(1);
  outbox.begin();
  OutgoingBatch batch;
  CHECK(outbox.next(open_window(), rank.gather.inbox(1), kEqual, batch));
  outbox.stamp(batch, 500);
  const RequestContext soon{.from = 1, .rank = 1, .newest = 499, .now = 509, .min_age = 10};
  CHECK_EQ(outbox.to_repair(kEverything, soon, rank.gather.inbox(1)), std::uint64_t{0});
  const RequestContext overtaken{.from = 1, .rank = 1, .newest = 500, .now = 509, .min_age = 10};
  CHECK_EQ(outbox.to_repair(kEverything, overtaken, rank.gather.inbox(1)), kEverything.missing);
}

TEST(nothing_is_sent_to_a_rank_that_was_removed) {
  Stages rank(0, 2);
  Outbox& outbox = rank.scatter.outbox(1);
  outbox.begin();
  outbox.stop();
  OutgoingBatch batch;
  CHECK(!outbox.next(open_window(), rank.gather.inbox(1), kEqual, batch));
  CHECK(outbox.all_sent());
  CHECK_EQ(outbox.to_repair(kEverything, kLongAfter, rank.gather.inbox(1)), std::uint64_t{0});
}

RUN_TESTS()
