// Operations that keep ranks together, such as what they tell each other about a step, wait for ranks that
// still have time left for the gradient before. In virtual time.
#include "bounded_case.h"

using namespace boundedcase;

namespace {

constexpr Time kFaultBegins = Time{} + Duration::millis(5'000);
constexpr std::uint32_t kElements = 20'000;
constexpr Descriptor kGradient{kElements, DType::Float32, ReduceOp::Mean, true};
constexpr Descriptor kStatement{9, DType::Float32, ReduceOp::Mean, true};

/// Nothing that is lost of a gradient is sent again, as in the papers.
sim::SimOptions network() {
  sim::SimOptions options;
  options.ranks = 3;
  options.protocol.bound.warmup_operations = 5;
  options.protocol.bound.repair = false;
  options.egress = {1e9, 0};
  options.ingress = {1e9, 256 * 1024};
  return options;
}

/// Steps of a gradient and a statement about it.
class Steps : public TrainingLoop {
 public:
  using TrainingLoop::TrainingLoop;

  void run(std::size_t steps, Duration first_start, Duration compute, double slack = 1.0) {
    const auto call_of = [&](std::size_t operation, Rank rank) {
      const bool states = operation % 2 == 1;
      sim::Call call;
      call.descriptor = states ? kStatement : kGradient;
      call.follows = operation != 0;
      call.start = operation == 0 ? first_start : rank == 0 ? Duration{} : compute;
      call.patience_bytes = states ? kElements * sizeof(float) : 0;
      call.repairs = states;
      call.slack = states ? 1.0 : slack;
      return call;
    };
    run_calls(2 * steps, call_of, contribution, Duration::millis(600'000));
  }

  std::string why_wrong() const override { return {}; }
};

void check_that_all_hear_about_the_step(double slack, Duration cut) {
  sim::SimOptions options = network();
  // What rank 0 adds up reaches nobody, after the contributions to it have been sent: the others take all the
  // time they have.
  const Time reduced = kFaultBegins + Duration::micros(600);
  for (const Rank to : {Rank{1}, Rank{2}}) options.cuts.push_back({0, to, reduced, kFaultBegins + cut});
  Steps steps(options);
  steps.run(8, {}, {});
  steps.run(1, kFaultBegins - steps.network().now(), Duration::millis(5), slack);
  CHECK(steps.report(0, 0).elapsed < Duration::millis(10));
  for (const Rank rank : {Rank{1}, Rank{2}}) {
    CHECK_EQ(static_cast<int>(steps.report(0, rank).closed_by), static_cast<int>(ClosedBy::Deadline));
  }
  for (Rank rank = 0; rank < 3; ++rank) {
    const Report& told = steps.report(1, rank);
    CHECK_EQ(static_cast<int>(told.closed_by), static_cast<int>(ClosedBy::Complete));
    CHECK_EQ(told.reduced_lost_bytes + told.contributions_lost_bytes, 0u);
  }
}

}  // namespace

TEST(who_is_through_early_waits_for_what_the_others_say_about_the_step) {
  check_that_all_hear_about_the_step(1.0, Duration::millis(45));
}

// Time that slack added to the gradient counts: others use it.
TEST(also_where_the_others_had_more_time_than_usual) {
  check_that_all_hear_about_the_step(3.0, Duration::millis(135));
}

// Every statement could lengthen the next one's time otherwise.
TEST(time_that_was_not_used_is_not_saved_up) {
  Steps steps(network());
  steps.run(60, {}, {});
  const Duration gradient = steps.report(118, 0).policy.bound;
  CHECK(steps.report(119, 0).policy.bound <= gradient * 2);
}

RUN_TESTS()
