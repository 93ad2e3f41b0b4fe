// Weighted training in which every sample can be told from every other: contribution number n of a packet's
// piece (n counts ranks and steps) has its samples as its n-th value, and zeros elsewhere. A mean then says
// by itself who is in it, so that nothing has to be believed of sets, residuals or the order of events: its
// n-th value is the samples of n over the samples of all that are in it.
#pragma once

#include <cmath>
#include <map>
#include <set>
#include <string>

#include "decision_case.h"

namespace weightedcase {

using namespace decisioncase;

class Tally {
 public:
  explicit Tally(Run& run) : run_(run), training_(run.training()), ranks_(run.network().ranks()) {}

  /// The first packet that is not the mean over whole contributions, or a contribution that counts twice;
  /// empty: none. `conserved`: each counts.
  std::string why_wrong(bool conserved) {
    const std::size_t buckets = training_.buckets.size();
    for (std::size_t bucket = 0; bucket < buckets && why_.empty(); ++bucket) {
      seen_.assign(pieces(bucket), std::set<std::size_t>());
      for (std::size_t step = 0; step < training_.steps && why_.empty(); ++step) {
        const std::size_t operation = step * buckets + bucket;
        const int rank = who_has(operation);
        if (rank >= 0) count_result(operation, run_.values(operation, static_cast<Rank>(rank)));
      }
      for (Rank rank = 0; rank < ranks_ && why_.empty(); ++rank) count_residual(bucket, rank);
      if (conserved && why_.empty()) look_for_lost(bucket);
    }
    return why_;
  }

 private:
  std::size_t contributions() const { return ranks_ * training_.steps; }
  std::size_t pieces(std::size_t bucket) const {
    return (training_.buckets[bucket] + run_.piece() - 1) / run_.piece();
  }
  std::uint32_t samples_of(std::size_t contribution) const {
    return samples(static_cast<Rank>(contribution / training_.steps), contribution % training_.steps);
  }
  int who_has(std::size_t operation) const {
    for (Rank rank = 0; rank < ranks_; ++rank)
      if (run_.completed(operation, rank) && run_.counts(rank)) return rank;
    return -1;
  }

  /// Who is in a piece, and the samples of all of them.
  std::uint64_t count(std::size_t piece, const float* values, std::size_t length, const std::string& where) {
    std::uint64_t weight = 0;
    for (std::size_t i = 0; i < length; ++i) {
      if (values[i] == 0) continue;
      if (i >= contributions() || samples_of(i) == 0) {
        why_ = where + ": value " + std::to_string(i) + " is " + std::to_string(values[i]);
        return 0;
      }
      weight += samples_of(i);
      if (!seen_[piece].insert(i).second) why_ = where + ": contribution " + std::to_string(i) + " again";
    }
    return weight;
  }

  void count_result(std::size_t operation, const std::vector<float>& result) {
    for (std::size_t begin = 0; begin < result.size() && why_.empty(); begin += run_.piece()) {
      const std::size_t length = std::min(run_.piece(), result.size() - begin);
      const std::string where =
          "operation " + std::to_string(operation) + ", piece " + std::to_string(begin / run_.piece());
      const std::uint64_t weight = count(begin / run_.piece(), &result[begin], length, where);
      if (length < contributions()) continue;  // not all of them can be seen
      for (std::size_t i = 0; i < contributions() && why_.empty(); ++i) {
        if (result[begin + i] == 0) continue;
        const double mean = samples_of(i) / static_cast<double>(weight);
        if (std::abs(static_cast<double>(result[begin + i]) - mean) > 1e-6 * mean)
          why_ = where + ": contribution " + std::to_string(i) + " weighs " +
                 std::to_string(result[begin + i]) + " instead of " + std::to_string(mean);
      }
    }
  }

  void count_residual(std::size_t bucket, Rank rank) {
    const KeptValues kept = run_.network().group(rank).take_residual(static_cast<std::uint32_t>(bucket + 1));
    std::vector<float> values(kept.values.size() / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), kept.values.data(), kept.values.size());
    for (std::size_t begin = 0; begin < values.size() && why_.empty(); begin += run_.piece()) {
      const std::size_t length = std::min(run_.piece(), values.size() - begin);
      const std::string where =
          "residual of rank " + std::to_string(rank) + ", piece " + std::to_string(begin / run_.piece());
      const std::uint64_t weight = count(begin / run_.piece(), &values[begin], length, where);
      if (length >= contributions() && weight != kept.weights[begin / run_.piece()] && why_.empty())
        why_ = where + " weighs " + std::to_string(kept.weights[begin / run_.piece()]) + " instead of " +
               std::to_string(weight);
      for (std::size_t i = 0; i < std::min(length, contributions()) && why_.empty(); ++i) {
        const auto own = static_cast<float>(samples_of(i));
        if (values[begin + i] != 0 && (values[begin + i] != own || i / training_.steps != rank))
          why_ = where + ": contribution " + std::to_string(i) + " is " + std::to_string(values[begin + i]);
      }
    }
  }

  void look_for_lost(std::size_t bucket) {
    for (std::size_t piece = 0; piece < pieces(bucket); ++piece) {
      const std::size_t length = std::min(run_.piece(), training_.buckets[bucket] - piece * run_.piece());
      for (std::size_t i = 0; i < std::min(length, contributions()) && why_.empty(); ++i) {
        if (samples_of(i) != 0 && !seen_[piece].contains(i))
          why_ = "bucket " + std::to_string(bucket) + ", piece " + std::to_string(piece) + ": contribution " +
                 std::to_string(i) + " is lost";
      }
    }
  }

  Run& run_;
  const Training& training_;
  Rank ranks_;
  std::vector<std::set<std::size_t>> seen_;  // by piece: contributions
  std::string why_;
};

/// Turns a run into one with weights: pieces as long as there are contributions, buckets of some pieces.
inline void make_weighted(std::uint64_t seed, sim::SimOptions& options, Training& training) {
  sim::Random random(seed * 3 + 2);
  training.weighted = true;
  if (random.chance(0.5)) training.exact_at = random.below(training.steps);
  const std::size_t payload = (options.ranks * training.steps * sizeof(float) + 63) / 64 * 64;
  options.protocol.path.payload_bytes = static_cast<std::uint32_t>(payload);
  for (std::uint32_t& elements : training.buckets) {
    const std::uint64_t piece = payload / sizeof(float);
    elements = static_cast<std::uint32_t>((1 + random.below(12)) * piece +
                                          (random.chance(0.5) ? random.below(piece) : 0));
  }
}

}  // namespace weightedcase
