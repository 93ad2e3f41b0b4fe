// Bounded operations under everything at once, over many seeds: loss, reordering, duplication, delay spikes,
// cut links, pauses, crashes and clocks of their own, with and without multicast, as float32 and as bfloat16.
// No operation exceeds its bound, none hangs, no value is wrong.
#include "bounded_case.h"
#include "loop_seeds.h"

using namespace boundedcase;
using namespace loopseeds;

namespace {

constexpr Rank kRanks[] = {2, 3, 4, 5, 8, 16};

struct Plan {
  sim::SimOptions options;
  LoopOptions loop;
  std::uint32_t stream = 0;  // after the warm-up
};

/// The seed decides everything.
Plan plan_for(std::uint64_t seed) {
  sim::Random random(seed * 2 + 1);
  Plan plan;
  plan.options.seed = seed;
  plan.options.ranks = kRanks[random.below(std::size(kRanks))];
  plan.options.max_events = 20'000'000;
  plan.options.seal = seed % 3 == 0 ? Seal::Kind::Tag : Seal::Kind::Token;
  plan.options.protocol.bound.warmup_operations = 5;
  plan.options.protocol.bound.repair = !random.chance(0.2);
  plan.options.protocol.bound.absent_after = 1 + static_cast<std::uint32_t>(random.below(4));
  add_link_faults(plan.options, random);
  add_rank_faults(plan.options, random);
  plan.loop.elements = 1 + static_cast<std::uint32_t>(random.below(random.chance(0.2) ? 60'000 : 8'000));
  plan.loop.compute = random.duration_up_to(Duration::millis(3));
  plan.stream = random.chance(0.4) ? 1 : 0;
  plan.options.protocol.multicast = seed % 2 == 1;
  plan.loop.narrow = seed % 5 == 2;
  if (seed % 8 == 1) {  // also with somebody whom the group does not reach, for a while or for good
    const Time begin = some_time(random);
    const auto rank = static_cast<Rank>(random.below(plan.options.ranks));
    plan.options.group_outages.push_back({rank, begin, begin + random.duration_up_to(Duration::millis(900))});
  }
  return plan;
}

std::string run_seed(std::uint64_t seed, bool verbose) {
  const Plan plan = plan_for(seed);
  Loop loop(plan.options);
  LoopOptions warm_up = plan.loop;
  warm_up.operations = kWarmUpOperations;
  const auto faulty_from = [&](Duration start) {
    LoopOptions faulty = plan.loop;
    faulty.operations = kOperations;
    faulty.stream = plan.stream;
    faulty.first_starts.assign(plan.options.ranks, start);
    return faulty;
  };
  return run_under_faults(loop, warm_up, faulty_from, verbose);
}

}  // namespace

int main(int argc, char** argv) {
  return run_seeds(argc, argv, run_seed);
}
