// A training loop over the simulator: every rank all-reduces bucket after bucket, and what came of it is
// kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/network.h"

namespace trainingloop {

using namespace optireduce;

class TrainingLoop {
 public:
  explicit TrainingLoop(const sim::SimOptions& options) : options_(options), network_(options) {}
  virtual ~TrainingLoop() = default;

  bool has_report(std::size_t operation, Rank rank) const {
    return result_.reports[operation][rank].has_value();
  }
  const Report& report(std::size_t operation, Rank rank) const { return *result_.reports[operation][rank]; }
  const std::vector<float>& values(std::size_t operation, Rank rank) const {
    return results_[operation][rank];
  }

  /// The first value of the last run that should not be; empty: none.
  virtual std::string why_wrong() const = 0;

  const sim::SimOptions& options() const { return options_; }
  sim::Network& network() { return network_; }
  const sim::RunResult& result() const { return result_; }

 protected:
  /// So many operations. `call_of(operation, rank)`: the call without its data; `contribution(rank,
  /// element)`: the data.
  template <typename CallOf, typename Contribution>
  const sim::RunResult& run_calls(std::size_t operations, const CallOf& call_of,
                                  const Contribution& contribution, Duration limit) {
    results_.assign(operations, std::vector<std::vector<float>>(options_.ranks));
    std::vector<std::vector<std::vector<float>>> buckets(operations);
    std::vector<std::vector<std::byte>> rooms;  // what lies there must never be read
    std::vector<sim::Collective> collectives(operations);
    for (std::size_t i = 0; i < operations; ++i) {
      for (Rank rank = 0; rank < options_.ranks; ++rank) {
        sim::Call call = call_of(i, rank);
        auto& bucket = buckets[i].emplace_back(call.descriptor.elements);
        for (std::size_t e = 0; e < bucket.size(); ++e) bucket[e] = contribution(rank, e);
        call.data = reinterpret_cast<std::byte*>(bucket.data());
        if (call.descriptor.dtype == DType::BFloat16) {
          call.data = rooms.emplace_back(2 * bucket.size(), std::byte{0xee}).data();
          call.wide = {bucket.data(), bucket.size(), 0};
        }
        collectives[i].calls.push_back(call);
      }
    }
    const auto hook = [&](std::size_t operation, Rank rank, const Report&) {
      results_[operation][rank] = std::move(buckets[operation][rank]);
    };
    result_ = network_.run(collectives, limit, hook);
    return result_;
  }

 private:
  sim::SimOptions options_;
  sim::Network network_;
  std::vector<std::vector<std::vector<float>>> results_;  // by operation and rank
  sim::RunResult result_;
};

}  // namespace trainingloop
