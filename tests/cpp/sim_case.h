// All-reduces over the simulator, with inputs made from a seed and results compared bit by bit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "kernels/int8_block.h"
#include "kernels/reduce.h"
#include "sim/network.h"

namespace simcase {

using namespace optireduce;
using Bytes = std::vector<std::byte>;

inline void put_number(DType dtype, sim::Random& random, std::byte* out) {
  const double value = random.uniform() * 4 - 2;
  const auto single = static_cast<float>(value);
  switch (dtype) {
    case DType::Float32:
      std::memcpy(out, &single, 4);
      break;
    case DType::Float64:
      std::memcpy(out, &value, 8);
      break;
    case DType::BFloat16: {
      std::uint32_t bits;
      std::memcpy(&bits, &single, 4);
      const auto upper = static_cast<std::uint16_t>(bits >> 16);
      std::memcpy(out, &upper, 2);
      break;
    }
    case DType::Float16: {
      const std::uint64_t exponent = 10 + random.below(6);  // about 0.03 to 2
      const auto bits =
          static_cast<std::uint16_t>(random.below(2) << 15 | exponent << 10 | random.below(1024));
      std::memcpy(out, &bits, 2);
      break;
    }
    case DType::Int8Block: {
      std::array<float, kInt8BlockValues> values;
      for (float& each : values) each = static_cast<float>(random.uniform() * 4 - 2);
      int8_encode(values.data(), values.size(), random.below(1 << 30), out);
      break;
    }
  }
}

inline Bytes random_bucket(const Descriptor& descriptor, sim::Random& random) {
  const std::size_t size = size_of(descriptor.dtype);
  Bytes bucket(descriptor.elements * size);
  for (std::size_t i = 0; i < descriptor.elements; ++i)
    put_number(descriptor.dtype, random, bucket.data() + i * size);
  return bucket;
}

/// The sum in rank order, in the plainest way.
template <typename T>
Bytes sum_in_rank_order(const std::vector<Bytes>& inputs, ReduceOp op) {
  Bytes result = inputs[0];
  for (std::size_t at = 0; at < result.size(); at += sizeof(T)) {
    T sum = 0;
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      T value;
      std::memcpy(&value, inputs[rank].data() + at, sizeof(T));
      sum = rank == 0 ? value : sum + value;
    }
    if (op == ReduceOp::Mean) sum = sum / static_cast<T>(inputs.size());
    std::memcpy(result.data() + at, &sum, sizeof(T));
  }
  return result;
}

/// What every rank must have. The 16-bit types trust the kernel, which has its own tests.
inline Bytes expected_of(const Descriptor& descriptor, const std::vector<Bytes>& inputs) {
  if (descriptor.dtype == DType::Float32) return sum_in_rank_order<float>(inputs, descriptor.op);
  if (descriptor.dtype == DType::Float64) return sum_in_rank_order<double>(inputs, descriptor.op);
  std::vector<const std::byte*> pointers;
  for (const Bytes& input : inputs) pointers.push_back(input.data());
  Bytes result(inputs[0].size());
  const double divisor = descriptor.op == ReduceOp::Mean ? static_cast<double>(inputs.size()) : 1.0;
  if (!result.empty()) reduce(descriptor.dtype, pointers, divisor, result.data(), descriptor.elements);
  return result;
}

/// Operations over one network. Buckets are overwritten as soon as their report is there, as their owner may
/// do.
class Case {
 public:
  explicit Case(const sim::SimOptions& options)
      : ranks_(options.ranks), seed_(options.seed), random_(~options.seed), network_(options) {}

  /// Adds an operation; `starts` gives each rank's start (empty: all at once).
  void add(const Descriptor& descriptor, const std::vector<Duration>& starts = {},
           Duration timeout = Duration::millis(60'000)) {
    add_each(std::vector<Descriptor>(ranks_, descriptor), starts, timeout);
  }

  /// The same with each rank's own idea of what is reduced.
  void add_each(const std::vector<Descriptor>& descriptors, const std::vector<Duration>& starts = {},
                Duration timeout = Duration::millis(60'000)) {
    if (operations_.empty()) forget_buckets();
    auto& buckets = buckets_.emplace_back();
    sim::Collective operation;
    operation.timeout = timeout;
    bool agreed = true;
    for (Rank rank = 0; rank < ranks_; ++rank) {
      buckets.push_back(random_bucket(descriptors[rank], random_));
      operation.calls.push_back({descriptors[rank], nullptr, starts.empty() ? Duration{} : starts[rank]});
      agreed = agreed && descriptors[rank] == descriptors[0];
    }
    expected_.push_back(agreed ? expected_of(descriptors[0], buckets) : Bytes{});
    operations_.push_back(std::move(operation));
  }

  /// Runs what was added since the last run.
  const sim::RunResult& run(Duration bound = Duration::millis(120'000)) {
    results_.assign(operations_.size(), std::vector<Bytes>(ranks_));
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      for (Rank rank = 0; rank < ranks_; ++rank) operations_[i].calls[rank].data = buckets_[i][rank].data();
    }
    const auto hook = [this](std::size_t operation, Rank rank, const Report&) {
      Bytes& bucket = buckets_[operation][rank];
      results_[operation][rank] = bucket;
      std::fill(bucket.begin(), bucket.end(), std::byte{0xee});
    };
    result_ = network_.run(operations_, bound, hook);
    operations_.clear();
    last_expected_ = std::exchange(expected_, {});
    return result_;
  }

  /// Frees the buckets of the last run: whoever still reads them is caught by the address sanitizer.
  void forget_buckets() { buckets_.clear(); }

  /// Why the last run was not exact on every rank; empty if it was.
  std::string why_not_exact() const {
    if (!result_.finished)
      return told("not finished after " + std::to_string(result_.elapsed.seconds()) + " s");
    for (std::size_t i = 0; i < last_expected_.size(); ++i) {
      for (Rank rank = 0; rank < ranks_; ++rank) {
        const auto& report = result_.reports[i][rank];
        const std::string place = "operation " + std::to_string(i) + " on rank " + std::to_string(rank);
        if (!report) return told(place + ": no report");
        if (report->error != ErrorCode::None) return told(place + ": " + report->message);
        if (results_[i][rank] != last_expected_[i]) return told(place + ": wrong bits");
      }
    }
    return "";
  }

  sim::Network& network() { return network_; }
  const sim::RunResult& result() const { return result_; }
  const Report& report(std::size_t operation, Rank rank) const {
    return result_.reports[operation][rank].value();
  }

  /// Counters of all ranks together.
  std::uint64_t total(std::uint64_t Stats::* counter) const {
    std::uint64_t sum = 0;
    for (Rank rank = 0; rank < ranks_; ++rank) sum += network_.stats(rank).*counter;
    return sum;
  }

 private:
  std::string told(const std::string& what) const { return "seed " + std::to_string(seed_) + ": " + what; }

  Rank ranks_;
  std::uint64_t seed_;
  sim::Random random_;
  sim::Network network_;
  std::vector<sim::Collective> operations_;
  std::vector<std::vector<Bytes>> buckets_;  // by operation and rank
  std::vector<std::vector<Bytes>> results_;
  std::vector<Bytes> expected_, last_expected_;
  sim::RunResult result_;
};

inline Descriptor floats(std::uint32_t elements, ReduceOp op = ReduceOp::Sum) {
  return {elements, DType::Float32, op};
}

#define CHECK_EXACT(test_case) CHECK_EQ((test_case).why_not_exact(), std::string())

}  // namespace simcase
