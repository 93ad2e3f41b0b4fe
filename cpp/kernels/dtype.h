// The element types and reductions that the all-reduce understands. Values are wire values: never renumber.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/int8_block.h"

namespace optireduce {

/// Int8Block: 62 values in 64 bytes (kernels/int8_block.h); an element is a block.
enum class DType : std::uint8_t {
  Float32 = 0,
  Float64 = 1,
  BFloat16 = 2,
  Float16 = 3,
  Int8Block = 4,
  Last = Int8Block
};
/// Gather adds nothing: every rank's own part of the buffer goes to all others. WeightedMean divides each
/// packet by the weights of the contributions in it; excluded contributions are kept together with their
/// weights.
enum class ReduceOp : std::uint8_t { Sum = 0, Mean = 1, Gather = 2, WeightedMean = 3, Last = WeightedMean };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::Float32:
      return 4;
    case DType::Float64:
      return 8;
    case DType::BFloat16:
    case DType::Float16:
      return 2;
    case DType::Int8Block:
      return kInt8BlockBytes;
  }
  return 0;
}

constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::Float32:
      return "float32";
    case DType::Float64:
      return "float64";
    case DType::BFloat16:
      return "bfloat16";
    case DType::Float16:
      return "float16";
    case DType::Int8Block:
      return "int8 blocks";
  }
  return "unknown";
}

constexpr const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
      return "sum";
    case ReduceOp::Mean:
      return "mean";
    case ReduceOp::Gather:
      return "gather";
    case ReduceOp::WeightedMean:
      return "weighted mean";
  }
  return "unknown";
}

}  // namespace optireduce
