// A training loop over the simulator: every rank starts its next all-reduce when the one before is over, and
// every value is checked against the contributions that were reported for it.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "proto/schedule.h"
#include "training_loop.h"

namespace boundedcase {

using namespace trainingloop;

/// Rank r contributes 2^r times a small number that depends on the place: the sum tells who is in it.
inline float contribution(Rank rank, std::size_t element) {
  return std::ldexp(static_cast<float>(1 + element % 7), rank);
}

/// The mean of the contributions of `who` (a bit for each rank), which shrinks below half of the ranks.
inline float mean_of(std::uint32_t who, std::size_t element, Rank ranks) {
  const double sum = static_cast<double>(1 + element % 7) * who;
  return static_cast<float>(sum / std::max<double>(std::popcount(who), ranks / 2.0));
}

/// Whether a value can be the mean of some contributions at all.
/// bfloat16 has 8 bits.
constexpr float kBfloat16Rounding = 1.0f / 256;

inline bool is_some_mean(float value, std::size_t element, Rank ranks) {
  for (Rank count = 1; count <= ranks; ++count) {
    const double divisor = std::max<double>(count, ranks / 2.0) / static_cast<double>(1 + element % 7);
    const auto who = static_cast<std::uint32_t>(std::llround(static_cast<double>(value) * divisor));
    const bool possible = who != 0 && who >> ranks == 0 && std::popcount(who) == count;
    if (possible && mean_of(who, element, ranks) == value) return true;
  }
  return false;
}

struct LoopOptions {
  std::uint32_t elements = 20'000;
  std::size_t operations = 10;
  Duration compute = Duration::millis(1);
  std::vector<Duration> first_starts;  // by rank; empty: at once
  std::vector<std::uint16_t> weights;  // by rank; empty: 1
  bool bounded = true;
  std::uint32_t stream = 0;
  bool narrow = false;  // travels as bfloat16, in which every contribution is exact
};

class Loop : public TrainingLoop {
 public:
  using TrainingLoop::TrainingLoop;

