// Random faults: loss, duplication, reordering, pauses, late starts, crashes and cuts that heal. In every run
// the results of an operation are equal on all ranks that complete it, every contribution is counted exactly
// once, and every operation ends.
#include <set>

#include "check.h"
#include "random_faults.h"
#include "seeds.h"

using namespace optireduce;
using namespace decisioncase;

namespace {

/// Two ranks that completed the same operation in different views were members of a common history: their
/// results are equal. Here: the sets of members that reports name for one operation agree.
std::string why_two_views(const Run& run) {
  for (std::size_t operation = 0; operation < run.result().reports.size(); ++operation) {
    std::set<std::vector<Rank>> members;
    for (Rank rank = 0; rank < run.result().reports[operation].size(); ++rank) {
      if (run.reported(operation, rank) && run.counts(rank))
        members.insert(run.result().reports[operation][rank]->members);
    }
    if (members.size() > 1)
      return "operation " + std::to_string(operation) + " was completed by two sets of owners";
  }
  return "";
}

std::string why_wrong(std::uint64_t seed, bool verbose) {
  const Faulty faulty = faulty_of(seed);
  Run run(faulty.options, faulty.training);
  const bool ended = run.run(Duration::millis(120'000));
  if (verbose) describe(faulty, run);
  if (!ended) return "not every operation ended";
  const std::string different = run.why_different();
  if (!different.empty()) return different;
  const std::string views = why_two_views(run);
  if (!views.empty()) return views;
  bool all = true, removed = false;
  for (Rank rank = 0; rank < faulty.options.ranks; ++rank) {
    for (std::size_t operation = 0; operation < run.result().reports.size(); ++operation)
      all = all && run.completed(operation, rank);
    removed = removed || run.network().stats(rank).removals != 0;
  }
  if (!faulty.removes && !all) return "an operation failed without a reason";
  if (all && !removed) return run.why_not_conserved();
  if (faulty.training.snapshots && faulty.options.crashes.empty()) return run.why_not_accounted();
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  return run_seeds(argc, argv, why_wrong);
}
