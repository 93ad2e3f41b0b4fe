// Reports and changes of membership that wait to be taken.
#include "check.h"
#include "engine/results.h"

using namespace optireduce;

namespace {

constexpr Duration kSecond = Duration::millis(1000);

Report report_of(std::uint64_t operation) {
  Report report;
  report.operation = operation;
  report.elapsed = kSecond;
  return report;
}

}  // namespace

TEST(a_report_is_there_from_its_end_on) {
  Results results;
  results.begin(7, {});
  CHECK(!results.has(7));
  CHECK(!results.take(7).has_value());
  results.add(report_of(7), {});
  CHECK(results.has(7));
  CHECK_EQ(results.take(7)->operation, 7u);
}

TEST(a_report_that_was_taken_stays_for_other_threads_until_enough_others_were_taken) {
  Results results;
  for (std::uint64_t operation = 0; operation <= Results::kMaxTaken; ++operation) {
    results.add(report_of(operation), {});
    CHECK(results.has(0));
    CHECK(results.take(operation).has_value());
  }
  CHECK(!results.has(0));
  CHECK(results.has(1));
  CHECK(results.has(Results::kMaxTaken));
}

// After a snapshot the next operations have numbers that failed ones had before.
TEST(numbers_that_are_given_again_have_no_report) {
  Results results;
  for (std::uint64_t operation = 0; operation < 4; ++operation) {
    results.begin(operation, kSecond);
    results.add(report_of(operation), kSecond);
    results.take(operation);
  }
  results.begin(4, kSecond);
  results.forget_from(2);
  CHECK(results.has(1));
  for (std::uint64_t operation = 2; operation < 5; ++operation) CHECK(!results.has(operation));
  results.begin(4, kSecond * 3);
  results.add(report_of(4), kSecond * 4);
  CHECK(results.take(4)->stood_still == kSecond);
}

TEST(only_the_last_reports_are_kept) {
  Results results;
  for (std::uint64_t operation = 0; operation <= Results::kMaxReports; ++operation)
    results.add(report_of(operation), {});
  CHECK(!results.has(0));
  CHECK(results.has(1));
  CHECK(results.has(Results::kMaxReports));
}

TEST(time_that_the_process_stood_still_counts_from_the_beginning_of_the_operation) {
  Results results;
  results.begin(1, kSecond);
  results.begin(2, kSecond * 3);
  results.add(report_of(2), kSecond * 3);
  results.add(report_of(1), kSecond * 5);
  results.add(report_of(3), kSecond * 5);  // begun by nobody here
  CHECK(results.take(1)->stood_still == kSecond * 4);
  CHECK(results.take(1)->elapsed == kSecond * 5);
  CHECK(results.take(2)->stood_still == Duration{});
  CHECK(results.take(3)->elapsed == kSecond);
}

TEST(events_are_taken_once_in_their_order_and_only_the_last_are_kept) {
  Results results;
  for (std::uint64_t view = 0; view <= Results::kMaxEvents; ++view) {
    MembershipEvent event;
    event.view = view;
    results.add(event);
  }
  const std::vector<MembershipEvent> events = results.take_events();
  CHECK_EQ(events.size(), Results::kMaxEvents);
  CHECK_EQ(events.front().view, 1u);
  CHECK_EQ(events.back().view, Results::kMaxEvents);
  CHECK(results.take_events().empty());
}

RUN_TESTS()
