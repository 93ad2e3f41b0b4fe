// A grid of two rows, {0, 1} and {2, 3}, at rank 0: it relays its row's contributions to the shard of rank 2,
// adds up its row and the sum of rank 2's for its own shard, and hands on the decisions of rank 2.
#include <cmath>
#include <cstring>
#include <limits>

#include "check.h"
#include "stage/exchange.h"
#include "stage_case.h"

using namespace stagecase;

namespace {

const Routes kRoutes(4, {{0, 1}, {2, 3}});

OperationSetup in_grid(bool bounded, ReduceOp op = ReduceOp::Sum) {
  OperationSetup setup = Stages::setup_of(0, 4, op, bounded);
  setup.routes = &kRoutes;
  setup.payload_bytes = kPayload;
  return setup;
}

struct Rank0 {
  explicit Rank0(const OperationSetup& given) : wire(given), exchange(given, kNow), peers(4) {
    for (Peer& peer : peers) peer.window = SendWindow({1 << 20, 1 << 20, 1 << 20}, kPayload, 64);
    values.assign(given.descriptor.elements, 0.0F);
  }
  void begin(float value, std::uint32_t weight = 1) {
    std::fill(values.begin(), values.end(), value);
    exchange.bucket().begin(reinterpret_cast<std::byte*>(values.data()), {});
    exchange.begin(Weights(weight));
  }
  Rank index(Rank owner) const { return exchange.gather().index(owner); }
  ReceivedRun run(PacketType type, Rank from, Rank owner, std::uint32_t first, std::uint32_t packets,
                  float value, std::uint64_t detail) {
    return wire.run(type, from, index(owner), first, packets, value, detail);
  }
  void contribute(Rank from, Rank owner, std::uint32_t first, std::uint32_t packets, float value,
                  std::uint64_t detail = 1) {
    const ReceivedRun given = run(PacketType::Contribution, from, owner, first, packets, value, detail);
    CHECK(exchange.fits(given));
    exchange.collector(index(owner))->accept(kNow, from, given, exchange.bucket());
  }
  /// Of rank 2, as Operation takes it in.
  void decide(std::uint32_t first, std::uint32_t packets, float value, std::uint64_t detail) {
    const ReceivedRun given = run(PacketType::Decision, 2, 2, first, packets, value, detail);
    CHECK(exchange.fits(given));
    const std::uint64_t fresh = exchange.accept_decisions(kNow, given);
    const Shard& shard = exchange.gather().shard(2);
    shard.for_each_packet(0, fresh, [&](std::uint32_t packet) {
      exchange.bucket().put(index(2), shard, packet, given.payload(packet - first));
    });
  }
  bool next_sums() { return exchange.next_sums(peers, batch); }
  float sent(std::uint32_t packet) const { return first_value(batch.payload(packet).data()); }
  float decided(std::uint32_t packet) {
    const Shard& shard = exchange.gather().shard(0);
    return first_value(exchange.bucket().data(index(0), shard) + shard.place_of(packet));
  }
  static float first_value(const std::byte* at) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }

  Stages wire;
  Exchange exchange;
  std::vector<Peer> peers;
  std::vector<float> values;
  OutgoingBatch batch;
};

}  // namespace

TEST(a_sum_leaves_as_soon_as_all_of_the_row_is_in_it_and_the_caller_keeps_its_own) {
  Rank0 rank(in_grid(false));
  rank.contribute(1, 2, 1, 2, 10, 7);
  CHECK(!rank.next_sums());  // our own process has not begun
  rank.begin(1, 3);
  CHECK(rank.next_sums());
  CHECK((rank.batch.to == std::vector<Rank>{2}));
  CHECK(rank.batch.type == PacketType::Contribution);
  CHECK_EQ(rank.batch.first_packet, 1u);
  CHECK_EQ(rank.batch.packets, 2u);
  CHECK_EQ(rank.batch.detail, std::uint64_t{3 + 7});
  CHECK_EQ(rank.sent(1), 11.0F);
  CHECK(!rank.next_sums());
  rank.contribute(1, 2, 0, 1, 20, 7);
  CHECK(rank.next_sums());
  CHECK_EQ(rank.batch.first_packet, 0u);
  CHECK_EQ(rank.sent(0), 21.0F);
  CHECK(rank.values == std::vector<float>(rank.values.size(), 1.0F));
}

