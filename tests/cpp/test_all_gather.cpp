// The second stage: decided packets go to everybody once, others' are held, and passed on where their owner
// cannot answer.
#include "check.h"
#include "stage_case.h"

using namespace stagecase;

namespace {

std::vector<Peer> peers_of(std::size_t count) {
  std::vector<Peer> peers(count);
  for (Peer& peer : peers) peer.window = SendWindow({1 << 20, 1 << 20, 1 << 20}, kPayload, 64);
  return peers;
}

std::uint64_t accept(Stages& rank, Rank from, Rank owner, std::uint32_t first, std::uint32_t packets,
                     std::uint64_t set) {
  const Rank index = rank.gather.index(owner);
  return rank.gather.accept(kNow, owner, rank.run(PacketType::Decision, from, index, first, packets, 5, set));
}

constexpr RequestEntry kEverything{0, Shard::mask_of(0, kPackets)};

RequestContext asked_by(Rank rank, std::uint32_t now) {
  return {.from = rank, .rank = rank, .newest = 0, .now = now, .min_age = 10};
}

}  // namespace

TEST(a_decision_is_new_once_whoever_sends_it) {
  Stages rank(0, 3);
  CHECK_EQ(accept(rank, 1, 1, 0, 2, 0b111), std::uint64_t{0b0011});
  CHECK_EQ(accept(rank, 1, 1, 0, 2, 0b111), std::uint64_t{0});
  CHECK_EQ(accept(rank, 2, 1, 1, 3, 0b111), std::uint64_t{0b1100});  // passed on
  CHECK(rank.gather.complete(1));
  CHECK(!rank.gather.complete());
  accept(rank, 2, 2, 0, kPackets, 0b111);
  CHECK(rank.gather.complete());
}

TEST(who_is_in_a_decision_is_remembered_for_each_packet) {
  Stages rank(0, 3);
  accept(rank, 1, 1, 0, 2, 0b111);
  CHECK(rank.gather.details(1).all_usual());
  accept(rank, 1, 1, 2, 1, 0b010);
  accept(rank, 1, 1, 1, 3, 0b011);  // what is known already does not change
  const std::uint64_t sets[] = {0b111, 0b111, 0b010, 0b011};
  for (std::uint32_t packet = 0; packet < kPackets; ++packet)
    CHECK_EQ(rank.gather.details(1).detail(packet), sets[packet]);
}

TEST(what_nobody_has_is_void_and_what_is_held_is_not) {
  Stages rank(0, 2);
  accept(rank, 1, 1, 0, 2, 0b11);
  rank.gather.make_void(1, 0, Shard::mask_of(0, kPackets));
  CHECK(rank.gather.complete());
  CHECK_EQ(rank.gather.details(1).detail(1), std::uint64_t{0b11});
  CHECK_EQ(rank.gather.details(1).detail(2), std::uint64_t{0});
  CHECK_EQ(accept(rank, 1, 1, 2, 2, 0b11), std::uint64_t{0});  // it comes too late
}

TEST(decided_packets_go_to_everybody_once_in_runs_of_the_same_set) {
  Stages owner(0, 3);
  owner.begin(1);
  owner.contribute(1, 0, kPackets, 10);
  owner.contribute(2, 0, 2, 100);
  owner.scatter.close(owner.bucket);
  const std::vector<Peer> peers = peers_of(3);
  OutgoingBatch batch;
  CHECK(owner.gather.next(owner.scatter.decided(), peers, batch));
  CHECK((batch.to == std::vector<Rank>{1, 2}));
  CHECK_EQ(batch.first_packet, 0u);
  CHECK_EQ(batch.packets, 2u);
  CHECK_EQ(batch.detail, std::uint64_t{0b111});
  CHECK(owner.gather.next(owner.scatter.decided(), peers, batch));
  CHECK_EQ(batch.first_packet, 2u);
  CHECK_EQ(batch.packets, 2u);
  CHECK_EQ(batch.detail, std::uint64_t{0b011});
  CHECK(!owner.gather.next(owner.scatter.decided(), peers, batch));
  CHECK(owner.gather.all_sent(owner.scatter.decided()));
}

TEST(nothing_is_sent_to_a_member_that_was_removed) {
  Stages owner(0, 3);
  owner.begin(1);
  owner.gather.stop_sending_to(2);
  owner.scatter.close(owner.bucket);
  OutgoingBatch batch;
  CHECK(owner.gather.next(owner.scatter.decided(), peers_of(3), batch));
  CHECK(batch.to == std::vector<Rank>{1});
  CHECK(owner.gather.all_sent(owner.scatter.decided()));
}

TEST(of_our_shard_only_what_was_sent_and_is_lost_is_sent_again) {
  Stages owner(0, 2);
  owner.begin(1);
  owner.contribute(1, 0, 2, 10);
  CHECK_EQ(owner.gather.to_repair(0, kEverything, asked_by(1, 1'000), owner.scatter.decided(0)),
           std::uint64_t{0});
  OutgoingBatch batch;
  CHECK(owner.gather.next(owner.scatter.decided(), peers_of(2), batch));
  owner.gather.stamp(batch, 1, 1, 500);
  CHECK_EQ(owner.gather.to_repair(0, kEverything, asked_by(1, 505), owner.scatter.decided(0)),
           std::uint64_t{0});
  CHECK_EQ(owner.gather.to_repair(0, kEverything, asked_by(1, 510), owner.scatter.decided(0)),
           std::uint64_t{0b0011});
}

TEST(whatever_is_held_of_another_owner_is_passed_on_but_not_twice_at_once) {
  Stages rank(0, 3);
  accept(rank, 1, 1, 1, 2, 0b111);
  CHECK_EQ(rank.gather.to_repair(1, kEverything, asked_by(2, 1'000), rank.gather.inbox(1).received(0)),
           std::uint64_t{0b0110});
  OutgoingBatch batch;
  batch.shard = rank.gather.shard(1);
  batch.shard_index = rank.gather.index(1);
  batch.first_packet = 1;
  batch.packets = 2;
  rank.gather.stamp(batch, 2, 2, 1'000);
  CHECK_EQ(rank.gather.to_repair(1, kEverything, asked_by(2, 1'005), rank.gather.inbox(1).received(0)),
           std::uint64_t{0});
  CHECK_EQ(rank.gather.to_repair(1, kEverything, asked_by(2, 1'010), rank.gather.inbox(1).received(0)),
           std::uint64_t{0b0110});
  CHECK_EQ(rank.gather.to_repair(1, {5, ~std::uint64_t{0}}, asked_by(2, 2'000), 0), std::uint64_t{0});
}

TEST(a_rank_that_is_no_member_of_the_operation_is_answered_too) {
  Stages owner(0, 2);
  owner.begin(1);
  owner.contribute(1, 0, kPackets, 10);
  const RequestContext joined{.from = 0xffff, .rank = 9, .newest = 0, .now = 1'000, .min_age = 10};
  CHECK_EQ(owner.gather.to_repair(0, kEverything, joined, owner.scatter.decided(0)), kEverything.missing);
}

RUN_TESTS()
