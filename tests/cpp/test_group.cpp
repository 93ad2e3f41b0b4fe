// What a group promises its callers, with packets that are lost one by one.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "inspection.h"
#include "ranks_case.h"
#include "sealed.h"

using namespace rankscase;

namespace {

float first_of(const KeptValues& kept) {
  float value = 0;
  if (!kept.values.empty()) std::memcpy(&value, kept.values.data(), sizeof value);
  return value;
}

}  // namespace

// ---- Owners and late processes

TEST(an_owner_decides_before_its_own_process_has_begun) {
  Ranks ranks(3);
  const std::uint64_t step = learn(ranks, 3);
  std::vector<Values> values = values_of(3);
  for (Rank rank = 0; rank < 2; ++rank) ranks.start(rank, Ranks::with(bounded(step), values[rank]));
  ranks.run(kLong);
  for (Rank rank = 0; rank < 2; ++rank) {
    const std::vector<Report> reports = ranks.take_reports(rank);
    CHECK_EQ(reports.size(), 1u);
    if (reports.empty()) return;
    CHECK_EQ(reports[0].message, std::string());
    CHECK((reports[0].excluded == std::vector<Excluded>{{2, kElements * sizeof(float)}}));
    CHECK(all_are(values[rank], 1 + 2));
  }
  // Its process finds the results, and its contribution is kept.
  ranks.start(2, Ranks::with(bounded(step), values[2]));
  ranks.run(Duration::millis(1));
  const std::vector<Report> late = ranks.take_reports(2);
  CHECK_EQ(late.size(), 1u);
  CHECK(all_are(values[2], 1 + 2));
  CHECK_EQ(late[0].own.residual, kElements * sizeof(float));
  CHECK(late[0].late.behind > Duration::millis(900));
  CHECK_EQ(first_of(ranks.group(2).take_residual(kStream)), 4.0F);
}

TEST(what_was_excluded_goes_along_with_the_next_contribution) {
  Ranks ranks(3);
  std::uint64_t step = learn(ranks, 3);
  std::vector<Values> values = values_of(3), next = values_of(3);
  for (Rank rank = 0; rank < 2; ++rank) ranks.start(rank, Ranks::with(bounded(step), values[rank]));
  ranks.run(Duration::millis(50));
  ranks.start(2, Ranks::with(bounded(step), values[2]));
  ranks.run(Duration::millis(50));
  ranks.start_all(next, bounded(++step));
  ranks.run(Duration::millis(50));
  for (Rank rank = 0; rank < 3; ++rank) CHECK(all_are(next[rank], 1 + 2 + 4 + 4));
  CHECK_EQ(ranks.take_reports(2).back().own.carried, kElements * sizeof(float));
  CHECK(ranks.group(2).take_residual(kStream).values.empty());
}

TEST(a_bounded_call_that_fails_counts_its_contribution_and_what_went_along_as_dropped) {
  Ranks ranks(3);
  std::uint64_t step = learn(ranks, 3);
  std::vector<Values> values = values_of(3), next = values_of(3);
  for (Rank rank = 0; rank < 2; ++rank) ranks.start(rank, Ranks::with(bounded(step), values[rank]));
  ranks.run(Duration::millis(50));
  ranks.start(2, Ranks::with(bounded(step), values[2]));
  ranks.run(Duration::millis(50));
  CHECK_EQ(ranks.take_reports(2).size(), 1u);
  Call call = bounded(++step);
  call.timeout = Duration::millis(200);
  ranks.start(2, Ranks::with(call, next[2]));  // the others do not come
  ranks.run(kLong);
  const std::vector<Report> reports = ranks.take_reports(2);
  CHECK_EQ(reports.size(), 1u);
  if (reports.empty()) return;
  CHECK(reports[0].error == ErrorCode::Timeout);
  CHECK_EQ(reports[0].own.carried, kElements * sizeof(float));
  CHECK_EQ(reports[0].own.residual, 0u);
  CHECK_EQ(reports[0].own.dropped, kElements * sizeof(float));
  CHECK_EQ(ranks.group(2).stats().dropped_bytes, kElements * sizeof(float));
  CHECK(ranks.group(2).take_residual(kStream).values.empty());
}