TEST(ranks_that_abstain_leave_a_sum_without_weight) {
  Rank0 rank(in_grid(false));
  rank.begin(5, 0);
  CHECK(!rank.next_sums());
  rank.exchange.note_abstention(1);
  CHECK(rank.next_sums());
  CHECK_EQ(rank.batch.packets, kPackets);
  CHECK_EQ(rank.batch.detail, std::uint64_t{0});
  CHECK_EQ(rank.sent(0), 0.0F);
}

TEST(contributions_come_from_the_row_and_sums_from_the_column_only) {
  Rank0 rank(in_grid(false));
  const auto fits = [&](Rank from, Rank owner) {
    return rank.exchange.fits(rank.run(PacketType::Contribution, from, owner, 0, 1, 1, 1));
  };
  CHECK(fits(1, 0) && fits(2, 0) && fits(1, 2));
  CHECK(!fits(3, 0) && !fits(3, 2) && !fits(2, 2) && !fits(1, 1) && !fits(1, 3));
}

TEST(our_own_contributions_go_to_our_row_only) {
  Rank0 rank(in_grid(false));
  rank.begin(1);
  std::vector<bool> blocked(4, false);
  std::vector<Rank> owners;
  while (rank.exchange.next_contribution(rank.peers, blocked, rank.batch)) {
    CHECK((rank.batch.to == std::vector<Rank>{1}));
    owners.push_back(rank.exchange.gather().owner(rank.batch.shard_index));
  }
  std::sort(owners.begin(), owners.end());
  CHECK((owners == std::vector<Rank>{1, 3}));  // rank 1 relays to rank 3
}

// (1e8 + 1) + (-1e8 + 1) is 0 in float32, in rank order, and 1e8 + 1 - 1e8 + 1 is 1.
TEST(an_owner_adds_up_its_row_first_then_the_rows_in_their_order) {
  Rank0 rank(in_grid(false));
  rank.begin(1e8F);
  rank.contribute(2, 0, 0, kPackets, -1e8F, 2);
  rank.contribute(1, 0, 0, kPackets, 1, 1);
  CHECK_EQ(rank.decided(0), 0.0F);
  CHECK_EQ(rank.exchange.scatter().contributed_weight(), std::uint64_t{4});
}

TEST(means_divide_by_everybody) {
  Rank0 exact(in_grid(false, ReduceOp::Mean));
  exact.begin(4, 2);
  exact.contribute(1, 0, 0, kPackets, 4, 2);
  exact.contribute(2, 0, 0, kPackets, 16, 6);  // the sum of a row, divided by its two ranks
  CHECK_EQ(exact.decided(0), 40.0F / 10);

  Rank0 bounded(in_grid(true, ReduceOp::Mean));
  bounded.begin(4);
  bounded.contribute(2, 0, 0, kPackets, 6, 0b1100);
  bounded.exchange.scatter().close(bounded.exchange.bucket());  // rank 1 is late
  CHECK_EQ(bounded.decided(0), 16.0F / 4);
}

// ---- With a deadline

TEST(a_closed_sum_says_who_is_in_it_and_what_comes_later_is_not) {
  Rank0 rank(in_grid(true));
  rank.contribute(1, 2, 0, 2, 10);
  rank.exchange.close_relays();  // before our own process has begun
  CHECK(rank.next_sums());
  CHECK_EQ(rank.batch.packets, 2u);
  CHECK_EQ(rank.batch.detail, std::uint64_t{0b10});
  CHECK_EQ(rank.sent(0), 10.0F);
  CHECK(rank.next_sums());
  CHECK_EQ(rank.batch.detail, std::uint64_t{0});  // nobody's
  CHECK_EQ(rank.sent(2), 0.0F);
  rank.begin(1);
  rank.contribute(1, 2, 2, 2, 10);
  CHECK(!rank.next_sums());
}

