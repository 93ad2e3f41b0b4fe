// The protocol when ranks are late, silent, gone or wrong, and when strangers send packets.
#include <algorithm>
#include <initializer_list>

#include "sim_case.h"

using namespace simcase;

namespace {

constexpr Duration kNever = sim::Call::kNever;
constexpr Duration kSecond = Duration::millis(1000);

sim::SimOptions group(Rank ranks, std::uint64_t seed = 1) {
  sim::SimOptions options;
  options.ranks = ranks;
  options.seed = seed;
  options.protocol.fixed_membership = true;
  return options;
}

bool names(const Report& report, Rank rank) {
  return std::find(report.ranks.begin(), report.ranks.end(), rank) != report.ranks.end();
}

bool says(const Report& report, const std::string& text) {
  return report.message.find(text) != std::string::npos;
}

constexpr Seal::Kind kSeals[] = {Seal::Kind::Token, Seal::Kind::Tag};

int as_int(ErrorCode code) {
  return static_cast<int>(code);
}

}  // namespace

// ---- Late
// ---------------------------------------------------------------------------------------------------------

TEST(a_late_rank_is_waited_for) {
  Case test(group(4));
  test.add(floats(50'021), {Duration{}, Duration{}, Duration::millis(5'000), Duration{}});
  test.run();
  CHECK_EXACT(test);
  CHECK(test.result().elapsed < Duration::millis(5'010));
}

// A straggler finds what its peers have sent meanwhile, and is done in about a round trip for each
// operation's window.
TEST(a_late_rank_catches_up_at_once) {
  Case test(group(4));
  for (int i = 0; i < 10; ++i)
    test.add(floats(2'003), {Duration{}, Duration{}, Duration::millis(100), Duration{}});
  test.run();
  CHECK_EXACT(test);
  CHECK(test.report(9, 2).elapsed < Duration::millis(1));
  CHECK(test.network().stats(2).early_packets > 0);
}

TEST(a_late_rank_whose_packets_are_lost_is_asked_again_soon) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    sim::SimOptions options = group(3, seed);
    options.other_links[{2, 0}].loss = 0.7;
    Case test(options);
    test.add(floats(500), {Duration{}, Duration{}, Duration::millis(20'000)});
    test.run();
    CHECK_EXACT(test);
    CHECK(test.report(0, 2).elapsed < Duration::millis(10'000));
  }
}

// Operations that have not begun take room by their size, whatever has come of them.
TEST(memory_for_early_packets_is_bounded) {
  constexpr std::uint32_t kElements = 100'003;
  for (const std::size_t early_bytes : {std::size_t{0}, std::size_t{10'000}, std::size_t{1'000'000}}) {
    sim::SimOptions options = group(4);
    options.protocol.early_bytes = early_bytes;
    Case test(options);
    for (int i = 0; i < 6; ++i)
      test.add(floats(kElements), {Duration{}, Duration{}, Duration::millis(50), Duration{}});
    test.run();
    CHECK_EXACT(test);
    CHECK(test.network().stats(2).early_dropped > 0);
    CHECK(test.network().stats(2).early_packets * 1408 <= std::max<std::size_t>(early_bytes, kElements * 4));
  }
}

TEST(a_paused_rank_is_waited_for) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    sim::SimOptions options = group(4, seed);
    options.link.bits_per_second = 1e9;
    options.pauses = {{1, Time{} + Duration::micros(300), Time{} + Duration::millis(700)},
                      {2, Time{} + Duration::millis(1), Time{} + Duration::millis(2)}};
    Case test(options);
    for (int i = 0; i < 3; ++i) test.add(floats(60'013));
    test.run();
    CHECK_EXACT(test);
    CHECK(test.result().elapsed >= Duration::millis(700));
    CHECK(test.result().elapsed < Duration::millis(1'500));
  }
}

TEST(a_small_receive_buffer_is_repaired) {
  sim::SimOptions options = group(4);
  options.receive_buffer_bytes = 20'000;
  options.wake_delay = Duration::micros(500);
  Case test(options);
  test.add(floats(100'003));
  test.run();
  CHECK_EXACT(test);
  CHECK(test.network().counters().buffer_dropped > 0);
}

TEST(a_cut_link_is_repaired_when_it_is_back) {
  sim::SimOptions options = group(3);
  options.link.bits_per_second = 1e9;
  options.cuts = {{0, 1, Time{} + Duration::micros(500), Time{} + Duration::millis(900)}};
  Case test(options);
  test.add(floats(200'003));
  test.run();
  CHECK_EXACT(test);
  CHECK(test.network().counters().cut > 0);
  CHECK(test.result().elapsed >= Duration::millis(900));
  CHECK(test.result().elapsed < Duration::millis(1'500));
}

// ---- Silent
// -------------------------------------------------------------------------------------------------------

TEST(a_rank_that_never_starts_is_named) {
  for (const std::uint32_t elements :
       {5u, 5'003u, 600'011u}) {  // a packet, some packets, more than the windows
    for (const Rank absent : std::initializer_list<Rank>{0, 2, 3}) {
      Case test(group(4));
      std::vector<Duration> starts(4);
      starts[absent] = kNever;
      test.add(floats(elements), starts, kSecond);
      test.run();
      CHECK(test.result().finished);
      CHECK(test.result().elapsed <= kSecond + Duration::millis(200));
      for (Rank rank = 0; rank < 4; ++rank) {
        if (rank == absent) continue;
        const Report& report = test.report(0, rank);
        CHECK_EQ(as_int(report.error), as_int(ErrorCode::Timeout));
        CHECK_EQ(report.ranks.size(), 1u);
        CHECK(names(report, absent));
        CHECK(says(report, "rank " + std::to_string(absent)));
      }
      test.forget_buckets();
      CHECK(test.network().settle(kSecond));
    }
  }
}

// Under loss the news of the failure may be lost too: everybody's own deadline is the last resort.
TEST(every_rank_learns_of_a_timeout_under_loss) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    sim::SimOptions options = group(5, seed);
    options.link.loss = 0.2;
    Case test(options);
    const Duration late = Duration::millis(100);
    test.add(floats(20'011), {late, Duration{}, kNever, late, late}, kSecond);
    test.run();
    CHECK(test.result().finished);
    CHECK(test.result().elapsed <= kSecond + late + Duration::millis(200));
    for (const Rank rank : std::initializer_list<Rank>{0, 1, 3, 4}) {
      CHECK_EQ(as_int(test.report(0, rank).error), as_int(ErrorCode::Timeout));
      CHECK(names(test.report(0, rank), 2));
    }
  }
}

// A rank that comes after the others gave up must not wait for its own timeout.
TEST(a_rank_that_comes_too_late_is_told) {
  Case test(group(3));
  test.add(floats(5'003), {Duration{}, Duration{}, Duration::millis(3'000)}, kSecond);
  test.run();
  CHECK(test.result().finished);
  CHECK_EQ(as_int(test.report(0, 2).error), as_int(ErrorCode::Timeout));
  CHECK(test.report(0, 2).elapsed < Duration::millis(10));
  CHECK(says(test.report(0, 2), "gave up"));
}

// A failed operation does not take the next ones with it.
TEST(operations_after_a_failed_one_are_exact) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    sim::SimOptions options = group(3, seed);
    options.link.loss = 0.05;
    Case test(options);
    test.add(floats(300'003), {Duration{}, Duration{}, Duration::millis(3'000)}, kSecond);
    test.run();
    CHECK_EQ(as_int(test.report(0, 0).error), as_int(ErrorCode::Timeout));
    for (int i = 0; i < 3; ++i) test.add(floats(300'003));
    test.run();
    CHECK_EXACT(test);
  }
}

TEST(a_rank_that_dies_in_the_middle_is_named) {
  sim::SimOptions options = group(4);
  options.link.bits_per_second = 1e9;
  const Time death = Time{} + Duration::millis(2);
  options.pauses = {{1, death, death + Duration::millis(100'000)}};
  Case test(options);
  test.add(floats(1'000'003), {}, kSecond);
  test.run(Duration::millis(10'000));
  for (const Rank rank : std::initializer_list<Rank>{0, 2, 3}) {
    CHECK_EQ(as_int(test.report(0, rank).error), as_int(ErrorCode::Timeout));
    CHECK(names(test.report(0, rank), 1));
  }
}

TEST(a_cut_link_is_a_timeout_that_names_a_side_of_it) {
  sim::SimOptions options = group(4);
  options.cuts = {{0, 1, Time{}, Time::never()}};
  Case test(options);
  test.add(floats(5'003), {}, kSecond);
  test.run();
  CHECK(test.result().finished);
  for (Rank rank = 0; rank < 4; ++rank) {
    CHECK_EQ(as_int(test.report(0, rank).error), as_int(ErrorCode::Timeout));
    CHECK(names(test.report(0, rank), 0) || names(test.report(0, rank), 1));
  }
}

TEST(a_rank_that_leaves_is_named_at_once) {
  sim::SimOptions options = group(4);
  options.departures = {{2, Time{} + Duration::millis(10)}};
  Case test(options);
  test.add(floats(5'003), {Duration{}, Duration{}, kNever, Duration{}});
  test.add(floats(5'003), {Duration{}, Duration{}, kNever, Duration::millis(20)});
  test.run();
  CHECK(test.result().finished);
  CHECK(test.result().elapsed < Duration::millis(30));
  for (std::size_t i = 0; i < 2; ++i) {
    for (const Rank rank : std::initializer_list<Rank>{0, 1, 3}) {
      CHECK_EQ(as_int(test.report(i, rank).error), as_int(ErrorCode::Closed));
      CHECK(names(test.report(i, rank), 2));
    }
  }
  CHECK(test.network().settle(kSecond));
}

// Ranks that own nothing of a small bucket need nothing from the rank that left: they hear it from the owner.
TEST(a_rank_that_leaves_is_named_on_ranks_that_own_nothing) {
  sim::SimOptions options = group(4);
  options.protocol.path.payload_bytes = 65'408;
  options.departures = {{2, Time{} + Duration::millis(10)}};
  for (const bool owner_leaves_too : {false, true}) {
    if (owner_leaves_too) options.departures.push_back({0, Time{} + Duration::millis(15)});
    Case test(options);
    test.add(floats(1'000), {Duration{}, Duration{}, kNever, Duration::millis(20)});
    test.run();
    CHECK(test.result().elapsed < kSecond);
    for (const Rank rank : std::initializer_list<Rank>{1, 3}) {
      CHECK_EQ(as_int(test.report(0, rank).error), as_int(ErrorCode::Closed));
      CHECK(names(test.report(0, rank), 2));
    }
  }
}

// It has contributed, and owns nothing: what the others still owe it must not hold them.
TEST(a_rank_that_leaves_is_owed_nothing) {
  for (const std::uint32_t elements : {1'000u, 5'003u}) {
    sim::SimOptions options = group(4);
    options.protocol.path.payload_bytes = 65'408;
    options.departures = {{2, Time{} + Duration::millis(10)}};
    Case test(options);
    test.add(floats(elements), {Duration{}, Duration{}, Duration{}, Duration::millis(20)});
    test.run();
    CHECK(test.result().finished);
    CHECK(test.result().elapsed < kSecond);
    for (const Rank rank : std::initializer_list<Rank>{1, 3})
      CHECK_EQ(as_int(test.report(0, rank).error), as_int(test.report(0, 0).error));
  }
}

TEST(a_rank_that_leaves_fails_its_own_operations) {
  sim::SimOptions options = group(2);
  options.departures = {{0, Time{} + Duration::millis(10)}};
  Case test(options);
  test.add(floats(5'003), {Duration{}, Duration::millis(500)});
  test.run();
  CHECK_EQ(as_int(test.report(0, 0).error), as_int(ErrorCode::Closed));
  CHECK_EQ(as_int(test.report(0, 1).error), as_int(ErrorCode::Closed));
}

// ---- Wrong
// --------------------------------------------------------------------------------------------------------

TEST(a_rank_that_disagrees_is_named_on_every_rank) {
  const Descriptor usual = {5'003, DType::Float32, ReduceOp::Sum};
  for (const Descriptor& other :
       {Descriptor{5'002, DType::Float32, ReduceOp::Sum}, Descriptor{5'003, DType::Float64, ReduceOp::Sum},
        Descriptor{5'003, DType::Float32, ReduceOp::Mean}, Descriptor{1, DType::Float32, ReduceOp::Sum},
        Descriptor{900'001, DType::BFloat16, ReduceOp::Mean}}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      sim::SimOptions options = group(4, seed);
      options.link.loss = seed % 2 == 0 ? 0 : 0.2;
      options.link.jitter = Duration::micros(500);
      Case test(options);
      test.add_each({usual, other, usual, usual});
      test.run();
      CHECK(test.result().finished);
      CHECK(test.result().elapsed < kSecond);
      for (Rank rank = 0; rank < 4; ++rank) {
        const Report& report = test.report(0, rank);
        CHECK_EQ(as_int(report.error), as_int(ErrorCode::Mismatch));
        CHECK(names(report, 1));
        CHECK_EQ(report.ranks.size(), 2u);
        CHECK(says(report, std::to_string(usual.elements)));
        CHECK(says(report, std::to_string(other.elements)));
        CHECK(says(report, name_of(other.dtype)));
      }
      test.forget_buckets();
      CHECK(test.network().settle(kSecond));
    }
  }
}

TEST(a_disagreement_with_a_late_rank_is_found_when_it_comes) {
  Case test(group(3));
  test.add_each({floats(5'003), floats(5'003), floats(5'004)},
                {Duration{}, Duration{}, Duration::millis(300)});
  test.run();
  CHECK(test.result().finished);
  CHECK(test.result().elapsed < Duration::millis(310));
  for (Rank rank = 0; rank < 3; ++rank) {
    CHECK_EQ(as_int(test.report(0, rank).error), as_int(ErrorCode::Mismatch));
    CHECK(names(test.report(0, rank), 2));
  }
}

TEST(operations_after_a_disagreement_are_exact) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    sim::SimOptions options = group(4, seed);
    options.link.loss = 0.1;
    Case test(options);
    test.add_each({floats(5'003), floats(90'000), floats(5'003), floats(5'003)});
    test.run();
    for (int i = 0; i < 3; ++i) test.add(floats(50'003));
    test.run();
    CHECK_EXACT(test);
  }
}

// ---- Hostile
// ------------------------------------------------------------------------------------------------------

TEST(hostile_packets_change_nothing) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    sim::SimOptions options = group(4, seed);
    options.link.jitter = Duration::micros(300);
    options.link.loss = seed % 2 == 0 ? 0 : 0.05;
    options.hostile = {0.2, 0.2, 0.2, 0.2, Duration::millis(50)};
    options.seal = kSeals[seed / 2 % 2];
    Case test(options);
    for (int i = 0; i < 5; ++i) {
      test.add(floats(1 + static_cast<std::uint32_t>(seed * 331)));
      test.add(floats(15'013));
      test.run();
      CHECK_EXACT(test);
      test.forget_buckets();
    }
    CHECK(test.network().settle(kSecond));
    CHECK(test.network().counters().hostile > 0);
    CHECK(test.total(&Stats::forged_packets) > 0);
    CHECK(test.total(&Stats::invalid_packets) > 0);
  }
}

TEST(every_forged_packet_is_counted) {
  for (const Seal::Kind seal : kSeals) {
    sim::SimOptions options = group(3);
    options.hostile.forge = 1;
    options.seal = seal;
    Case test(options);
    test.add(floats(5'003));
    test.run();
    CHECK_EXACT(test);
    CHECK(test.network().settle(kSecond));
    CHECK_EQ(test.total(&Stats::forged_packets), test.network().counters().hostile);
  }
}

// Whoever can seal packets gets past the seal: their fields are checked all the same.
TEST(nonsense_under_a_right_seal_changes_nothing) {
  for (const Seal::Kind seal : kSeals) {
    sim::SimOptions options = group(4);
    options.hostile.mangle = options.hostile.truncate = 1;
    options.seal = seal;
    Case test(options);
    for (int i = 0; i < 3; ++i) test.add(floats(15'013));
    test.run();
    CHECK_EXACT(test);
    CHECK_EQ(test.total(&Stats::forged_packets), 0u);
    CHECK(test.total(&Stats::invalid_packets) > 500);
    CHECK(test.total(&Stats::malformed_packets) > 50);
  }
}

// Whatever bit somebody on the path changes, in a header, a payload or a tag.
TEST(every_changed_packet_is_counted_as_forged) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    sim::SimOptions options = group(4, seed);
    options.link.loss = seed % 2 == 0 ? 0 : 0.05;
    options.hostile.tamper = 1;
    options.seal = Seal::Kind::Tag;
    Case test(options);
    for (int i = 0; i < 3; ++i) test.add(floats(15'013));
    test.run();
    CHECK_EXACT(test);
    CHECK(test.network().settle(kSecond));
    CHECK(test.network().counters().hostile > 100);
    CHECK_EQ(test.total(&Stats::forged_packets), test.network().counters().hostile);
    CHECK_EQ(test.total(&Stats::invalid_packets), 0u);
    CHECK_EQ(test.total(&Stats::malformed_packets), 0u);
  }
}

RUN_TESTS()
