// Both stages of an operation and its memory: ranks and stages that have no part, and what is left for
// latecomers after the end.
#include <cstring>
#include <numeric>

#include "check.h"
#include "stage/exchange.h"
#include "stage_case.h"

using namespace stagecase;

namespace {

OperationSetup shuffled(Rank me, Rank places) {
  OperationSetup setup = Stages::setup_of(me, places);
  setup.payload_bytes = kPayload;
  setup.order_seed = 5;
  return setup;
}

/// An exchange whose process has come, with another value everywhere. All of our shard is decided.
struct Decisions {
  explicit Decisions(const OperationSetup& setup)
      : values(setup.descriptor.elements), exchange(setup, kNow), peers(setup.places()) {
    std::iota(values.begin(), values.end(), 1.0F);
    for (Peer& peer : peers) peer.window = SendWindow({1 << 20, 1 << 20, 1 << 20}, kPayload, 64);
    exchange.bucket().begin(reinterpret_cast<std::byte*>(values.data()), {});
    exchange.scatter().begin(Weights(1), exchange.bucket());
    exchange.scatter().close(exchange.bucket());
  }

  bool fill_repair(Rank owner, Rank to, std::uint32_t chunk = 0) {
    return exchange.fill_repair({.type = PacketType::Decision,
                                 .to = to,
                                 .shard = exchange.gather().index(owner),
                                 .chunk = chunk,
                                 .packets = Shard::mask_of(0, kPackets)},
                                batch);
  }

  std::vector<float> values;
  Exchange exchange;
  std::vector<Peer> peers;
  OutgoingBatch batch;
};

}  // namespace

TEST(after_the_end_our_shard_is_sent_again_as_it_was_and_others_are_gone) {
  Decisions rank(shuffled(0, 3));
  const std::vector<float> decided = rank.values;
  rank.exchange.detach(true, false, {2});
  std::fill(rank.values.begin(), rank.values.end(), 0.0F);  // the caller's again
  CHECK(rank.fill_repair(0, 1));
  CHECK_EQ(rank.batch.packets, kPackets);
  for (std::uint32_t packet = 0; packet < kPackets; ++packet) {
    const std::size_t begin = place_of(rank.batch.shard, packet).begin;
    CHECK(std::memcmp(rank.batch.payload(packet).data(), decided.data() + begin / sizeof(float), kPayload) ==
          0);
  }
  CHECK(!rank.fill_repair(1, 2));
  CHECK(rank.fill_repair(2, 1));  // of an owner that was removed
  CHECK_EQ(rank.exchange.bucket().engine_bytes(), std::size_t{2} * kPackets * kPayload);
}

TEST(chunks_that_all_members_have_are_not_kept_where_nobody_returns) {
  OperationSetup setup = shuffled(0, 3);
  setup.descriptor.elements = 3 * 200 * kPacketValues;  // four chunks for each owner
  Decisions rank(setup);
  const std::vector<float> decided = rank.values;
  rank.exchange.gather().note_received(0, 1, 3);
  rank.exchange.gather().note_received(0, 2, 2);
  rank.exchange.gather().note_received(0, 2, 0);  // an old packet
  rank.exchange.detach(false, false, {});
  std::fill(rank.values.begin(), rank.values.end(), 0.0F);
  CHECK(!rank.fill_repair(0, 1, 1));
  CHECK(rank.fill_repair(0, 1, 2));
  const std::uint32_t packet = rank.batch.first_packet;
  const std::size_t begin = place_of(rank.batch.shard, packet).begin;
  CHECK(std::memcmp(rank.batch.payload(packet).data(), decided.data() + begin / sizeof(float), kPayload) ==
        0);

  Decisions other(setup);
  for (Rank place : {Rank{1}, Rank{2}}) other.exchange.gather().note_received(0, place, 1'000'000);
  other.exchange.detach(false, false, {});
  CHECK_EQ(other.exchange.bucket().engine_bytes(), 0u);
  CHECK(!other.fill_repair(0, 1, 3));
}

TEST(a_contribution_says_how_much_of_its_owner_s_shard_is_there) {
  OperationSetup setup = shuffled(0, 2);
  setup.descriptor.elements = 2 * 200 * kPacketValues;
  Decisions rank(setup);
  std::vector<bool> blocked(2, false);
  rank.exchange.make_void(1, 0, ~std::uint64_t{0});
  CHECK(rank.exchange.next_contribution(rank.peers, blocked, rank.batch));
  CHECK_EQ(rank.batch.detail, std::uint64_t{1} << 32 | 1);  // a chunk, and a weight of 1
}

TEST(contributions_that_are_sent_again_say_their_own_weights) {
  OperationSetup setup = shuffled(0, 2);
  setup.descriptor.op = ReduceOp::WeightedMean;
  Decisions rank(setup);
  Weights weights(2);
  weights.divide(rank.exchange.bytes(), setup.payload_bytes);
  const Shard& theirs = rank.exchange.gather().shard(1);
  weights.add(theirs, 1, 5);
  rank.exchange.scatter().begin(weights, rank.exchange.bucket());
  std::vector<std::uint64_t> sent;
  Repair repair{PacketType::Contribution, 0, 1, rank.exchange.gather().index(1), 0, Shard::mask_of(0, 3)};
  while (repair.packets != 0) {
    CHECK(rank.exchange.fill_repair(repair, rank.batch));
    for (std::uint32_t packet = 0; packet < rank.batch.packets; ++packet) sent.push_back(rank.batch.detail);
    repair.packets &= ~Shard::mask_of(rank.batch.first_packet, rank.batch.packets);
  }
  CHECK((sent == std::vector<std::uint64_t>{2, 7, 2}));
}

TEST(a_rank_that_only_listens_waits_for_decisions_and_sends_nothing) {
  Decisions rank(shuffled(kNoPlace, 3));
  std::vector<bool> blocked(3, false);
  CHECK(!rank.exchange.next_decision(kNow, rank.peers, false, rank.batch));
  CHECK(!rank.exchange.next_decision(kNow, rank.peers, true, rank.batch));
  CHECK(!rank.exchange.next_contribution(rank.peers, blocked, rank.batch));
  CHECK(blocked == std::vector<bool>(3, false));
  CHECK_EQ(rank.exchange.scatter().undecided_packets(), 0u);
  CHECK(!rank.exchange.complete());
  for (Rank owner = 0; owner < 3; ++owner) {
    CHECK(!rank.exchange.scatter().lacks(owner));
    rank.exchange.make_void(owner, 0, Shard::mask_of(0, kPackets));
  }
  CHECK(rank.exchange.complete());
}

RUN_TESTS()
