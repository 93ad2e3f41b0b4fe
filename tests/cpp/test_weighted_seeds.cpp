// Weighted means under random faults. In every run the results of an operation are equal on all ranks that
// complete it, each packet is the mean over whole contributions, every sample is in exactly one mean, and
// every operation ends.
#include "random_faults.h"
#include "seeds.h"
#include "weighted_case.h"

using namespace weightedcase;

namespace {

std::string why_wrong(std::uint64_t seed, bool verbose) {
  Faulty faulty = faulty_of(seed);
  make_weighted(seed, faulty.options, faulty.training);
  Run run(faulty.options, faulty.training);
  const bool ended = run.run(Duration::millis(120'000));
  if (verbose) describe(faulty, run);
  if (!ended) return "not every operation ended";
  const std::string different = run.why_different();
  if (!different.empty()) return different;
  bool all = true, removed = false;
  for (Rank rank = 0; rank < faulty.options.ranks; ++rank) {
    for (std::size_t operation = 0; operation < run.result().reports.size(); ++operation)
      all = all && run.completed(operation, rank);
    removed = removed || run.network().stats(rank).removals != 0;
  }
  if (!faulty.removes && !all) return "an operation failed without a reason";
  // A restarted process makes calls of steps that its predecessor has made.
  if (!faulty.options.crashes.empty()) return "";
  return Tally(run).why_wrong(all && !removed);
}

}  // namespace

int main(int argc, char** argv) {
  return run_seeds(argc, argv, why_wrong);
}
