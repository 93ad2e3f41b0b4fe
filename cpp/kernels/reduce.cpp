// Picks the fastest implementation that this CPU can run, once.
#include "kernels/reduce.h"

#include "kernels/int8_block.h"
#include "kernels/reduce_variants.h"

namespace optireduce {
namespace {

#if defined(__aarch64__) || defined(__ARM_NEON)
constexpr const char* kPlainName = "neon";
#else
constexpr const char* kPlainName = "plain";
#endif

struct Choice {
  const char* name;
  ReduceVariant reduce;
};

Choice choose() {
  if (const ReduceVariant avx2 = find_reduce_avx2()) return {"avx2", avx2};
  return {kPlainName, &reduce_plain};
}

const Choice& choice() {
  static const Choice chosen = choose();
  return chosen;
}

}  // namespace

void reduce(DType dtype, std::span<const std::byte* const> inputs, double divisor, std::byte* out,
            std::size_t elements) {
  if (dtype == DType::Int8Block) {
    int8_reduce(inputs, divisor, out, elements);
    return;
  }
  choice().reduce(dtype, inputs, divisor, out, elements);
}

const char* simd_level() {
  return choice().name;
}

}  // namespace optireduce
