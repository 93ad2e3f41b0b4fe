// Operations with slack have so many times the usual time before their deadline. In virtual time.
#include "bounded_case.h"

using namespace boundedcase;

namespace {

constexpr Time kFaultBegins = Time{} + Duration::millis(5'000);
constexpr std::uint32_t kElements = 20'000;
constexpr double kThreeTimes = 3.0;

sim::SimOptions network() {
  sim::SimOptions options;
  options.ranks = 3;
  options.protocol.bound.warmup_operations = 5;
  options.egress = {1e9, 0};
  options.ingress = {1e9, 256 * 1024};
  return options;
}

class Gradients : public TrainingLoop {
 public:
  using TrainingLoop::TrainingLoop;

  void run(std::size_t operations, double slack, Duration first_start = {}) {
    const auto call_of = [&](std::size_t operation, Rank) {
      sim::Call call;
      call.descriptor = {kElements, DType::Float32, ReduceOp::Mean, true};
      call.follows = operation != 0;
      call.start = operation == 0 ? first_start : Duration::millis(1);
      call.slack = slack;
      return call;
    };
    run_calls(operations, call_of, contribution, Duration::millis(600'000));
  }

  /// The first one when the fault begins; from the second one hears who is through with it.
  void run_into_fault(double slack) { run(2, slack, kFaultBegins - network().now()); }

  std::uint64_t lost_bytes(Rank rank) const {
    return report(0, rank).contributions_lost_bytes + report(0, rank).reduced_lost_bytes;
  }

  std::string why_wrong() const override { return {}; }
};

/// How long the usual deadline is there, and what one with slack is.
Duration bound_with(double slack) {
  Gradients loop(network());
  loop.run(8, 1.0);
  loop.run(1, slack);
  return loop.report(0, 0).policy.bound;
}

}  // namespace

TEST(slack_multiplies_the_deadline) {
  const double usual = bound_with(1.0).seconds();
  CHECK(usual > 0);
  CHECK(bound_with(kThreeTimes).seconds() > 2.5 * usual);
  CHECK(bound_with(kThreeTimes).seconds() < 3.5 * usual);
  CHECK_EQ(bound_with(std::numeric_limits<double>::infinity()).ns, 0);
}

TEST(what_takes_twice_as_long_as_usual_is_not_lost) {
  for (const double slack : {1.0, kThreeTimes}) {
    sim::SimOptions options = network();
    const Time until = kFaultBegins + bound_with(1.0) * 2;
    for (const Rank from : {Rank{0}, Rank{2}}) options.cuts.push_back({from, 1, kFaultBegins, until});
    Gradients loop(options);
    loop.run(8, 1.0);
    loop.run_into_fault(slack);
    for (Rank rank = 0; rank < 3; ++rank) CHECK_EQ(loop.lost_bytes(rank) == 0, slack > 1);
  }
}

// A rank that the others have left behind has all of its time, too.
TEST(who_is_last_is_not_hurried) {
  for (const double slack : {1.0, kThreeTimes}) {
    sim::SimOptions options = network();
    options.ranks = 5;  // of whom three tell rank 1 that they are through
    // Only what rank 0 has reduced does not reach rank 1, after everything has been contributed.
    options.cuts.push_back({0, 1, kFaultBegins + Duration::micros(600), kFaultBegins + bound_with(1.0) * 2});
    Gradients loop(options);
    loop.run(8, 1.0);
    loop.run_into_fault(slack);
    for (const Rank rank : {Rank{0}, Rank{2}, Rank{3}, Rank{4}}) {
      CHECK(loop.report(0, rank).elapsed < Duration::millis(10));
    }
    CHECK_EQ(loop.lost_bytes(1) == 0, slack > 1);
  }
}

RUN_TESTS()
