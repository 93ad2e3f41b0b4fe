// Runs everywhere: what the compiler makes of the loops for this machine's common instruction set.
#define OPTIREDUCE_TARGET
#include "kernels/narrow_lanes.h"

namespace optireduce {
namespace {

inline void store_numbers(const Whole& numbers, std::int8_t* out) {
  for (std::size_t i = 0; i < kPadded; ++i)
    out[i] = static_cast<std::int8_t>(numbers[i / kLanes][i % kLanes]);
}

inline void load_numbers(const std::int8_t* source, I32x8& numbers) {
  for (std::size_t lane = 0; lane < kLanes; ++lane) numbers[lane] = source[lane];
}

}  // namespace
}  // namespace optireduce

#include "kernels/narrow_loop.h"

namespace optireduce {

const NarrowVariant& narrow_plain() {
  return kVariant;
}

}  // namespace optireduce