TEST(a_call_waits_in_the_group_while_a_member_is_max_lag_steps_behind) {
  Ranks ranks(3);
  const std::uint64_t first = learn(ranks, 3);
  std::vector<std::vector<Values>> steps(5, values_of(3));
  for (std::uint64_t i = 0; i < 5; ++i) {
    for (Rank rank = 0; rank < 2; ++rank) ranks.start(rank, Ranks::with(bounded(first + i), steps[i][rank]));
    ranks.run(Duration::millis(200));
  }
  // Two steps ahead of the step in which rank 2 is: three were done, the others wait.
  for (Rank rank = 0; rank < 2; ++rank) {
    CHECK_EQ(ranks.take_reports(rank).size(), 3u);
    CHECK(!ranks.group(rank).idle());
    CHECK(all_are(steps[3][rank], static_cast<float>(1 << rank)));  // as it was
  }
  ranks.start(2, Ranks::with(bounded(first), steps[0][2]));  // it moves one step
  ranks.run(Duration::millis(200));
  CHECK_EQ(ranks.take_reports(0).size(), 1u);
  ranks.start(2, Ranks::with(bounded(first + 1), steps[1][2]));
  ranks.run(Duration::millis(200));
  CHECK_EQ(ranks.take_reports(0).size(), 1u);
  CHECK(ranks.group(0).idle());
  CHECK_EQ(inspect(ranks.group(0)).members.size(), 3u);  // nobody is removed for being late
}

TEST(the_calls_of_one_step_do_not_wait_for_each_other) {
  Ranks ranks(2);
  std::vector<std::vector<Values>> buckets(40, values_of(2));
  for (auto& bucket : buckets) ranks.start_all(bucket, bounded(7));
  ranks.run(Duration::millis(100));
  CHECK_EQ(ranks.take_reports(0).size(), 40u);
}

// ---- The end of operations

TEST(operations_end_in_their_order) {
  for (const bool elastic : {true, false}) {
    Ranks ranks(2, elastic ? GroupConfig{} : fixed());
    const Time until = ranks.now() + Duration::millis(300);
    ranks.loses = [&](Rank from, Rank, const Header& header) {
      return from == 1 && header.operation == 0 && header.type == PacketType::Contribution &&
             ranks.now() < until;
    };
    std::vector<Values> first = values_of(2), second = values_of(2);
    ranks.start_all(first, exact());
    ranks.start_all(second, exact());
    ranks.run(Duration::millis(200));
    CHECK(ranks.take_reports(0).empty());
    ranks.run(kLong);
    for (Rank rank = 0; rank < 2; ++rank) {
      const std::vector<Report> reports = ranks.take_reports(rank);
      CHECK_EQ(reports.size(), 2u);
      for (std::size_t i = 0; i < reports.size(); ++i) CHECK_EQ(reports[i].operation, i);
      CHECK(all_are(first[rank], 3) && all_are(second[rank], 3));
    }
  }
}

TEST(a_mismatch_is_found_by_the_first_packet) {
  const auto mismatch = [](const Call& theirs) {
    Ranks ranks(2);
    ranks.loses = [](Rank from, Rank, const Header& header) {
      return from == 1 && header.type != PacketType::Reject && header.offset != 0;  // one packet gets through
    };
    std::vector<Values> values = values_of(2);
    ranks.start(0, Ranks::with(exact(), values[0]));
    ranks.run(Duration::millis(1));
    Call call = Ranks::with(theirs, values[1]);
    if (theirs.descriptor.elements != 0) call.descriptor.elements = theirs.descriptor.elements;
    ranks.start(1, call);
    ranks.run(Duration::millis(1));
    for (Rank rank = 0; rank < 2; ++rank) {
      const std::vector<Report> reports = ranks.take_reports(rank);
      CHECK_EQ(reports.size(), 1u);
      for (const Report& report : reports) {
        CHECK(report.error == ErrorCode::Mismatch);
        CHECK_EQ(report.ranks.size(), 2u);
        const Descriptor called = (rank == 0 ? Ranks::with(exact(), values[0]) : call).descriptor;
        CHECK(report.message.find(" of " + describe(called)) != std::string::npos);
        CHECK(report.bytes != 0);
      }
    }
  };
  Call shorter = exact();
  shorter.descriptor.elements = kElements - 1;
  mismatch(shorter);
  Call other_type = exact();
  other_type.descriptor.dtype = DType::BFloat16;
  mismatch(other_type);
  mismatch(exact(ReduceOp::Mean));
  mismatch(bounded(0));
  Call other_stream = exact();
  other_stream.stream = 9;
  mismatch(other_stream);
}