  /// Runs so many operations on every rank.
  const sim::RunResult& run(const LoopOptions& loop, Duration limit = Duration::millis(600'000)) {
    loop_ = loop;
    const Descriptor descriptor = descriptor_of(loop);
    const auto call_of = [&](std::size_t operation, Rank rank) {
      const Duration first = loop.first_starts.empty() ? Duration{} : loop.first_starts[rank];
      const std::uint16_t weight = loop.weights.empty() ? std::uint16_t{1} : loop.weights[rank];
      const bool follows = operation != 0;
      return sim::Call{descriptor, nullptr, follows ? loop.compute : first, weight, follows, loop.stream};
    };
    return run_calls(loop.operations, call_of, contribution, limit);
  }

  /// The first value that is not the mean of exactly the contributions reported for it; empty: none. In a
  /// stream what comes late is added to later values: there, sums over all operations are looked at.
  std::string why_wrong() const override {
    if (loop_.stream != 0) return why_sums_are_wrong();
    for (std::size_t i = 0; i < result().reports.size(); ++i) {
      for (Rank rank = 0; rank < options().ranks; ++rank) {
        if (!has_report(i, rank) || report(i, rank).error != ErrorCode::None) continue;
        const std::string why = why_wrong(i, rank);
        if (!why.empty()) return "operation " + std::to_string(i) + " on rank " + std::to_string(rank) + why;
      }
    }
    return "";
  }

  /// Of all results of all ranks.
  double mean_lost_share() const {
    double lost = 0, all = 0;
    for (const auto& row : result().reports) {
      for (const auto& report : row) {
        if (!report || report->error != ErrorCode::None) continue;
        lost += static_cast<double>(report->contributions_lost_bytes + report->reduced_lost_bytes);
        all += static_cast<double>(report->bytes);
      }
    }
    return all == 0 ? 0 : lost / all;
  }

 private:
  static Descriptor descriptor_of(const LoopOptions& loop) {
    return {loop.elements, loop.narrow ? DType::BFloat16 : DType::Float32, ReduceOp::Mean, loop.bounded};
  }

  std::size_t value_bytes() const { return loop_.narrow ? 2 : sizeof(float); }

  /// Whether it is that mean, rounded as it travels.
  bool is(float value, float mean) const {
    return loop_.narrow ? std::abs(value - mean) <= mean * kBfloat16Rounding : value == mean;
  }

  /// Rounded, it may be near more than one.
  bool could_be_some_mean(float value, std::size_t element) const {
    const Rank ranks = options().ranks;
    if (!loop_.narrow) return is_some_mean(value, element, ranks);
    return value > 0 && value <= mean_of((1u << ranks) - 1u, 6, ranks) * static_cast<float>(ranks);
  }

  static bool has_hole(const Report& report, PacketType stage, Rank peer, std::size_t byte) {
    return std::any_of(report.holes.begin(), report.holes.end(), [&](const Hole& hole) {
      return hole.stage == stage && hole.peer == peer && byte >= hole.begin && byte < hole.begin + hole.bytes;
    });
  }

  /// Who contributed to a byte, by its owner's report; nothing if the owner did not live to tell.
  std::optional<std::uint32_t> reported(std::size_t operation, Rank owner, std::size_t byte) const {
    if (!has_report(operation, owner) || report(operation, owner).error != ErrorCode::None)
      return std::nullopt;
    std::uint32_t who = 0;
    for (Rank rank = 0; rank < options().ranks; ++rank) {
      if (!has_hole(report(operation, owner), PacketType::Contribution, rank, byte)) who |= 1u << rank;
    }
    return who;
  }

  /// How far a rank may be from the sum of what the owners made of an element: `most` below it, where nothing
  /// stands in for what it was told is missing; or `ahead`, where what stands in is larger.
  struct Allowed {
    double most = 0;
    double ahead = 0;
  };

  std::string why_sums_are_wrong() const {
    for (Rank rank = 0; rank < options().ranks; ++rank) {
      std::vector<double> behind(loop_.elements, 0);
      std::vector<Allowed> allowed(loop_.elements);
      for (std::size_t i = 0; i < result().reports.size(); ++i) {
        if (!has_report(i, rank) || report(i, rank).error != ErrorCode::None) return "";
        if (!add_up(i, rank, behind, allowed)) return "";
      }
      for (std::size_t e = 0; e < loop_.elements; ++e) {
        const double largest = 7.0 * (1 << options().ranks);
        const double rounding =
            static_cast<double>(kBfloat16Rounding) * static_cast<double>(result().reports.size());
        const double tolerance = loop_.narrow ? largest * rounding : 1e-4 * (1 << options().ranks);
        if (behind[e] < -allowed[e].ahead - tolerance || behind[e] > allowed[e].most + tolerance)
          return "element " + std::to_string(e) + " of rank " + std::to_string(rank) + " is behind by " +
                 std::to_string(behind[e]) + ", reported missing: " + std::to_string(allowed[e].most) +
                 ", ahead at most " + std::to_string(allowed[e].ahead);
      }
    }
    return "";
  }

  /// False if an owner did not live to tell what it made.
  bool add_up(std::size_t operation, Rank rank, std::vector<double>& behind,
              std::vector<Allowed>& allowed) const {
    const Descriptor descriptor = descriptor_of(loop_);
    const Schedule schedule(descriptor, report(operation, rank).operation, options().ranks,
                            options().protocol.payload_bytes, sim::seal_of(options(), 0).shared_number());
    for (Rank index = 0; index < options().ranks; ++index) {
      const Rank owner = schedule.owner_of(index);
      const Shard shard = schedule.shard(index);
      for (std::uint32_t packet = 0; packet < shard.packets(); ++packet) {
        const std::size_t byte = shard.begin + shard.place_of(packet);
        const auto told = reported(operation, owner, byte);
        if (!told) return false;
        const bool lost =
            owner != rank && has_hole(report(operation, rank), PacketType::Reduced, owner, byte);
        for (std::size_t e = byte / value_bytes(); e < (byte + shard.length_of(packet)) / value_bytes();
             ++e) {
          const double made = mean_of(*told, e, options().ranks);
          behind[e] += made - static_cast<double>(values(operation, rank)[e]);
          if (!lost) continue;
          const double lent = contribution(rank, e) / std::sqrt(options().ranks);
          allowed[e].most += made;
          allowed[e].ahead += std::max(0.0, lent - made);
        }
      }
    }
    return true;
  }

  std::string why_wrong(std::size_t operation, Rank rank) const {
    const Descriptor descriptor = descriptor_of(loop_);
    const Schedule schedule(descriptor, report(operation, rank).operation, options().ranks,
                            options().protocol.payload_bytes, sim::seal_of(options(), 0).shared_number());
    for (Rank index = 0; index < options().ranks; ++index) {
      const Rank owner = schedule.owner_of(index);
      const Shard shard = schedule.shard(index);
      for (std::uint32_t packet = 0; packet < shard.packets(); ++packet) {
        const std::size_t byte = shard.begin + shard.place_of(packet);
        const std::size_t first = byte / value_bytes();
        const std::size_t end = first + shard.length_of(packet) / value_bytes();
        const bool lost =
            owner != rank && has_hole(report(operation, rank), PacketType::Reduced, owner, byte);
        const auto told = reported(operation, owner, byte);
        for (std::size_t e = first; e < end; ++e) {
          const float value = values(operation, rank)[e];
          const bool right = lost   ? value == 0
                             : told ? is(value, mean_of(*told, e, options().ranks))
                                    : could_be_some_mean(value, e);
          if (!right) {
            return ", shard " + std::to_string(index) + " of rank " + std::to_string(owner) + ", packet " +
                   std::to_string(packet) + ": " + std::to_string(value) + (lost ? " is lost" : "") +
                   ", reported contributors: " + (told ? std::to_string(*told) : "unknown");
          }
        }
      }
    }
    return "";
  }

  LoopOptions loop_;
};

}  // namespace boundedcase
