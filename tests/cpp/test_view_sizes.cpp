// How much unfinished work a view change can describe, and that it arrives where packets get lost.
#include <cstdio>
#include <random>

#include "check.h"
#include "views_script.h"

using namespace views_test;

namespace {

// Buckets of 100 MB among 16 ranks, packets of 1,408 bytes: shards of 102 chunks of 46 packets.
constexpr std::size_t kRanks = 16;
constexpr std::uint32_t kChunks = 102, kChunkPackets = 46;
constexpr std::size_t kPayload = 1408;
constexpr RankMask kStay = first_ranks(9), kGo = first_ranks(kRanks) & ~kStay;
constexpr Propose kProposal() {
  return {.ballot = {1, 0}, .without = kGo, .joiners = {}};
}

/// Of every chunk some packets are here: nothing that could be written shorter.
State partly_received(std::uint64_t operations, unsigned seed) {
  std::mt19937_64 random(seed);
  State state;
  state.ballot = kProposal().ballot;
  state.reach_end = operations;
  for (std::uint64_t operation = 0; operation < operations; ++operation) {
    state.open.push_back({operation, false, false});
    for_each_rank(kGo, [&](Rank owner) {
      HeldShard shard{operation, owner, kChunks * kChunkPackets, {}};
      for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk)
        shard.held.push_back(random() & first_ranks(kChunkPackets));
      state.held.push_back(std::move(shard));
    });
  }
  return state;
}

std::size_t bytes_of(const ViewMessage::Body& body) {
  return encode({0, 0, 0, body}).size();
}

bool arrives(const ViewMessage::Body& body) {
  PieceCollector collector;
  std::optional<std::vector<std::byte>> whole;
  for (const auto& piece : cut_view_message(encode({0, 0, 0, body}), 1, kPayload)) {
    if (auto done = collector.add(piece)) whole = std::move(done);
  }
  return whole && decode_view_message(*whole, kRanks).has_value();
}

/// Every message of a change in which seven of sixteen ranks are removed.
void check_change(std::uint64_t operations) {
  std::map<Rank, State> states;
  for_each_rank(kStay, [&](Rank rank) { states[rank] = partly_received(operations, rank); });
  CHECK(arrives(states[0]));
  const std::optional<View> view =
      next_view(ViewHistory(View::initial(kRanks)), kProposal(), states, kRanks / 2);
  CHECK(view.has_value());
  if (!view) return;
  CHECK(arrives(Adopt{kProposal().ballot, *view}));
  CHECK(arrives(Install{{View::initial(kRanks), *view}}));
  states[0].adopted = {kProposal().ballot, *view};  // the first proposer died: the next one is told all of it
  CHECK(arrives(states[0]));
  std::printf("  %d operations: the largest State has %zu bytes\n", static_cast<int>(operations),
              bytes_of(states[0]));
}

}  // namespace

TEST(eight_buckets_of_100_mb_in_flight_are_settled) {
  check_change(8);
}

// A model of one billion parameters in float32, and max_lag 2.
TEST(three_steps_of_forty_buckets_of_100_mb_are_settled) {
  check_change(3 * 40);
}

TEST(a_message_arrives_although_each_repeat_loses_pieces) {
  std::mt19937 random(1);
  ViewMessage message{0, 0, 0, partly_received(8, 1)};
  PieceCutter cutter;
  PieceCollector collector;
  int arrivals = 0;
  // After it has arrived it arrives again: the sender repeats it because the answer was lost.
  for (int repeat = 0; repeat < 30; ++repeat) {
    ++message.completed;  // goes on meanwhile
    for (const auto& piece : cutter.cut(message, kPayload)) {
      const auto whole = random() % 4 != 0 ? collector.add(piece) : std::nullopt;
      if (!whole) continue;
      const auto back = decode_view_message(*whole, kRanks);
      CHECK(back && back->completed <= message.completed);
      CHECK(back && encode({0, 0, 0, back->body}) == encode({0, 0, 0, message.body}));
      ++arrivals;
    }
  }
  CHECK(arrivals >= 2);
}

