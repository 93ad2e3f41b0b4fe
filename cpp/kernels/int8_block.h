// Float32 values in about a quarter of their size: blocks of one cache line with 62 numbers of 8 bits and
// their common scale, a bfloat16. A block is an element of DType::Int8Block: packets and shards hold whole
// blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace optireduce {

constexpr std::size_t kInt8BlockBytes = 64;
constexpr std::size_t kInt8BlockValues = 62;

/// Blocks that hold so many values; what the last one has too many are zeros.
constexpr std::size_t int8_blocks(std::size_t values) {
  return (values + kInt8BlockValues - 1) / kInt8BlockValues;
}

/// Rounds every value up or down at random, so that it is right on average; the same seed gives the same bits
/// on every machine. A block whose values are all below 2^-100 becomes one of zeros. A block with an
/// infinity or a NaN becomes one of NaNs.
void int8_encode(const float* values, std::size_t count, std::uint64_t seed, std::byte* blocks);

void int8_decode(const std::byte* blocks, std::size_t count, float* values);

/// out = (inputs[0] + inputs[1] + ...) / divisor, added in float32 in that order, and rounded once, at random
/// as int8_encode does with a seed that follows from the inputs. One input and a divisor of 1 is a copy.
/// `out` may be one of the inputs.
void int8_reduce(std::span<const std::byte* const> inputs, double divisor, std::byte* out,
                 std::size_t blocks);

/// blocks = own = (own + inputs[0] + inputs[1] + ...) / divisor, added in float32 in that order and rounded
/// once, at random with a seed that follows from the sums: `own` ends with what the blocks stand for. There
/// may be no inputs.
void int8_reduce_onto(float* own, std::size_t count, std::span<const std::byte* const> inputs, double divisor,
                      std::byte* blocks);

/// Whether no block stands for NaNs.
bool int8_all_finite(const std::byte* blocks, std::size_t count);

}  // namespace optireduce
