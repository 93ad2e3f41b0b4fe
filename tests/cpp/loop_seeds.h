// What tests of training loops over many seeds share: faults at random, and what must hold whatever they
// were.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "seeds.h"
#include "sim/random.h"
#include "training_loop.h"

namespace loopseeds {

using namespace trainingloop;

constexpr Duration kFaultsBegin = Duration::millis(20'000);
constexpr std::size_t kWarmUpOperations = 8;
constexpr std::size_t kOperations = 25;  // under faults

/// Soon after the faults begin.
inline Time some_time(sim::Random& random) {
  return Time{} + kFaultsBegin + random.duration_up_to(Duration::millis(300));
}

inline void add_link_faults(sim::SimOptions& options, sim::Random& random) {
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
}

/// Pauses, cuts and crashes, all after the warm-up; clocks of their own.
inline void add_rank_faults(sim::SimOptions& options, sim::Random& random) {
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
  // Now and then nobody hears anybody, for longer than it takes to give each other up.
  options.protocol.bound.quorum_wait = random.duration_up_to(Duration::millis(600));
  if (random.chance(0.2)) {
    const Time begin = some_time(random), end = begin + random.duration_up_to(Duration::millis(900));
    for (Rank from = 0; from < options.ranks; ++from) {
      for (Rank to = 0; to < options.ranks; ++to) options.cuts.push_back({from, to, begin, end});
    }
  }
  const std::uint64_t minority = (options.ranks - 1u) / 2;
  for (std::uint64_t i = random.chance(0.4) ? random.below(minority + 1) : 0; i > 0; --i)
    options.crashes.push_back({any_rank(), some_time(random)});
  for (Rank rank = 0; rank < options.ranks; ++rank) {
    options.clock_offset[rank] = random.duration_up_to(Duration::millis(5'000'000));
    options.clock_drift[rank] = random.uniform() * 200 - 100;
  }
}

/// How long a rank stood still.
inline Duration paused(const sim::SimOptions& options, Rank rank) {
  Duration total;
  for (const sim::Pause& pause : options.pauses) {
    if (pause.rank == rank) total = total + (pause.end - pause.begin);
  }
  return total;
}

inline std::string why_late(const TrainingLoop& loop) {
  const sim::SimOptions& options = loop.options();
  for (std::size_t i = 0; i < kOperations; ++i) {
    for (Rank rank = 0; rank < options.ranks; ++rank) {
      if (!loop.has_report(i, rank) || !loop.report(i, rank).bounded) continue;
      const Report& report = loop.report(i, rank);
      const Duration round_trip = (options.link.delay + options.link.jitter) * 2;
      const Duration allowed = report.policy.bound + report.quorum_wait + round_trip + options.wake_delay +
                               paused(options, rank) + Duration::micros(100);
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
inline std::string why_failed(const TrainingLoop& loop) {
  const std::size_t ranks = loop.options().ranks;
  for (std::size_t i = 0; i < kOperations; ++i) {
    for (Rank rank = 0; rank < ranks; ++rank) {
      if (!loop.has_report(i, rank)) continue;
      const Report& report = loop.report(i, rank);
      if (report.error == ErrorCode::None) continue;
      const std::size_t present = ranks - report.ranks.size();
      if (report.error == ErrorCode::TooFewRanks && present * 2 <= ranks) continue;
      return "operation " + std::to_string(i) + " on rank " + std::to_string(rank) + ": " + report.message;
    }
  }
  return "";
}

inline void print_reports(const TrainingLoop& loop) {
  for (std::size_t i = 0; i < kOperations; ++i) {
    for (Rank rank = 0; rank < loop.options().ranks; ++rank) {
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

/// The warm-up, then the operations that faults happen to; why not all went as promised, or nothing.
/// `faulty_from(start)`: their options, with a first start so much later than the end of the warm-up.
template <typename Loop, typename LoopOptions, typename FaultyFrom>
std::string run_under_faults(Loop& loop, const LoopOptions& warm_up, const FaultyFrom& faulty_from,
                             bool verbose) {
  loop.run(warm_up);
  if (!loop.result().finished) return "the warm-up hangs";
  if (loop.network().now() >= Time{} + kFaultsBegin) return "the warm-up took too long";
  loop.run(faulty_from(Time{} + kFaultsBegin - loop.network().now()));
  if (verbose) print_reports(loop);
  if (!loop.result().finished) return "an operation hangs";
  for (const std::string& why : {loop.why_wrong(), why_failed(loop), why_late(loop)}) {
    if (!why.empty()) return why;
  }
  return loop.network().settle(Duration::millis(20'000)) ? "" : "the endpoints do not go quiet";
}

}  // namespace loopseeds
