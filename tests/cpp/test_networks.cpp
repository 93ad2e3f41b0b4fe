// Operations on networks that nobody tuned for: they end, and in a time that the network explains.
#include <algorithm>

#include "sim_case.h"

using namespace optireduce;
using namespace simcase;

namespace {

constexpr std::uint32_t kElements = 1 << 20;
constexpr double kNever = 1e9;

/// How many times as long as on the wire alone an operation of 4 MiB takes, after three that teach the path.
double of_the_line(sim::SimOptions options) {
  constexpr int kOperations = 6, kTaught = 3;
  constexpr double kHeaders = 1.0696;
  options.ranks = 4;
  const double line = 2. * 3 / 4 * kElements * 4 * 8 * kHeaders / options.ingress.bits_per_second;
  Case test(options);
  double longest = 0;
  for (int i = 0; i < kOperations; ++i) {
    test.add(floats(kElements));
    test.run(Duration::millis(60'000));
    CHECK_EXACT(test);
    if (!test.result().finished) return kNever;
    if (i >= kTaught) longest = std::max(longest, test.result().elapsed.seconds());
  }
  return longest / line;
}

/// Shapers of a kernel: they queue, and drop, what one call has sent as a whole.
sim::SimOptions kernel_shaper(double rate, std::size_t queue) {
  sim::SimOptions options;
  options.ingress = {.bits_per_second = rate, .queue_bytes = queue, .whole_batches = true};
  options.egress = {.bits_per_second = rate, .whole_batches = true};
  return options;
}

sim::SimOptions token_bucket(double rate, std::size_t burst, std::size_t queue) {
  sim::SimOptions options = kernel_shaper(rate, queue);
  options.ingress.burst_bytes = burst;
  return options;
}

sim::SimOptions policer(double rate, std::size_t burst) {
  sim::SimOptions options;
  options.ingress = {.bits_per_second = rate, .burst_bytes = burst, .policer = true, .whole_batches = true};
  return options;
}

}  // namespace

TEST(an_operation_ends_where_a_queue_holds_no_more_than_a_packet) {
  for (const double rate : {2e7, 1e9, 1e10}) CHECK(of_the_line(kernel_shaper(rate, 1'600)) < kNever);
}

TEST(batches_become_as_small_as_the_queue_wants) {
  CHECK(of_the_line(kernel_shaper(2e8, 16'000)) < 1.1);
  CHECK(of_the_line(kernel_shaper(1e9, 16'000)) < 2);
  CHECK(of_the_line(kernel_shaper(1e9, 48'000)) < 1.4);
}

TEST(a_deep_queue_is_used_as_before) {
  for (const double rate : {2e7, 2e8, 1e9, 1e10}) CHECK(of_the_line(kernel_shaper(rate, 256'000)) < 1.05);
}

TEST(token_buckets_and_policers_let_operations_end) {
  CHECK(of_the_line(token_bucket(1e9, 64'000, 48'000)) < 2);
  CHECK(of_the_line(policer(2e8, 32'000)) < kNever);
}

RUN_TESTS()
