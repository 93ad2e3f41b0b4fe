// Decisions that go to a multicast group, in virtual time: what leaves a host, who sets the pace, and what
// happens when the group does not reach somebody.
#include "decision_case.h"
#include "path/multicast_health.h"
#include "sim_case.h"

using simcase::Case;
using simcase::floats;
using namespace optireduce;

namespace {

constexpr std::uint32_t kElements = 1 << 18;  // a megabyte
constexpr std::uint64_t kBytes = kElements * sizeof(float);

sim::SimOptions network_of(Rank ranks, bool multicast) {
  sim::SimOptions options;
  options.ranks = ranks;
  options.seed = 5;
  options.protocol.multicast = multicast;
  return options;
}

/// How long `operations` all-reduces take one after the other.
Duration time_of(sim::SimOptions options, std::size_t operations = 4) {
  Case test(options);
  Duration total;
  for (std::size_t i = 0; i < operations; ++i) {
    test.add(floats(kElements));
    total = total + test.run().elapsed;
    CHECK_EXACT(test);
  }
  return total;
}

sim::SimOptions with_ports(sim::SimOptions options, double egress, double ingress) {
  options.egress = {egress, 1 << 20};
  options.ingress = {ingress, 256 * 1024};
  return options;
}

}  // namespace

TEST(a_decision_leaves_its_owner_once) {
  for (const bool multicast : {false, true}) {
    Case test(network_of(8, multicast));
    test.add(floats(kElements));
    test.run();
    CHECK_EXACT(test);
    for (Rank rank = 0; rank < 8; ++rank) {
      const Stats& stats = test.network().stats(rank);
      CHECK_EQ(stats.payload_bytes_sent, multicast ? kBytes : kBytes * 14 / 8);
      CHECK_EQ(stats.multicast_bytes_sent, multicast ? kBytes / 8 : 0);
      CHECK_EQ(stats.resent_bytes, 0u);
    }
    // What the hosts' ports carried: packets with headers, and little else.
    const double carried = static_cast<double>(test.network().counters().sent_bytes) / (8.0 * kBytes);
    CHECK(carried < (multicast ? 1.1 : 1.9) && carried > (multicast ? 1.0 : 1.75));
  }
}

TEST(two_ranks_have_no_use_for_a_multicast_group) {
  Case test(network_of(2, true));
  test.add(floats(kElements));
  test.run();
  CHECK_EXACT(test);
  CHECK_EQ(test.total(&Stats::multicast_bytes_sent), 0u);
}

TEST(a_host_that_sends_at_half_the_speed_gains_what_it_does_not_send) {
  const auto time = [](bool multicast) {
    return time_of(with_ports(network_of(8, multicast), 1e8, 2e8)).seconds();
  };
  const double unicast = time(false), multicast = time(true);
  CHECK(unicast / multicast > 1.4);
}

TEST(with_equal_speeds_it_is_not_slower) {
  const auto time = [](bool multicast) {
    return time_of(with_ports(network_of(8, multicast), 2e8, 2e8)).seconds();
  };
  CHECK(time(true) < time(false) * 1.1);
}

TEST(every_copy_is_lost_on_its_own) {
  sim::SimOptions options = network_of(4, true);
  options.link.loss = 0.02;
  Case test(options);
  test.add(floats(kElements));
  test.run();
  CHECK_EXACT(test);
  std::uint64_t least = ~std::uint64_t{0}, most = 0;
  for (Rank rank = 0; rank < 4; ++rank) {
    least = std::min(least, test.network().stats(rank).repaired_bytes);
    most = std::max(most, test.network().stats(rank).repaired_bytes);
  }
  CHECK(least > 0 && least != most);
}

// One that stands still has its window full soon. The others must not wait for it with what they owe each
// other.
TEST(a_late_rank_holds_back_nobodys_decisions) {
  sim::SimOptions options = network_of(4, true);
  decisioncase::Training training{.steps = 30, .buckets = {kElements / 4}, .compute = {}};
  training.compute.resize(4);
  for (std::size_t step = 0; step < training.steps; ++step)
    training.compute[3].push_back(Duration::millis(step > 15 && step % 6 == 0 ? 80 : 1));
  decisioncase::Run run(options, training);
  CHECK(run.run());
  CHECK_EQ(run.why_different(), std::string());
  CHECK_EQ(run.why_not_conserved(), std::string());
  std::uint64_t excluded[4] = {};
  for (const auto& row : run.result().reports) {
    for (Rank rank = 0; rank < 3; ++rank) CHECK(row[rank]->elapsed < Duration::millis(80));
    for (const Excluded& each : row[0]->excluded) excluded[each.rank] += each.bytes;
  }
  for (Rank rank = 0; rank < 3; ++rank) CHECK(excluded[3] > 2 * excluded[rank]);
}

