// The portable transform. The compiler's generic 16-byte vectors become SSE2, NEON or scalar code.
#define OPTIREDUCE_TARGET
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/hadamard_loop.h"
#include "kernels/hadamard_variants.h"

namespace optireduce {
namespace {

using F32x4 = float __attribute__((vector_size(16)));
using U32x4 = std::uint32_t __attribute__((vector_size(16)));
using U16x4 = std::uint16_t __attribute__((vector_size(8)));

template <class Vector>
Vector read(const void* source) {
  Vector value;
  std::memcpy(&value, source, sizeof value);
  return value;
}

template <class Vector>
void write(void* destination, Vector value) {
  std::memcpy(destination, &value, sizeof value);
}

/// The first, or the second, two of each, taking turns.
F32x4 zip_low(F32x4 a, F32x4 b) {
  return F32x4{a[0], b[0], a[1], b[1]};
}
F32x4 zip_high(F32x4 a, F32x4 b) {
  return F32x4{a[2], b[2], a[3], b[3]};
}

struct F32x8 {
  F32x4 low;
  F32x4 high;
};
F32x8 operator+(F32x8 a, F32x8 b) {
  return {a.low + b.low, a.high + b.high};
}
F32x8 operator-(F32x8 a, F32x8 b) {
  return {a.low - b.low, a.high - b.high};
}
F32x8 operator*(F32x8 a, F32x8 b) {
  return {a.low * b.low, a.high * b.high};
}

void transpose4(F32x4& a, F32x4& b, F32x4& c, F32x4& d) {
  const F32x4 ac_low = zip_low(a, c), ac_high = zip_high(a, c);
  const F32x4 bd_low = zip_low(b, d), bd_high = zip_high(b, d);
  a = zip_low(ac_low, bd_low);
  b = zip_high(ac_low, bd_low);
  c = zip_low(ac_high, bd_high);
  d = zip_high(ac_high, bd_high);
}

struct Plain {
  using Vector = F32x8;
  using Signs = U32x4;

  static Vector load(const float* source) { return {read<F32x4>(source), read<F32x4>(source + 4)}; }
  static void store(float* destination, Vector value) {
    write(destination, value.low);
    write(destination + 4, value.high);
  }
  static void stream(float* destination, Vector value) { store(destination, value); }
  static Vector broadcast(float value) { return {F32x4{} + value, F32x4{} + value}; }

  /// Exchanges the 4x4 quarters, then transposes each.
  static void transpose(Vector (&x)[kLanes]) {
    for (std::size_t i = 0; i < 4; ++i) std::swap(x[i].high, x[i + 4].low);
    for (std::size_t i = 0; i < kLanes; i += 4) {
      transpose4(x[i].low, x[i + 1].low, x[i + 2].low, x[i + 3].low);
      transpose4(x[i].high, x[i + 1].high, x[i + 2].high, x[i + 3].high);
    }
  }

  static Signs signs(std::uint64_t low, std::uint64_t high) {
    const std::uint64_t words[] = {low, high};
    return read<U32x4>(words);
  }
  static Vector flip(Vector value, Signs signs, std::size_t shift) {
    const auto bits = signs << static_cast<std::uint32_t>(shift);
    return {flip4(value.low, bits), flip4(value.high, bits << 1)};
  }

 private:
  static F32x4 flip4(F32x4 value, U32x4 bits) {
    return std::bit_cast<F32x4>(std::bit_cast<U32x4>(value) ^ (bits & 0x8000'0000));
  }
};

constexpr std::uint32_t kSignless = 0x7fffffff;
constexpr std::uint32_t kInfinity = 0x7f800000;

/// 16-bit values, converted four at a time by Half.
template <class Half>
struct Halves {
  static constexpr std::size_t element_bytes = 2;
  static F32x8 load(const std::byte* source) { return {load4(source), load4(source + 8)}; }
  static void store(std::byte* destination, F32x8 value) {
    store4(destination, value.low);
    store4(destination + 8, value.high);
  }
  static void stream(std::byte* destination, F32x8 value) { store(destination, value); }

 private:
  static F32x4 load4(const std::byte* source) {
    return Half::widen(__builtin_convertvector(read<U16x4>(source), U32x4));
  }
  static void store4(std::byte* destination, F32x4 value) {
    write(destination, __builtin_convertvector(Half::narrow(value), U16x4));
  }
};

struct Float32 {
  static constexpr std::size_t element_bytes = 4;
  static F32x8 load(const std::byte* source) { return {read<F32x4>(source), read<F32x4>(source + 16)}; }
  static void store(std::byte* destination, F32x8 value) {
    write(destination, value.low);
    write(destination + 16, value.high);
  }
  static void stream(std::byte* destination, F32x8 value) { store(destination, value); }
};

/// The upper half of a float32.
struct BFloat16 {
  static F32x4 widen(U32x4 bits) { return std::bit_cast<F32x4>(bits << 16); }

  /// Adding just under half a unit, and the last unit for halves to go to even, carries into the upper half.
  /// In a NaN that could carry into the sign: it is cut off instead, with a bit set that keeps it a NaN.
  static U32x4 narrow(F32x4 value) {
    const auto bits = std::bit_cast<U32x4>(value);
    const U32x4 rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const U32x4 quiet_nan = bits | 0x400000;
    return ((bits & kSignless) > kInfinity ? quiet_nan : rounded) >> 16;
  }
};

/// IEEE half precision: 5 bits of exponent (bias 15), 10 of mantissa. Its subnormals never pass through a
/// subnormal float32, so that they survive in a thread that flushes those to zero.
struct Float16 {
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

 private:
  static constexpr std::uint32_t kOneHalf = 126U << 23;  // 0.5 as float32
  static constexpr std::uint32_t kSmallestNormal = 0x0400;
  static constexpr std::uint32_t kHalfInfinity = 0x7c00;
  static constexpr std::uint32_t kSmallestNormalAsFloat = (127 - 14) << 23;  // 2^-14
  static constexpr std::uint32_t kTooLargeAsFloat = (127 + 16) << 23;        // 2^16
};

}  // namespace

const HadamardVariant hadamard_plain = {&encode_with<Plain, Float32, Halves<BFloat16>, Halves<Float16>>,
                                        &decode_with<Plain, Float32, Halves<BFloat16>, Halves<Float16>>};

}  // namespace optireduce