TEST(a_decision_includes_whom_the_sums_include) {
  Rank0 rank(in_grid(true));
  rank.begin(1);
  rank.contribute(1, 0, 0, kPackets, 2);
  rank.contribute(2, 0, 0, 2, 4, 0b0100);                 // rank 3 is late
  rank.contribute(2, 0, 2, 1, 0, 0);                      // both are
  rank.exchange.scatter().close(rank.exchange.bucket());  // and of the last packet nothing has come
  const Decided& decided = rank.exchange.scatter().decided();
  CHECK_EQ(decided.detail(0), std::uint64_t{0b0111});
  CHECK_EQ(decided.detail(2), std::uint64_t{0b0011});
  CHECK_EQ(decided.detail(3), std::uint64_t{0b0011});
  CHECK_EQ(rank.decided(0), 7.0F);
  CHECK_EQ(rank.decided(2), 3.0F);
}

TEST(a_relay_speaks_for_its_own_row_only) {
  Rank0 rank(in_grid(true));
  rank.begin(1);
  rank.contribute(1, 0, 0, kPackets, 2);
  rank.contribute(2, 0, 0, kPackets, 4, ~std::uint64_t{0});
  CHECK_EQ(rank.exchange.scatter().decided().detail(0), std::uint64_t{0b1111});
}

TEST(what_nobody_contributed_to_is_void_in_a_grid_too) {
  Rank0 rank(in_grid(true));
  rank.contribute(2, 0, 0, 1, 0, 0);
  rank.exchange.scatter().close(rank.exchange.bucket());
  CHECK_EQ(rank.exchange.scatter().decided().detail(0), std::uint64_t{0});
  CHECK_EQ(rank.exchange.scatter().decided().detail(1), std::uint64_t{0});
  CHECK_EQ(rank.decided(1), 0.0F);
}

TEST(what_was_decided_without_our_sum_is_not_waited_for) {
  Rank0 rank(in_grid(true));
  rank.begin(1);
  CHECK(rank.exchange.lacks(1));
  rank.exchange.collector(rank.index(0))->close(rank.exchange.bucket());
  rank.decide(0, 3, 100, 0b1100);
  CHECK(rank.exchange.lacks(1));
  rank.decide(3, 1, 100, 0b1100);
  CHECK(!rank.exchange.relays().front().sums().lacks(1));
}

// The decision has replaced our contribution: a sum of both must not leave.
TEST(what_was_decided_without_our_sum_is_not_sent_any_more) {
  Rank0 rank(in_grid(true));
  rank.begin(1);
  rank.decide(0, 1, 100, 0b1100);
  rank.contribute(1, 2, 0, kPackets, 10);
  CHECK(rank.next_sums());
  CHECK_EQ(rank.batch.first_packet, 1u);
  CHECK_EQ(rank.batch.packets, kPackets - 1);
  CHECK_EQ(rank.sent(1), 11.0F);
  CHECK(!rank.next_sums());
}

TEST(a_sum_that_is_decided_meanwhile_is_not_sent) {
  Rank0 rank(in_grid(true));
  rank.begin(1);
  rank.contribute(1, 2, 0, kPackets, 10);
  rank.decide(0, 2, 100, 0b1100);
  CHECK(rank.next_sums());
  CHECK_EQ(rank.batch.first_packet, 2u);
}

// ---- Decisions

TEST(decisions_of_the_column_are_handed_on_to_the_row_with_their_sets) {
  Rank0 rank(in_grid(true));  // also before our own process has begun
  rank.decide(1, 1, 5, 0b0111);
  rank.decide(2, 2, 6, 0b1111);
  CHECK(rank.exchange.next_decision(kNow, rank.peers, false, rank.batch));
  CHECK((rank.batch.to == std::vector<Rank>{1}));
  CHECK_EQ(rank.batch.shard_index, rank.index(2));
  CHECK_EQ(rank.batch.first_packet, 1u);
  CHECK_EQ(rank.batch.packets, 1u);
  CHECK_EQ(rank.batch.detail, std::uint64_t{0b0111});
  CHECK_EQ(rank.sent(1), 5.0F);
  CHECK(!rank.exchange.gather().all_sent(rank.exchange.scatter().decided()));
  CHECK(rank.exchange.next_decision(kNow, rank.peers, false, rank.batch));
  CHECK_EQ(rank.batch.packets, 2u);
  CHECK(!rank.exchange.next_decision(kNow, rank.peers, false, rank.batch));
  CHECK(rank.exchange.gather().all_sent(rank.exchange.scatter().decided()));
}

