// Grids under everything at once, over many seeds: loss, reordering, duplication, delay spikes, cut links,
// pauses, crashes, hostile packets and clocks of their own. No operation exceeds the sum of its lanes'
// bounds, none hangs, no value is wrong.
#include "grid_case.h"
#include "loop_seeds.h"

using namespace gridcase;
using namespace loopseeds;

namespace {

struct Shape {
  Rank ranks;
  Rank groups;
};
constexpr Shape kShapes[] = {{4, 2}, {6, 2}, {6, 3}, {8, 2}, {8, 4}, {9, 3}, {16, 4}};

struct Plan {
  sim::SimOptions options;
  GridLoop loop;
  std::uint32_t stream = 0;  // after the warm-up
};

void add_hostile_packets(sim::SimOptions& options, sim::Random& random) {
  if (!random.chance(0.3)) return;
  options.hostile.forge = options.hostile.truncate = random.uniform() * 0.05;
  options.hostile.mangle = options.hostile.replay = random.uniform() * 0.05;
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
  add_hostile_packets(plan.options, random);
  add_rank_faults(plan.options, random);
  plan.loop.elements = 1 + static_cast<std::uint32_t>(random.below(random.chance(0.2) ? 60'000 : 8'000));
  plan.loop.compute = random.duration_up_to(Duration::millis(3));
  if (random.chance(0.3)) plan.loop.at_once = 2 + random.below(4);
  plan.stream = random.chance(0.4) ? 1 : 0;
  return plan;
}

std::string run_seed(std::uint64_t seed, bool verbose) {
  const Plan plan = plan_for(seed);
  CommonLoop loop(plan.options);
  GridLoop warm_up = plan.loop;
  warm_up.operations = kWarmUpOperations;
  warm_up.at_once = 1;
  const auto faulty_from = [&](Duration start) {
    GridLoop faulty = plan.loop;
    faulty.operations = kOperations;
    faulty.stream = plan.stream;
    faulty.first_start = start;
    return faulty;
  };
  return run_under_faults(loop, warm_up, faulty_from, verbose);
}

}  // namespace

int main(int argc, char** argv) {
  return run_seeds(argc, argv, run_seed);
}
