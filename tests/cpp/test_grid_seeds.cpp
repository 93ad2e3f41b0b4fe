// Grids under everything at once, over many seeds: loss, reordering, duplication, delay spikes, cut links,
// pauses, crashes, hostile packets and clocks of their own. No operation exceeds the sum of its lanes'
// bounds, none hangs, no value is wrong.
#include <cstdio>

#include "grid_case.h"
#include "seeds.h"

using namespace gridcase;

namespace {

struct Shape {
  Rank ranks;
  Rank groups;
};
constexpr Shape kShapes[] = {{4, 2}, {6, 2}, {6, 3}, {8, 2}, {8, 4}, {9, 3}, {16, 4}};
constexpr Duration kFaultsBegin = Duration::millis(20'000);
constexpr std::size_t kOperations = 25;

struct Plan {
  sim::SimOptions options;
  GridLoop loop;
  std::uint32_t stream = 0;  // after the warm-up
};

Time some_time(sim::Random& random) {
  return Time{} + kFaultsBegin + random.duration_up_to(Duration::millis(300));
}

void add_link_faults(sim::SimOptions& options, sim::Random& random) {
  options.link.loss = random.chance(0.6) ? random.uniform() * 0.05 : 0;
  options.link.reorder = random.uniform() * 0.05;
  options.link.duplicate = random.uniform() * 0.05;
  options.link.delay = random.duration_up_to(Duration::micros(500));
  options.link.jitter = random.duration_up_to(Duration::micros(300));
  if (random.chance(0.3)) options.link.spike = 0.01, options.link.spike_delay = Duration::millis(20);
  if (random.chance(0.5)) options.ingress = options.egress = {1e8 + random.uniform() * 1e9, 256 * 1024};
  options.coalesce = random.uniform();
  if (random.chance(0.3)) options.wake_delay = random.duration_up_to(Duration::millis(1));
  if (random.chance(0.3)) options.receive_buffer_bytes = 100'000 + random.below(1'000'000);
  if (random.chance(0.3)) {
    options.hostile.forge = options.hostile.truncate = random.uniform() * 0.05;
    options.hostile.mangle = options.hostile.replay = random.uniform() * 0.05;
  }
}

/// Pauses, cuts and crashes, all after the warm-up.
void add_rank_faults(sim::SimOptions& options, sim::Random& random) {
  const auto any_rank = [&] { return static_cast<Rank>(random.below(options.ranks)); };
  for (std::uint64_t i = random.below(3); i > 0; --i) {
    const Time begin = some_time(random);
    options.pauses.push_back({any_rank(), begin, begin + random.duration_up_to(Duration::millis(400))});
  }
  for (std::uint64_t i = random.below(4); i > 0; --i) {
    const Time begin = some_time(random);
    options.cuts.push_back(
        {any_rank(), any_rank(), begin, begin + random.duration_up_to(Duration::millis(400))});
  }
  const std::uint64_t minority = (options.ranks - 1u) / 2;
  for (std::uint64_t i = random.chance(0.4) ? random.below(minority + 1) : 0; i > 0; --i)
    options.crashes.push_back({any_rank(), some_time(random)});
  for (Rank rank = 0; rank < options.ranks; ++rank) {
    options.clock_offset[rank] = random.duration_up_to(Duration::millis(5'000'000));
    options.clock_drift[rank] = random.uniform() * 200 - 100;
  }
}

/// The seed decides everything.
Plan plan_for(std::uint64_t seed) {
  sim::Random random(seed * 2 + 1);
  const Shape& shape = kShapes[random.below(std::size(kShapes))];
  Plan plan{grid_of(shape.ranks, shape.groups, seed), {}, 0};
  plan.options.max_events = 20'000'000;
  plan.options.protocol.bound.repair = !random.chance(0.2);
  plan.options.protocol.bound.absent_after = 1 + static_cast<std::uint32_t>(random.below(4));
  add_link_faults(plan.options, random);
  add_rank_faults(plan.options, random);
  plan.loop.elements = 1 + static_cast<std::uint32_t>(random.below(random.chance(0.2) ? 60'000 : 8'000));
  plan.loop.compute = random.duration_up_to(Duration::millis(3));
  if (random.chance(0.3)) plan.loop.at_once = 2 + random.below(4);
  plan.stream = random.chance(0.4) ? 1 : 0;
  return plan;
}

/// How long a rank stood still.
Duration paused(const sim::SimOptions& options, Rank rank) {
  Duration total;
  for (const sim::Pause& pause : options.pauses) {
    if (pause.rank == rank) total = total + (pause.end - pause.begin);
  }
  return total;
}

std::string why_late(const Plan& plan, const CommonLoop& loop) {
  for (std::size_t i = 0; i < kOperations; ++i) {
    for (Rank rank = 0; rank < plan.options.ranks; ++rank) {
      if (!loop.has_report(i, rank) || !loop.report(i, rank).bounded) continue;
      const Report& report = loop.report(i, rank);
      const Duration round_trip = (plan.options.link.delay + plan.options.link.jitter) * 2;
      const Duration allowed = report.policy.bound + round_trip + plan.options.wake_delay +
                               paused(plan.options, rank) + Duration::micros(100);
      if (report.elapsed > allowed) {
        return "operation " + std::to_string(i) + " took " + std::to_string(report.elapsed.seconds()) +
               " s on rank " + std::to_string(rank) + ", its bound is " +
               std::to_string(report.policy.bound.seconds());
      }
    }
  }
  return "";
}

/// Only too few ranks are an error, and only where they are too few.
std::string why_failed(const Plan& plan, const CommonLoop& loop) {
  for (std::size_t i = 0; i < kOperations; ++i) {
    for (Rank rank = 0; rank < plan.options.ranks; ++rank) {
      if (!loop.has_report(i, rank)) continue;
      const Report& report = loop.report(i, rank);
      if (report.error == ErrorCode::None) continue;
      const std::size_t present = plan.options.ranks - report.ranks.size();
      if (report.error == ErrorCode::TooFewRanks && present * 2 <= plan.options.ranks) continue;
      return "operation " + std::to_string(i) + " on rank " + std::to_string(rank) + ": " + report.message;
    }
  }
  return "";
}

void print_reports(const Plan& plan, const CommonLoop& loop) {
  for (std::size_t i = 0; i < kOperations; ++i) {
    for (Rank rank = 0; rank < plan.options.ranks; ++rank) {
      if (!loop.has_report(i, rank)) continue;
      const Report& report = loop.report(i, rank);
      std::printf("operation %zu rank %d: %.3f of %.3f ms, closed by %d, lost %llu + %llu, absent %zu %s\n",
                  i, rank, report.elapsed.seconds() * 1e3, report.policy.bound.seconds() * 1e3,
                  static_cast<int>(report.closed_by),
                  static_cast<unsigned long long>(report.contributions_lost_bytes),
                  static_cast<unsigned long long>(report.reduced_lost_bytes), report.absent.size(),
                  report.message.c_str());
    }
  }
}

/// Empty if all went as promised.
std::string run_seed(std::uint64_t seed, bool verbose) {
  Plan plan = plan_for(seed);
  CommonLoop loop(plan.options);
  GridLoop warm_up = plan.loop;
  warm_up.operations = 8;
  warm_up.at_once = 1;
  loop.run(warm_up);
  if (!loop.result().finished) return "the warm-up hangs";
  if (loop.network().now() >= Time{} + kFaultsBegin) return "the warm-up took too long";
  plan.loop.operations = kOperations;
  plan.loop.stream = plan.stream;
  plan.loop.first_start = Time{} + kFaultsBegin - loop.network().now();
  loop.run(plan.loop);
  if (verbose) print_reports(plan, loop);
  if (!loop.result().finished) return "an operation hangs";
  for (const std::string& why : {loop.why_wrong(), why_failed(plan, loop), why_late(plan, loop)}) {
    if (!why.empty()) return why;
  }
  return loop.network().settle(Duration::millis(20'000)) ? "" : "the endpoints do not go quiet";
}

}  // namespace

int main(int argc, char** argv) {
  return run_seeds(argc, argv, run_seed);
}
