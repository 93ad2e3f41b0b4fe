// The portable reduction. The compiler's generic 16-byte vectors become SSE2, NEON or scalar code.
#define OPTIREDUCE_TARGET
#include <bit>
#include <cstdint>

#include "kernels/reduce_loop.h"
#include "kernels/reduce_variants.h"

namespace optireduce {
namespace {

using F32x4 = float __attribute__((vector_size(16)));
using F64x2 = double __attribute__((vector_size(16)));
using U32x4 = std::uint32_t __attribute__((vector_size(16)));

template <class Vector>
Vector read(const std::byte* source) {
  Vector value;
  std::memcpy(&value, source, sizeof value);
  return value;
}

template <class Vector>
void write(std::byte* destination, Vector value) {
  std::memcpy(destination, &value, sizeof value);
}

struct Float32 {
  using Vector = F32x4;
  using Scalar = float;
  static constexpr std::size_t lanes = 4;
  static constexpr std::size_t element_bytes = 4;
  static Vector load(const std::byte* source) { return read<Vector>(source); }
  static void store(std::byte* destination, Vector value) { write(destination, value); }
};

struct Float64 {
  using Vector = F64x2;
  using Scalar = double;
  static constexpr std::size_t lanes = 2;
  static constexpr std::size_t element_bytes = 8;
  static Vector load(const std::byte* source) { return read<Vector>(source); }
  static void store(std::byte* destination, Vector value) { write(destination, value); }
};

/// The sums of eight 16-bit elements, read as four 32-bit words: one element of each word in `low`, one in
/// `high`.
struct Halves {
  F32x4 low;
  F32x4 high;
};

Halves operator+(Halves a, Halves b) {
  return {a.low + b.low, a.high + b.high};
}

Halves operator/(Halves a, float by) {
  return {a.low / by, a.high / by};
}

constexpr std::uint32_t kSignless = 0x7fffffff;
constexpr std::uint32_t kInfinity = 0x7f800000;

/// The upper half of a float32.
struct BFloat16 {
  using Vector = Halves;
  using Scalar = float;
  static constexpr std::size_t lanes = 8;
  static constexpr std::size_t element_bytes = 2;

  static Vector load(const std::byte* source) {
    const auto words = read<U32x4>(source);
    return {std::bit_cast<F32x4>(words << 16), std::bit_cast<F32x4>(words & 0xffff0000)};
  }

  static void store(std::byte* destination, Vector value) {
    write(destination, (round(value.low) >> 16) | (round(value.high) & 0xffff0000));
  }

 private:
  /// The result is in the upper half; the lower one is undefined. Adding just under half a unit, and the last
  /// unit for halves to go to even, carries into the upper half. A NaN stays one: it comes from a bfloat16 or
  /// is the default NaN, so that its lower half is zero and nothing carries.
  static U32x4 round(F32x4 value) {
    const auto bits = std::bit_cast<U32x4>(value);
    return bits + 0x7fff + ((bits >> 16) & 1);
  }
};

/// IEEE half precision: 5 bits of exponent (bias 15), 10 of mantissa. Its subnormals never pass through a
/// subnormal float32, so that they survive in a thread that flushes those to zero.
struct Float16 {
  using Vector = Halves;
  using Scalar = float;
  static constexpr std::size_t lanes = 8;
  static constexpr std::size_t element_bytes = 2;

  static Vector load(const std::byte* source) {
    const auto words = read<U32x4>(source);
    return {widen(words & 0xffff), widen(words >> 16)};
  }

  static void store(std::byte* destination, Vector value) {
    write(destination, narrow(value.low) | (narrow(value.high) << 16));
  }

 private:
  static F32x4 widen(U32x4 bits) {
    const U32x4 magnitude = bits & 0x7fff;
    // 0.5 with the half's mantissa in its last bits, less 0.5: the mantissa in units of 2^-24, exactly.
    const auto subnormal = std::bit_cast<U32x4>(std::bit_cast<F32x4>(magnitude | kOneHalf) - 0.5F);
    const U32x4 normal = (magnitude << 13) + ((127 - 15) << 23);
    const U32x4 special = (magnitude << 13) | kInfinity;
    const U32x4 finite = magnitude < kSmallestNormal ? subnormal : normal;
    const U32x4 value = magnitude >= kHalfInfinity ? special : finite;
    return std::bit_cast<F32x4>(value | ((bits & 0x8000) << 16));
  }

  static U32x4 narrow(F32x4 value) {
    const auto bits = std::bit_cast<U32x4>(value);
    const U32x4 magnitude = bits & kSignless;
    // The addition rounds to a multiple of 2^-24, the unit of the subnormals.
    const U32x4 subnormal = std::bit_cast<U32x4>(std::bit_cast<F32x4>(magnitude) + 0.5F) - kOneHalf;
    // As for bfloat16; what rounds up past 65504 carries into the exponent and is infinity.
    const U32x4 normal = (magnitude - ((127 - 15) << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    const U32x4 finite = magnitude < kSmallestNormalAsFloat ? subnormal : normal;
    const U32x4 quiet_nan = ((magnitude >> 13) & 0x1ff) | 0x7e00;
    const U32x4 overflow = magnitude > kInfinity ? quiet_nan : U32x4{} + kHalfInfinity;
    const U32x4 half = magnitude >= kTooLargeAsFloat ? overflow : finite;
    return half | ((bits >> 16) & 0x8000);
  }

  static constexpr std::uint32_t kOneHalf = 126U << 23;  // 0.5 as float32
  static constexpr std::uint32_t kSmallestNormal = 0x0400;
  static constexpr std::uint32_t kHalfInfinity = 0x7c00;
  static constexpr std::uint32_t kSmallestNormalAsFloat = (127 - 14) << 23;  // 2^-14
  static constexpr std::uint32_t kTooLargeAsFloat = (127 + 16) << 23;        // 2^16
};

}  // namespace

void reduce_plain(DType dtype, std::span<const std::byte* const> inputs, double divisor, std::byte* out,
                  std::size_t elements) {
  reduce_with<Float32, Float64, BFloat16, Float16>(dtype, inputs, divisor, out, elements);
}

}  // namespace optireduce