TEST(an_exact_call_ends_with_an_error_at_its_timeout_and_names_who_is_late) {
  for (const bool elastic : {true, false}) {
    Ranks ranks(3, elastic ? GroupConfig{} : fixed());
    std::vector<Values> values = values_of(3);
    Call call = exact();
    call.timeout = Duration::millis(200);
    for (Rank rank = 0; rank < 2; ++rank) ranks.start(rank, Ranks::with(call, values[rank]));
    ranks.run(Duration::millis(199));
    CHECK(ranks.take_reports(0).empty());
    ranks.run(Duration::millis(100));
    for (Rank rank = 0; rank < 2; ++rank) {
      const std::vector<Report> reports = ranks.take_reports(rank);
      CHECK_EQ(reports.size(), 1u);
      for (const Report& report : reports) {
        CHECK(report.error == ErrorCode::Timeout);
        CHECK(report.ranks == std::vector<Rank>{2});
        CHECK(report.message.find("rank 2") != std::string::npos);
        const bool says_what = report.message.find("rank 2 (its contribution), ") != std::string::npos;
        CHECK(says_what || report.message.find("gave up") != std::string::npos);
      }
      CHECK(ranks.group(rank).idle());
    }
  }
}

TEST(a_call_that_waits_for_a_member_fails_at_its_own_timeout) {
  Ranks ranks(3);
  const std::uint64_t first = learn(ranks, 3);
  std::vector<std::vector<Values>> steps(4, values_of(3));
  for (std::uint64_t i = 0; i < 4; ++i) {
    Call call = bounded(first + i);
    call.timeout = Duration::millis(500);
    for (Rank rank = 0; rank < 2; ++rank) ranks.start(rank, Ranks::with(call, steps[i][rank]));
  }
  ranks.run(kLong);
  const std::vector<Report> reports = ranks.take_reports(0);
  CHECK_EQ(reports.size(), 4u);
  if (reports.size() != 4) return;
  CHECK(reports[3].error == ErrorCode::Timeout);
  CHECK(reports[3].ranks == std::vector<Rank>{2});
  CHECK_EQ(reports[3].own.dropped, kElements * sizeof(float));
  CHECK(ranks.group(0).idle());
}

TEST(a_rank_that_leaves_ends_what_needs_it_where_membership_is_fixed) {
  Ranks ranks(3, fixed());
  std::vector<Values> values = values_of(3), next = values_of(3);
  for (Rank rank = 0; rank < 2; ++rank) ranks.start(rank, Ranks::with(exact(), values[rank]));
  ranks.run(Duration::millis(1));
  ranks.goodbye(2);
  ranks.run(Duration::millis(1));
  ranks.start(0, Ranks::with(exact(), next[0]));  // and what comes after
  for (Rank rank = 0; rank < 2; ++rank) {
    const std::vector<Report> reports = ranks.take_reports(rank);
    CHECK_EQ(reports.size(), rank == 0 ? 2u : 1u);
    for (const Report& report : reports) {
      CHECK(report.error == ErrorCode::Closed);
      CHECK(report.ranks == std::vector<Rank>{2});
    }
  }
}

TEST(a_rank_that_leaves_does_not_end_what_it_has_completed) {
  Ranks ranks(3, fixed());
  std::vector<Values> values = values_of(3);
  ranks.start_all(values, exact());
  ranks.run(Duration::millis(1));
  ranks.goodbye(2);
  ranks.run(Duration::millis(10));
  for (Rank rank = 0; rank < 2; ++rank) {
    const std::vector<Report> reports = ranks.take_reports(rank);
    CHECK_EQ(reports.size(), 1u);
    CHECK(reports[0].error == ErrorCode::None);
  }
}

// Sets of ranks have 64 bits: what asks for one must not be asked here.
TEST(groups_above_64_ranks_have_one_view_for_ever) {
  constexpr Rank kRanks = 70;
  Ranks ranks(kRanks);
  std::vector<Values> values(kRanks, Values(kElements, 1.0F)), next(kRanks, Values(kElements, 1.0F));
  ranks.start_all(values, exact());
  ranks.run(kLong);
  for (Rank rank = 0; rank < kRanks; ++rank) {
    const std::vector<Report> reports = ranks.take_reports(rank);
    CHECK(reports.size() == 1 && reports[0].error == ErrorCode::None);
    CHECK(all_are(values[rank], kRanks));
  }
  ranks.goodbye(kRanks - 1);
  ranks.run(kLong);
  for (Rank rank = 0; rank + 1 < kRanks; ++rank) {
    ranks.start(rank, Ranks::with(exact(), next[rank]));
    ranks.run(Duration::millis(1));
    const std::vector<Report> reports = ranks.take_reports(rank);
    CHECK(reports.size() == 1 && reports[0].error == ErrorCode::Closed);
    CHECK_EQ(ranks.group(rank).stats().suspicions + ranks.group(rank).stats().views, 0u);
  }
}

