// Runs everywhere: what the compiler makes of the loops for this machine's common instruction set.
#include <algorithm>

#define OPTIREDUCE_TARGET
#include "kernels/narrow_lanes.h"

namespace optireduce {
namespace {

inline void store_numbers(const Whole& numbers, std::byte* out) {
  for (std::size_t i = 0; i < kPadded; ++i)
    out[i] = static_cast<std::byte>(std::clamp(numbers[i / kLanes][i % kLanes], -128, 127));
}

inline void load_numbers(const std::byte* source, I32x8& numbers) {
  for (std::size_t lane = 0; lane < kLanes; ++lane) numbers[lane] = static_cast<std::int8_t>(source[lane]);
}

inline void widen_some(const U16x8& halves, F32x8& values) {
  values = (F32x8)(__builtin_convertvector(halves, U32x8) << 16);
}

inline void largest_of_rows(const Rows& rows, U32x8& largest) {
  for (std::size_t row = 0; row < kLanes; ++row) {
    largest[row] = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane) largest[row] = std::max(largest[row], rows[row][lane]);
  }
}

}  // namespace
}  // namespace optireduce

#include "kernels/narrow_loop.h"

namespace optireduce {

const NarrowVariant& narrow_plain() {
  return kVariant;
}

}  // namespace optireduce
