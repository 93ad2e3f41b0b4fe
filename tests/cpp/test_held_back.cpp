// Contributions that wait for their window: an owner that cannot decide yet tells its senders to go on.
#include "ranks_case.h"

using namespace rankscase;

namespace {

constexpr std::size_t kLarge = 1 << 18;  // values: four windows for the other rank's shard

/// Rank 0 has begun, rank 1 has not: it can decide nothing. How many bytes rank 0 has sent.
std::uint64_t sent_to_a_late_rank(Ranks& ranks, std::vector<Values>& values) {
  ranks.start(0, Ranks::with(bounded(0), values[0]));
  ranks.run(Duration::millis(2'000));
  return ranks.group(0).stats().payload_bytes_sent;
}

}  // namespace

TEST(a_rank_that_has_not_begun_lets_contributions_in_beyond_a_window) {
  Ranks ranks(2);
  std::vector<Values> values = values_of(2, kLarge);
  CHECK(sent_to_a_late_rank(ranks, values) >= kLarge / 2 * sizeof(float));
}

// Found in the lab: ranks that waited for each other's windows, and for nothing else, for a minute.
TEST(a_lost_word_to_go_on_is_asked_for_again) {
  Ranks ranks(2);
  int lost = 0;
  ranks.loses = [&](Rank, Rank, const Header& header) {
    const bool strikes = (header.flags & kFlagGoOn) != 0 && lost < 3;
    lost += strikes;
    return strikes;
  };
  std::vector<Values> values = values_of(2, kLarge);
  CHECK(sent_to_a_late_rank(ranks, values) >= kLarge / 2 * sizeof(float));
  CHECK_EQ(lost, 3);
  ranks.start(1, Ranks::with(bounded(0), values[1]));
  ranks.run(Duration::millis(2'000));
  for (Rank rank = 0; rank < 2; ++rank) CHECK_EQ(ranks.take_reports(rank).size(), 1u);
  CHECK(same_bits(values[0], values[1]));
}

RUN_TESTS()