TEST(a_bucket_that_one_owner_could_not_hold_is_refused_where_members_may_go) {
  Ranks ranks(2);
  std::vector<Values> values = values_of(2);
  Call call = Ranks::with(exact(), values[0]);
  call.descriptor.elements = 0x5000'0000;  // 5 GiB, which two owners could share
  bool refused = false;
  try {
    ranks.start(0, call);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

TEST(a_refused_call_takes_no_number_and_changes_nothing) {
  Ranks ranks(3);
  Values values(kElements);
  const auto refused = [&](const Call& call) {
    try {
      ranks.start(0, call);
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  Call gather = Ranks::with(exact(ReduceOp::Gather), values);
  gather.descriptor.elements = kElements - 1;  // not a part for each of three ranks
  CHECK(refused(gather));
  Call late = Ranks::with(bounded(3), values);
  late.descriptor.op = ReduceOp::Gather;  // of what is not there nothing can be sent
  CHECK(refused(late));
  Call nameless = Ranks::with(bounded(3), values);
  nameless.stream = 0;
  CHECK(refused(nameless));
  Call wide = Ranks::with(exact(), values);
  wide.wide = {values.data(), values.size(), 0};  // float32 does not stand for float32
  CHECK(refused(wide));
  CHECK(ranks.group(0).idle());
  CHECK(ranks.group(0).poll_timeout() == Time::never());
  CHECK_EQ(ranks.start(0, Ranks::with(bounded(1), values)), 0u);
}

// ---- Grids

// It has contributed, but its decisions are still to come.
TEST(a_rank_that_leaves_ends_the_call_on_all_ranks_of_a_grid) {
  GroupConfig config = fixed();
  config.rows = {{0, 1}, {2, 3}};
  Ranks ranks(4, config);
  std::vector<Values> values = values_of(4);
  for (const Rank rank : {Rank{0}, Rank{1}, Rank{3}}) ranks.start(rank, Ranks::with(exact(), values[rank]));
  ranks.run(Duration::millis(5));
  for (const Rank rank : {Rank{0}, Rank{3}}) CHECK(ranks.take_reports(rank).empty());  // rank 2 is late
  ranks.goodbye(1);
  ranks.run(Duration::millis(5));
  ranks.start(2, Ranks::with(exact(), values[2]));
  ranks.run(Duration::millis(100));
  for (const Rank rank : {Rank{0}, Rank{2}, Rank{3}}) {
    const std::vector<Report> reports = ranks.take_reports(rank);
    CHECK_EQ(reports.size(), 1u);
    for (const Report& report : reports) {
      CHECK(report.error == ErrorCode::Closed);
      CHECK(report.ranks == std::vector<Rank>{1});
    }
  }
}

// ---- Weights

TEST(a_rank_without_a_contribution_is_not_waited_for_and_gets_the_result) {
  for (const bool is_bounded : {false, true}) {
    Ranks ranks(3);
    std::vector<Values> values = values_of(3);
    for (Rank rank = 0; rank < 3; ++rank) {
      Call call = is_bounded ? bounded(0) : exact();
      call.weight = rank == 1 ? 0 : 1;
      ranks.start(rank, Ranks::with(call, values[rank]));
    }
    ranks.run(Duration::millis(50));
    for (Rank rank = 0; rank < 3; ++rank) {
      CHECK_EQ(ranks.take_reports(rank).size(), 1u);
      CHECK(all_are(values[rank], 1 + 4));
    }
    CHECK(ranks.group(1).take_residual(kStream).values.empty());
  }
}

// Callers contribute sums over their samples.
TEST(an_exact_mean_divides_by_all_weights) {
  Ranks ranks(3);
  std::vector<Values> values = values_of(3);
  const std::uint32_t weights[] = {3, 2, 5};
  for (Rank rank = 0; rank < 3; ++rank) {
    Call call = exact(ReduceOp::Mean);
    call.weight = weights[rank];
    ranks.start(rank, Ranks::with(call, values[rank]));
  }
  ranks.run(Duration::millis(50));
  for (const Values& found : values) CHECK(all_are(found, (1 + 2 + 4) / 10.0F));
}

RUN_TESTS()
