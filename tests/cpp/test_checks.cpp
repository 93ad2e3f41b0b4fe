// The check of parameters: hashes of the same position in the same view are compared, and no others.
#include <map>

#include "kernels/fingerprint.h"
#include "member.h"
#include "ranks_case.h"

using namespace rankscase;

namespace {

using Hashes = std::vector<std::pair<Rank, std::uint64_t>>;

/// One step of all ranks from `first` on, whose results arrive everywhere.
void step(Ranks& ranks, Rank size, std::uint64_t number, Rank first = 0) {
  std::vector<Values> values = values_of(size);
  for (Rank rank = first; rank < size; ++rank) ranks.start(rank, Ranks::with(bounded(number), values[rank]));
  ranks.run(Duration::millis(20));
}

std::vector<CheckedStep> tell(Ranks& ranks, Rank rank, std::uint64_t number, std::uint64_t hash) {
  std::vector<CheckedStep> settled = ranks.check(rank, number, hash);
  ranks.run(Duration::millis(1));
  return settled;
}

}  // namespace

TEST(every_rank_hears_the_hashes_of_all_others_before_the_next_step) {
  Ranks ranks(3);
  step(ranks, 3, 0);
  for (Rank rank = 0; rank < 3; ++rank) CHECK(tell(ranks, rank, 1, 100 + rank / 2).empty());
  step(ranks, 3, 1);
  for (Rank rank = 0; rank < 3; ++rank) {
    const std::vector<CheckedStep> settled = tell(ranks, rank, 2, 7);
    CHECK_EQ(settled.size(), 1u);
    if (settled.empty()) continue;
    CHECK_EQ(settled[0].step, 1u);
    CHECK((settled[0].hashes == Hashes{{0, 100}, {1, 100}, {2, 101}}));
  }
}

TEST(hashes_of_ranks_that_are_steps_apart_are_compared_by_position) {
  Ranks ranks(2);
  for (std::uint64_t number = 0; number < 3; ++number) {
    step(ranks, 2, number);
    CHECK_EQ(tell(ranks, 0, number + 1, number).size(), 0u);  // rank 1 has told nothing yet
  }
  // It looks at the same positions later. Here only the last, because the engine knows just one.
  CHECK(tell(ranks, 1, 3, 2).empty());
  step(ranks, 2, 3);
  const std::vector<CheckedStep> settled = tell(ranks, 0, 4, 9);
  CHECK_EQ(settled.size(), 0u);  // the first is not settled
  step(ranks, 2, 4);
  std::map<std::uint64_t, Hashes> heard;
  for (std::uint64_t number = 5; number < 12; ++number) {
    for (const CheckedStep& each : tell(ranks, 0, number, 9)) heard[each.step] = each.hashes;
    step(ranks, 2, number);
  }
  CHECK((heard.at(1) == Hashes{{0, 0}}));
  CHECK((heard.at(3) == Hashes{{0, 2}, {1, 2}}));
  CHECK(!heard.contains(11));
}

TEST(a_lost_packet_only_delays_what_is_told) {
  Ranks ranks(2);
  ranks.loses = [](Rank from, Rank, const Header& header) {
    return from == 1 && header.type == PacketType::Check && header.operation == 1;
  };
  std::map<std::uint64_t, Hashes> heard;
  for (std::uint64_t number = 0; number < 8; ++number) {
    step(ranks, 2, number);
    for (Rank rank = 0; rank < 2; ++rank) {
      for (const CheckedStep& each : tell(ranks, rank, number + 1, rank)) {
        if (rank == 0) heard[each.step] = each.hashes;
      }
    }
  }
  CHECK((heard.at(1) == Hashes{{0, 0}}));
  CHECK((heard.at(2) == Hashes{{0, 0}, {1, 1}}));
}

TEST(nothing_is_told_while_an_operation_is_open_or_twice_at_one_position) {
  Ranks ranks(2);
  int told = 0;
  ranks.loses = [&](Rank, Rank, const Header& header) {
    told += header.type == PacketType::Check;
    return false;
  };
  step(ranks, 2, 0);
  tell(ranks, 0, 1, 5);
  tell(ranks, 0, 1, 6);
  step(ranks, 2, 1);
  CHECK_EQ(told, 1);
  Values open(kElements, 1.0F);
  ranks.start(0, Ranks::with(bounded(2), open));
  tell(ranks, 0, 2, 7);
  ranks.run(Duration::millis(20));
  CHECK_EQ(told, 1);
}

// What a rank completed in a view that went on without it, others may have made void.
TEST(a_hash_told_in_an_older_view_is_not_compared) {
  Ranks ranks(3);
  for (std::uint64_t number = 0; number < 2; ++number) step(ranks, 3, number);
  CHECK(tell(ranks, 2, 2, 66).empty());
  ranks.prepare_to_leave(2);
  ranks.run(Duration::millis(100));
  CHECK_EQ(inspect(ranks.group(0)).members.size(), 2u);
  for (Rank rank = 0; rank < 2; ++rank) CHECK(tell(ranks, rank, 2, 5).empty());
  step(ranks, 2, 2);
  const std::vector<CheckedStep> settled = tell(ranks, 0, 3, 5);
  CHECK_EQ(settled.size(), 1u);
  if (!settled.empty()) CHECK((settled[0].hashes == Hashes{{0, 5}, {1, 5}}));
}

TEST(a_check_with_a_payload_or_of_a_far_operation_is_malformed) {
  membercase::Member member(0);
  const Seal seal(membercase::kKey, 1);
  const auto give = [&](std::uint32_t operation, std::uint16_t length) {
    Header header;
    header.type = PacketType::Check;
    header.sender = 1;
    header.operation = operation;
    header.length = length;
    header.timestamp = 1'000;
    const auto packet = membercase::packet_of(header, seal, 0);
    member.receive(1, packet, packet.size());
  };
  give(0, 0);
  CHECK_EQ(member.group.stats().malformed_packets, 0u);
  give(0, 8);
  give(100'000, 0);
  CHECK_EQ(member.group.stats().malformed_packets, 2u);
  give(0, 0);  // again
  CHECK_EQ(member.group.stats().stale_packets, 1u);
}

TEST(memory_that_differs_in_any_bit_has_another_fingerprint) {
  for (const std::size_t size : {1u, 7u, 8u, 63u, 64u, 65u, 200u, 257u}) {
    std::vector<std::byte> bytes(size, std::byte{0x11});
    const std::uint64_t same = fingerprint(bytes);
    CHECK_EQ(fingerprint(bytes), same);
    CHECK(fingerprint(bytes, 1) != same);
    CHECK(fingerprint(std::span(bytes).first(size - 1)) != same);
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
      CHECK(fingerprint(bytes) != same);
      bytes[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
    }
  }
}

RUN_TESTS()
