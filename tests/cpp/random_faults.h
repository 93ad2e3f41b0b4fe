// Random faults, as everything else of a run, from its seed: loss, duplication, reordering, pauses, late
// starts, crashes, restarts and cuts that heal.
#pragma once

#include "decision_case.h"
#include "sim/random.h"

namespace decisioncase {

struct Faulty {
  sim::SimOptions options;
  Training training;
  bool removes = false;  // some rank may be removed
};

inline Time at(std::uint64_t millis) {
  return Time{} + Duration::millis(static_cast<std::int64_t>(millis));
}

/// In some runs a rank is away for longer than the log lasts, or its process is restarted, and returns by
/// snapshot. Drawn apart from all other faults.
inline void add_return(std::uint64_t seed, Faulty& faulty) {
  sim::Random random(~seed);
  if (!random.chance(0.4)) return;
  Training& training = faulty.training;
  sim::SimOptions& options = faulty.options;
  training.snapshots = Duration::millis(static_cast<std::int64_t>(random.below(60)));
  training.steps += 20 + random.below(60);
  training.gives_up_replay = random.next() % 2 == 0;
  options.protocol.log_bytes = 10'000 + random.below(300'000);
  faulty.removes = true;
  const auto rank = static_cast<Rank>(random.below(options.ranks));
  const std::uint64_t begin = random.below(100);
  if (random.chance(0.7)) {
    options.pauses.push_back({rank, at(begin), at(begin + 250 + random.below(500))});
  } else {
    options.crashes.push_back({rank, at(begin)});
    options.restarts.push_back({rank, at(begin + 10 + random.below(600))});
  }
}

/// In some runs the ranks stand in rows.
inline void add_rows(std::uint64_t seed, sim::SimOptions& options) {
  sim::Random random(~seed * 3);
  if (!random.chance(0.25)) return;
  const auto rows = static_cast<Rank>(2 + random.below(3)), columns = static_cast<Rank>(2 + random.below(3));
  options.ranks = static_cast<Rank>(rows * columns);
  options.protocol.rows.resize(rows);
  for (Rank rank = 0; rank < options.ranks; ++rank) options.protocol.rows[rank / columns].push_back(rank);
}

/// Everything follows from the seed.
inline Faulty faulty_of(std::uint64_t seed) {
  sim::Random random(seed * 2 + 1);
  Faulty faulty;
  sim::SimOptions& options = faulty.options;
  options.seed = seed;
  options.ranks = static_cast<Rank>(2 + random.below(seed % 7 == 0 ? 15 : 5));
  add_rows(seed, options);
  options.protocol.quorum_wait = Duration::millis(3'000);
  options.egress = {2e8, 0};
  options.ingress = {2e8, 256 * 1024};
  options.link.delay = Duration::micros(static_cast<std::int64_t>(20 + random.below(400)));
  if (random.chance(0.6)) options.link.loss = 0.001 * static_cast<double>(random.below(40));
  if (random.chance(0.3)) options.link.duplicate = 0.02;
  if (random.chance(0.3)) options.link.reorder = 0.03;
  if (random.chance(0.3)) options.wake_delay = Duration::micros(300);
  Training& training = faulty.training;
  training.steps = 12 + random.below(14);
  training.stays_readable = random.chance(0.5);
  training.exact_steps = random.below(3);
  training.buckets = {static_cast<std::uint32_t>(1 + random.below(9'000)),
                      static_cast<std::uint32_t>(100 + random.below(4'000))};
  training.compute.resize(options.ranks);
  for (Rank rank = 0; rank < options.ranks; ++rank) {
    for (std::size_t step = 0; step < training.steps; ++step) {
      const bool late = random.chance(0.08);
      training.compute[rank].push_back(
          Duration::millis(static_cast<std::int64_t>(late ? random.below(40) : 1 + random.below(2))));
    }
  }
  const std::uint64_t span = 20 + training.steps * 4;
  if (random.chance(0.4)) {
    for (std::uint64_t i = random.below(4); i > 0; --i) {
      const std::uint64_t begin = random.below(span);
      const std::uint64_t length = random.chance(0.5) ? 10 + random.below(40) : 100 + random.below(400);
      options.pauses.push_back(
          {static_cast<Rank>(random.below(options.ranks)), at(begin), at(begin + length)});
      faulty.removes = true;
    }
  }
  if (random.chance(0.25)) {
    options.crashes.push_back({static_cast<Rank>(random.below(options.ranks)), at(random.below(span))});
    faulty.removes = true;
  }
  if (random.chance(0.25)) {  // the group falls apart for a while
    const std::uint64_t begin = random.below(span), length = 20 + random.below(700);
    const std::uint64_t side = 1 + random.below((1u << std::min<Rank>(options.ranks, 10)) - 1u);
    for (Rank from = 0; from < options.ranks; ++from) {
      for (Rank to = 0; to < options.ranks; ++to) {
        if ((side >> from & 1) != (side >> to & 1))
          options.cuts.push_back({from, to, at(begin), at(begin + length)});
      }
    }
    faulty.removes = true;
  }
  add_return(seed, faulty);
  return faulty;
}

inline void describe(const Faulty& faulty, Run& run) {
  std::printf(
      "%d ranks in %zu rows, %zu steps, %zu pauses, %zu crashes, %zu restarts, %zu cuts, loss %g, %zu "
      "restored, "
      "%zu of them instead of a replay%s\n",
      faulty.options.ranks, faulty.options.protocol.rows.size(), faulty.training.steps,
      faulty.options.pauses.size(), faulty.options.crashes.size(), faulty.options.restarts.size(),
      faulty.options.cuts.size(), faulty.options.link.loss, run.restores(), run.give_ups(),
      run.learned() ? ", some replayed" : "");
  for (const sim::Pause& pause : faulty.options.pauses)
    std::printf("pause of rank %d %lld to %lld ms\n", pause.rank,
                static_cast<long long>(pause.begin.ns / 1'000'000),
                static_cast<long long>(pause.end.ns / 1'000'000));
  for (Rank rank = 0; rank < faulty.options.ranks; ++rank) {
    const Inspection seen = inspect(run.network().group(rank));
    std::size_t done = 0;
    std::string error;
    for (const auto& row : run.result().reports) {
      if (row[rank] && row[rank]->error == ErrorCode::None) ++done;
      if (row[rank] && row[rank]->error != ErrorCode::None && error.empty()) error = row[rank]->message;
    }
    std::printf("rank %d: view %llu of %zu members, completed %llu, %zu good%s%s%s %s\n", rank,
                static_cast<unsigned long long>(seen.view), seen.members.size(),
                static_cast<unsigned long long>(seen.completed), done,
                run.network().crashed(rank) ? ", crashed" : "", seen.away ? ", away" : "",
                seen.left_behind ? ", left behind" : "", error.c_str());
  }
}

}  // namespace decisioncase
