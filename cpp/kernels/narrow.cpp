// Picks the fastest implementation that this CPU can run, once.
#include <cstring>

#include "kernels/bfloat16.h"
#include "kernels/int8_block.h"
#include "kernels/narrow_variants.h"

namespace optireduce {
namespace {

constexpr std::uint16_t kFullExponent = 0x7f80u;

const NarrowVariant& variant() {
  static const NarrowVariant* const avx2 = find_narrow_avx2();
  static const NarrowVariant& chosen = avx2 != nullptr ? *avx2 : narrow_plain();
  return chosen;
}

}  // namespace

void int8_encode(const float* values, std::size_t count, std::uint64_t seed, std::byte* blocks) {
  variant().int8_encode(values, count, seed, blocks);
}

void int8_decode(const std::byte* blocks, std::size_t count, float* values) {
  variant().int8_decode(blocks, count, values);
}

void int8_reduce(std::span<const std::byte* const> inputs, double divisor, std::byte* out,
                 std::size_t blocks) {
  if (inputs.size() == 1 && divisor == 1.0) {
    std::memmove(out, inputs[0], blocks * kInt8BlockBytes);
    return;
  }
  variant().int8_reduce(inputs, static_cast<float>(divisor), out, blocks);
}

void int8_reduce_onto(float* own, std::size_t count, std::span<const std::byte* const> inputs, double divisor,
                      std::byte* blocks) {
  variant().int8_reduce_onto(own, count, inputs, static_cast<float>(divisor), blocks);
}

void bfloat16_encode(const float* values, std::size_t count, std::byte* halves) {
  variant().bfloat16_encode(values, count, halves);
}

void bfloat16_decode(const std::byte* halves, std::size_t count, float* values) {
  variant().bfloat16_decode(halves, count, values);
}

void bfloat16_reduce_onto(float* own, std::size_t count, std::span<const std::byte* const> inputs,
                          double divisor, std::byte* halves) {
  variant().bfloat16_reduce_onto(own, count, inputs, static_cast<float>(divisor), halves);
}

bool int8_all_finite(const std::byte* blocks, std::size_t count) {
  for (std::size_t block = 0; block < count; ++block) {
    std::uint16_t scale;
    std::memcpy(&scale, blocks + block * kInt8BlockBytes, sizeof scale);
    if ((scale & kFullExponent) == kFullExponent) return false;
  }
  return true;
}

}  // namespace optireduce