// A receive buffer that has room for a quarter of the pieces loses the others in every burst.
TEST(a_message_arrives_although_the_end_of_each_burst_is_lost) {
  const ViewMessage message{0, 0, 0, partly_received(8, 1)};
  PieceCutter cutter;
  PieceCollector collector;
  bool arrived = false;
  for (int repeat = 0; repeat < 10; ++repeat) {
    const auto pieces = cutter.cut(message, kPayload);
    for (std::size_t i = 0; i < pieces.size() / 4; ++i) arrived |= collector.add(pieces[i]).has_value();
  }
  CHECK(arrived);
}

TEST(another_message_gets_another_id) {
  PieceCutter cutter;
  PieceCollector collector;
  const ViewMessage old{0, 0, 0, partly_received(8, 1)}, young{0, 0, 0, partly_received(8, 2)};
  const auto first = cutter.cut(old, kPayload), second = cutter.cut(young, kPayload);
  for (std::size_t i = 0; i + 1 < first.size(); ++i) CHECK(!collector.add(first[i]).has_value());
  CHECK(!collector.add(second.back()).has_value());
  CHECK(!collector.add(first.back()).has_value());
  CHECK_EQ(cutter.cut({0, 0, 0, Adopted{}}, kPayload).size(), 1u);
  bool arrived = false;
  for (const auto& piece : cutter.cut(young, kPayload)) arrived |= collector.add(piece) == encode(young);
  CHECK(arrived);
}

// What a peer may claim: the words that are made of it, and the bytes that are kept for its pieces.
TEST(too_much_is_refused_on_both_sides) {
  State state;
  state.held.push_back({0, 0, 0, std::vector<std::uint64_t>((1 << 18) + 1, 1)});
  CHECK(encode({0, 0, 0, state}).size() < 300);
  CHECK(!decode_view_message(encode({0, 0, 0, state}), kRanks).has_value());
  state.held[0].held.pop_back();
  CHECK(decode_view_message(encode({0, 0, 0, state}), kRanks).has_value());
  CHECK(PieceCutter().cut({0, 0, 0, partly_received(600, 1)}, kPayload).empty());
  auto piece = cut_view_message(encode({0, 0, 0, partly_received(8, 1)}), 1, kPayload).front();
  PieceCollector collector;
  CHECK(!collector.add(piece) && !collector.refused());
  piece[15] = std::byte{1};  // 16 MB in all
  CHECK(!collector.add(piece) && collector.refused());
}

// Else pieces of two answers would not make one, while operations among the others go on.
TEST(a_question_that_is_repeated_gets_the_same_answer) {
  Script group(four());
  for (int r = 0; r < 4; ++r) group[r].start();
  group.deliver();
  group.keeps_back = [](const Packet& packet) { return is<State>(packet) && packet.from == 2; };
  CHECK(group[0].change->propose(group.now(), bit_of(3), 0));
  group.deliver();
  group.work(1, 0b0111);
  group.pass(Duration::millis(20));
  CHECK(group.kept_back.size() > 1);
  const ViewMessage::Body& first = group.kept_back.front().control->body;
  for (const Packet& packet : group.kept_back)
    CHECK(encode({0, 0, 0, packet.control->body}) == encode({0, 0, 0, first}));
}

// A maker of a view that is not heard of again would tell it for ever.
TEST(a_view_is_told_until_everybody_shows_it) {
  Script group(four());
  lose(group, 3);
  CHECK_EQ(group.view(0).number, 1u);
  int told = 0;
  group.keeps_back = [&](const Packet& packet) {
    told += is<Install>(packet) ? 1 : 0;
    return false;
  };
  group.pass(Duration::millis(100));
  CHECK_EQ(told, 0);
}

RUN_TESTS()