TEST(our_own_decisions_go_to_our_row_and_our_column) {
  Rank0 rank(in_grid(true));
  rank.begin(1);
  rank.exchange.scatter().close(rank.exchange.bucket());
  CHECK(rank.exchange.next_decision(kNow, rank.peers, false, rank.batch));
  CHECK((rank.batch.to == std::vector<Rank>{1, 2}));
}

TEST(a_relay_keeps_what_its_row_may_lack) {
  Rank0 rank(in_grid(false));
  rank.begin(1);
  rank.contribute(1, 2, 0, kPackets, 10);
  while (rank.next_sums()) rank.exchange.stamp(rank.batch, 1);
  rank.decide(0, kPackets, 5, 0);
  while (rank.exchange.next_decision(kNow, rank.peers, false, rank.batch)) rank.exchange.stamp(rank.batch, 1);
  rank.exchange.detach(false, false, {});
  std::fill(rank.values.begin(), rank.values.end(), 0.0F);
  const RequestContext asked{.from = 1, .rank = 1, .newest = 2, .now = 1'000, .min_age = 10};
  const std::uint64_t all = Shard::mask_of(0, kPackets);
  CHECK_EQ(rank.exchange.to_repair(PacketType::Decision, rank.index(2), {0, all}, asked), all);
  CHECK(rank.exchange.fill_repair(
      {.type = PacketType::Decision, .to = 1, .shard = rank.index(2), .chunk = 0, .packets = all},
      rank.batch));
  CHECK_EQ(rank.sent(0), 5.0F);
}

// ---- Repair

TEST(sums_that_were_lost_are_sent_again_with_their_sets) {
  Rank0 rank(in_grid(true));
  rank.contribute(1, 2, 0, 2, 10);
  rank.begin(1);
  rank.exchange.close_relays();
  while (rank.next_sums()) rank.exchange.stamp(rank.batch, 500);
  const std::uint64_t all = Shard::mask_of(0, kPackets);
  const auto lost = [&](Rank asker, std::uint32_t newest) {
    const RequestContext asked{.from = asker, .rank = asker, .newest = newest, .now = 505, .min_age = 10};
    return rank.exchange.to_repair(PacketType::Contribution, rank.index(2), {0, all}, asked);
  };
  CHECK_EQ(lost(2, 499), std::uint64_t{0});  // may be under way
  CHECK_EQ(lost(2, 501), all);
  CHECK_EQ(lost(1, 501), std::uint64_t{0});  // has no use for it
  CHECK(rank.exchange.fill_repair(
      {.type = PacketType::Contribution, .to = 2, .shard = rank.index(2), .chunk = 0, .packets = all},
      rank.batch));
  CHECK_EQ(rank.batch.packets, 2u);
  CHECK_EQ(rank.batch.detail, std::uint64_t{0b11});
  CHECK_EQ(rank.sent(0), 11.0F);
}

// ---- Who is at fault

TEST(a_relay_names_who_of_its_row_contributes_what_is_not_finite) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  Rank0 relay(in_grid(false));
  relay.begin(1);
  relay.contribute(1, 2, 0, kPackets, kInfinite);
  CHECK((relay.exchange.non_finite() == std::set<Rank>{1}));
  Rank0 owner(in_grid(false));
  owner.begin(1);
  owner.contribute(1, 0, 0, kPackets, 2);
  owner.contribute(2, 0, 0, kPackets, kInfinite, 2);
  CHECK(owner.exchange.non_finite().empty());  // the relay tells
}

RUN_TESTS()