TEST(a_rank_that_the_group_never_reaches_is_served_singly_in_the_end) {
  sim::SimOptions options = network_of(4, true);
  options.group_outages.push_back({2, Time{}, Time::never()});
  Case test(options);
  constexpr int kOperations = 12;
  for (int i = 0; i < kOperations; ++i) {
    test.add(floats(kElements));
    test.run();
    CHECK_EXACT(test);
  }
  for (Rank rank = 0; rank < 4; ++rank) {
    const bool reaches_all = rank == 2;  // it is the others that do not reach it
    CHECK_EQ(test.network().stats(rank).multicast_fallbacks, reaches_all ? 0u : 1u);
    CHECK_EQ(test.network().group(rank).multicasts(), reaches_all);
  }
  const std::uint64_t resent = test.total(&Stats::resent_bytes);
  test.add(floats(kElements));
  test.run();
  CHECK_EXACT(test);
  CHECK_EQ(test.total(&Stats::resent_bytes), resent);
}

TEST(loss_pauses_and_latecomers_are_no_reason_to_stop_multicasting) {
  sim::SimOptions options = network_of(5, true);
  options.link.loss = 0.03;
  for (int pause = 0; pause < 6; ++pause) {
    const Time begin = Time{} + Duration::millis(200 + 150 * pause);
    options.pauses.push_back({static_cast<Rank>(pause % 5), begin, begin + Duration::millis(30)});
  }
  decisioncase::Run run(options, {.steps = 80, .buckets = {kElements / 4}, .compute = {}});
  CHECK(run.run());
  CHECK_EQ(run.why_different(), std::string());
  CHECK_EQ(run.why_not_conserved(), std::string());
  for (Rank rank = 0; rank < 5; ++rank) {
    CHECK_EQ(run.network().stats(rank).multicast_fallbacks, 0u);
    CHECK(run.network().stats(rank).multicast_bytes_sent > 0);
  }
}

// ---- The verdict on its own

TEST(a_multicast_group_is_judged_after_enough_operations_and_packets) {
  MulticastHealth health(3);
  for (int operation = 0; operation < 7; ++operation) {
    health.on_sent(1, 0, 100);
    health.on_resent(1, 0, 100);
    CHECK(!health.end_operation());
  }
  health.on_sent(1, 0, 100);
  CHECK(health.end_operation() == Rank{1});
  for (int operation = 0; operation < 20; ++operation) {
    health.on_sent(1, 0, 10);  // a new period, too few packets for a verdict
    health.on_resent(1, 0, 10);
    CHECK(!health.end_operation());
  }
}

TEST(a_period_of_half_the_packets_is_no_reason) {
  MulticastHealth health(2);
  for (int operation = 0; operation < 8; ++operation) {
    health.on_sent(1, 0, 100);
    health.on_resent(1, 0, 50);
    CHECK(!health.end_operation());
  }
}

TEST(what_a_silent_peer_lost_does_not_count) {
  MulticastHealth health(2);
  for (std::uint64_t operation = 0; operation < 8; ++operation) {
    const bool silent = operation >= 3;
    health.on_sent(1, operation, 100);
    if (silent) health.on_overrun(1, operation);
    if (silent) health.on_resent(1, operation, 100);
    CHECK(!health.end_operation());
  }
}

TEST(what_a_peer_lost_before_it_fell_silent_counts) {
  MulticastHealth health(2);
  for (std::uint64_t operation = 0; operation < 7; ++operation) {
    health.on_sent(1, operation, 100);
    health.on_resent(1, operation, 100);
    CHECK(!health.end_operation());
  }
  health.on_sent(1, 7, 100);
  health.on_overrun(1, 7);
  CHECK(health.end_operation() == Rank{1});
}

RUN_TESTS()
