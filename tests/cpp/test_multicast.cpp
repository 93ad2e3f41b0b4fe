// Reduced packets that go to a group, in virtual time: what leaves a host, who sets the pace, and what
// happens when the group does not reach somebody.
#include "bounded_case.h"
#include "proto/group_health.h"
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

TEST(what_was_reduced_leaves_its_owner_once) {
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

TEST(two_ranks_have_no_use_for_a_group) {
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
TEST(a_rank_that_stands_still_holds_nobody_beyond_the_bound) {
  sim::SimOptions options = network_of(4, true);
  options.protocol.bound.warmup_operations = 5;
  const Time stop = Time{} + Duration::millis(10'000);
  options.pauses.push_back({3, stop, stop + Duration::millis(60'000)});
  boundedcase::Loop loop(options);
  boundedcase::LoopOptions training;
  training.elements = kElements;
  training.operations = 8;
  loop.run(training);
  CHECK(loop.network().now() < stop);
  // It gives what it has to the first operation, and then stops in the middle of it.
  training.operations = 2;
  training.first_starts.assign(4, stop - loop.network().now() + Duration::millis(1));
  training.first_starts[3] = stop - loop.network().now() - Duration::millis(1);
  loop.run(training);
  CHECK(loop.result().finished);
  for (std::size_t operation = 0; operation < 2; ++operation) {
    for (Rank rank = 0; rank < 3; ++rank) {
      const Report& report = loop.report(operation, rank);
      CHECK(report.error == ErrorCode::None && report.bounded);
      CHECK(report.elapsed <= report.policy.bound + Duration::millis(1));
      for (const PeerLoss& loss : report.lost_by_peer) CHECK_EQ(loss.peer, Rank{3});
    }
  }
  CHECK_EQ(loop.why_wrong(), std::string());
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
    CHECK_EQ(test.network().protocol(rank).multicasts(), reaches_all);
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
  options.protocol.bound.warmup_operations = 5;
  for (int pause = 0; pause < 6; ++pause) {
    const Time begin = Time{} + Duration::millis(400 + 150 * pause);
    options.pauses.push_back({static_cast<Rank>(pause % 5), begin, begin + Duration::millis(120)});
  }
  boundedcase::Loop loop(options);
  boundedcase::LoopOptions training;
  training.elements = kElements / 4;
  training.operations = 80;
  loop.run(training);
  CHECK(loop.result().finished);
  CHECK(loop.network().now() > Time{} + Duration::millis(1'200));
  CHECK_EQ(loop.why_wrong(), std::string());
  for (Rank rank = 0; rank < 5; ++rank) {
    CHECK_EQ(loop.network().stats(rank).multicast_fallbacks, 0u);
    CHECK(loop.network().stats(rank).multicast_bytes_sent > 0);
  }
}

// ---- The verdict on its own

TEST(a_group_is_judged_after_enough_operations_and_packets) {
  GroupHealth health(3);
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
  GroupHealth health(2);
  for (int operation = 0; operation < 8; ++operation) {
    health.on_sent(1, 0, 100);
    health.on_resent(1, 0, 50);
    CHECK(!health.end_operation());
  }
}

TEST(what_a_silent_peer_lost_does_not_count) {
  GroupHealth health(2);
  for (std::uint64_t operation = 0; operation < 8; ++operation) {
    const bool silent = operation >= 3;
    health.on_sent(1, operation, 100);
    if (silent) health.on_overrun(1, operation);
    if (silent) health.on_resent(1, operation, 100);
    CHECK(!health.end_operation());
  }
}

TEST(what_a_peer_lost_before_it_fell_silent_counts) {
  GroupHealth health(2);
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
