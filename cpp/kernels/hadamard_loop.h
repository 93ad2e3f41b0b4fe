// The transform, written once for all instruction sets, so that every one adds in the same order.
//
// A group of 16 blocks at a time goes through a tile that fits the L2 cache. A block of 1024 is 128 vectors
// of 8 floats. While a block is loaded, runs of 16 neighbouring vectors are transformed in registers, then
// vectors that are 16 apart. Strides below one vector are left for the way to the wire, where 8 floats of 8
// blocks are transposed anyway and are strides of whole vectors then. Decoding is the same backwards.
//
// A .cpp for an instruction set defines OPTIREDUCE_TARGET (the function attribute that enables it) before
// including this file, and then calls encode_with<> and decode_with<> with
// - a type Simd: Vector, 8 floats with + - *; load, store, stream (past the cache, to an aligned address),
//   broadcast, transpose of 8 vectors; signs (made of two words) and flip;
// - a format type for each dtype: element_bytes; load, store and stream of 8 elements.
// Everything here has internal linkage: code for one instruction set must never be linked for another's.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "kernels/dtype.h"
#include "kernels/hadamard.h"
#include "kernels/hadamard_variants.h"
#include "kernels/reduce.h"

namespace optireduce {
namespace {

constexpr std::size_t kLanes = 8;
constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kLineFloats = kLineBytes / sizeof(float);
/// Vectors in registers at a time: as many as x86 has.
constexpr std::size_t kMostRadix = 16;
/// Buffers from this size on are written past the cache, which would not hold them until they are read.
constexpr std::size_t kStreamBytes = 8 << 20;
static_assert(kHadamardGroup == kLineFloats && kLineFloats == 2 * kLanes);

// ---- Signs

/// splitmix64 (Steele, Lea, Flood 2014), from any number of its sequence on.
class SignWords {
 public:
  explicit SignWords(std::uint64_t seed) : start_(mix(seed)) {}
  std::uint64_t operator[](std::uint64_t index) const { return mix(start_ + index * 0x9e37'79b9'7f4a'7c15u); }

 private:
  static std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9u;
    z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t start_;
};

/// One draw serves kMostRadix vectors: two words of 64 bits, seen as four of 32 in memory order. Value i has
/// bit 31 - i / 4 of word i % 4, so that a shift to the left moves on to the next values.
constexpr std::size_t kDrawWords = 2;
constexpr std::size_t kShiftPerVector = kLanes / 4;

/// The sums and differences of all strides below `count`, unrolled to stay in registers.
template <std::size_t count, class Vector>
OPTIREDUCE_TARGET inline void transform(Vector* x) {
  if constexpr (count > 1) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < count / 2; ++i) {
      const Vector sum = x[i] + x[i + count / 2];
      x[i + count / 2] = x[i] - x[i + count / 2];
      x[i] = sum;
    }
    transform<count / 2>(x);
    transform<count / 2>(x + count / 2);
  }
}

// ---- Passes over one block in the tile, which is a row of it

/// From the user's memory: signs, and the strides of up to `radix` vectors.
template <class Simd, class Format, std::size_t radix>
OPTIREDUCE_TARGET void load_pass(const std::byte* in, std::size_t vectors, const SignWords& words,
                                 std::uint64_t first_word, float scale, float* row) {
  constexpr std::size_t kStep = kLanes * Format::element_bytes;
  const auto factor = Simd::broadcast(scale);
  for (std::size_t v = 0; v < vectors; v += radix, first_word += kDrawWords, in += radix * kStep) {
    // The next block: the hardware does not look beyond a page.
    for (std::size_t i = 0; i < radix * kStep; i += kLineBytes) __builtin_prefetch(in + vectors * kStep + i);
    const auto signs = Simd::signs(words[first_word], words[first_word + 1]);
    typename Simd::Vector x[radix];
#pragma GCC unroll 16
    for (std::size_t k = 0; k < radix; ++k) {
      x[k] = Simd::flip(Format::load(in + k * kStep) * factor, signs, k * kShiftPerVector);
    }
    transform<radix>(x);
#pragma GCC unroll 16
    for (std::size_t k = 0; k < radix; ++k) Simd::store(row + (v + k) * kLanes, x[k]);
  }
}

/// The strides from `stride` vectors up to `radix` times as many.
template <class Simd, std::size_t radix>
OPTIREDUCE_TARGET void middle_pass(float* row, std::size_t vectors, std::size_t stride) {
  for (std::size_t begin = 0; begin < vectors; begin += radix * stride) {
    for (std::size_t v = begin; v < begin + stride; ++v) {
      typename Simd::Vector x[radix];
#pragma GCC unroll 16
      for (std::size_t k = 0; k < radix; ++k) x[k] = Simd::load(row + (v + k * stride) * kLanes);
      transform<radix>(x);
#pragma GCC unroll 16
      for (std::size_t k = 0; k < radix; ++k) Simd::store(row + (v + k * stride) * kLanes, x[k]);
    }
  }
}

/// How memory is written: past the cache, through it, or only parts of lines, one by one.
enum class Access { Stream, Cached, Part };

/// The inverse of load_pass. What it writes is never longer than what it has read: `out` may be the row.
template <class Simd, class Format, Access access, std::size_t radix>
OPTIREDUCE_TARGET void store_pass(const float* row, std::size_t vectors, const SignWords& words,
                                  std::uint64_t first_word, std::byte* out) {
  constexpr std::size_t kStep = kLanes * Format::element_bytes;
  for (std::size_t v = 0; v < vectors; v += radix, first_word += kDrawWords, out += radix * kStep) {
    const auto signs = Simd::signs(words[first_word], words[first_word + 1]);
    typename Simd::Vector x[radix];
#pragma GCC unroll 16
    for (std::size_t k = 0; k < radix; ++k) x[k] = Simd::load(row + (v + k) * kLanes);
    transform<radix>(x);
#pragma GCC unroll 16
    for (std::size_t k = 0; k < radix; ++k) {
      const auto value = Simd::flip(x[k], signs, k * kShiftPerVector);
      if constexpr (access == Access::Stream) {
        Format::stream(out + k * kStep, value);
      } else {
        Format::store(out + k * kStep, value);
      }
    }
  }
}

/// table[n] takes 2^n vectors at a time.
template <class Simd, class Format>
constexpr std::array kLoadPasses = {&load_pass<Simd, Format, 1>, &load_pass<Simd, Format, 2>,
                                    &load_pass<Simd, Format, 4>, &load_pass<Simd, Format, 8>,
                                    &load_pass<Simd, Format, 16>};
template <class Simd>
constexpr std::array kMiddlePasses = {&middle_pass<Simd, 1>, &middle_pass<Simd, 2>, &middle_pass<Simd, 4>,
                                      &middle_pass<Simd, 8>, &middle_pass<Simd, 16>};
template <class Simd, class Format, Access access>
constexpr std::array kStorePasses = {
    &store_pass<Simd, Format, access, 1>, &store_pass<Simd, Format, access, 2>,
    &store_pass<Simd, Format, access, 4>, &store_pass<Simd, Format, access, 8>,
    &store_pass<Simd, Format, access, 16>};

constexpr std::size_t log2_of(std::size_t power) {
  return static_cast<std::size_t>(std::countr_zero(power));
}

/// All strides from kMostRadix vectors on, in as few passes as possible.
template <class Simd>
void middle_passes(float* row, std::size_t vectors) {
  for (std::size_t stride = kMostRadix; stride < vectors; stride *= kMostRadix) {
    kMiddlePasses<Simd>[log2_of(std::min(kMostRadix, vectors / stride))](row, vectors, stride);
  }
}

// ---- The tile: a row for each block of a group, and one to pad the last block in

class Tile {
 public:
  explicit Tile(std::size_t block)
      : row_lines_((block + kLineFloats - 1) / kLineFloats + 1),
        lines_(std::make_unique_for_overwrite<Line[]>((kHadamardGroup + 1) * row_lines_)) {}

  float* row(std::size_t index) { return lines_[index * row_lines_].floats; }
  /// One line more than the block, lest a column of the tile shares a set of the L1 cache.
  std::size_t row_floats() const { return row_lines_ * kLineFloats; }

 private:
  struct alignas(kLineBytes) Line {
    float floats[kLineFloats];
  };
  std::size_t row_lines_;
  std::unique_ptr<Line[]> lines_;
};

// ---- Between the tile and the wire, with the strides inside a vector. Of each coefficient there are `count`
// floats, one line; fewer with Access::Part.

template <class Simd, Access access>
OPTIREDUCE_TARGET void scatter(const float* tile, std::size_t row_floats, std::size_t block, float* out,
                               std::size_t stride, std::size_t count) {
  for (std::size_t j = 0; j < block; j += kLanes) {
    typename Simd::Vector x[2][kLanes];
#pragma GCC unroll 2
    for (std::size_t half = 0; half < 2; ++half) {
#pragma GCC unroll 8
      for (std::size_t i = 0; i < kLanes; ++i) {
        x[half][i] = Simd::load(tile + (half * kLanes + i) * row_floats + j);
      }
      Simd::transpose(x[half]);
      transform<kLanes>(x[half]);
    }
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kLanes; ++k) {
      float* const line = out + (j + k) * stride;
      if constexpr (access == Access::Stream) {
        Simd::stream(line, x[0][k]);
        Simd::stream(line + kLanes, x[1][k]);
      } else if constexpr (access == Access::Cached) {
        Simd::store(line, x[0][k]);
        Simd::store(line + kLanes, x[1][k]);
      } else {
        float part[kLineFloats];
        Simd::store(part, x[0][k]);
        Simd::store(part + kLanes, x[1][k]);
        std::memcpy(line, part, count * sizeof(float));
      }
    }
  }
}

template <class Simd, Access access>
OPTIREDUCE_TARGET void gather(const float* in, std::size_t stride, std::size_t count, const float* scales,
                              float* tile, std::size_t row_floats, std::size_t block) {
  for (std::size_t j = 0; j < block; j += kLanes) {
    for (std::size_t half = 0; half < 2; ++half) {
      const auto scale = Simd::load(scales + half * kLanes);
      typename Simd::Vector x[kLanes];
#pragma GCC unroll 8
      for (std::size_t k = 0; k < kLanes; ++k) {
        const float* const line = in + (j + k) * stride;
        if constexpr (access == Access::Cached) {
          x[k] = Simd::load(line + half * kLanes) * scale;
          // The next group's line. The hardware foresees nothing here, where each line is in another page.
          // The last float, because the first may be in a line that this group has read.
          if (half == 0) __builtin_prefetch(line + 2 * kLineFloats - 1);
        } else {
          float part[kLineFloats] = {};
          std::memcpy(part, line, count * sizeof(float));
          x[k] = Simd::load(part + half * kLanes) * scale;
        }
      }
      transform<kLanes>(x);
      Simd::transpose(x);
#pragma GCC unroll 8
      for (std::size_t i = 0; i < kLanes; ++i) {
        Simd::store(tile + (half * kLanes + i) * row_floats + j, x[i]);
      }
    }
  }
}

// ---- Whole buffers

std::size_t bytes_into_line(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kLineBytes;
}

/// With so many blocks in the first group, the others start at a line.
std::size_t blocks_before_line(const float* out) {
  return kHadamardGroup - bytes_into_line(out) / sizeof(float);
}

/// Encodes or decodes one buffer.
template <class Simd, class Format>
class Codec {
 public:
  Codec(const HadamardLayout& layout, std::uint64_t seed)
      : layout_(layout),
        words_(seed),
        vectors_(layout.block / kLanes),
        radix_(std::min(kMostRadix, vectors_)),
        streams_(layout.encoded_elements() * sizeof(float) >= kStreamBytes),
        tile_(layout.block) {}

  void encode(const std::byte* in, float* out) {
    std::size_t group = blocks_before_line(out);
    for (std::size_t first = 0; first < layout_.stride; first += group, group = kHadamardGroup) {
      group = std::min(group, layout_.stride - first);
      for (std::size_t i = 0; i < kHadamardGroup; ++i) load_block(in, first + i, tile_.row(i));
      scatter_group(out + first, group);
    }
    if (streams_) finish_streaming();
  }

  void decode(const float* in, const float* scales, std::byte* out) {
    for (std::size_t first = 0; first < layout_.blocks(); first += kHadamardGroup) {
      gather_group(in + first, layout_.stride - first, scales + first);
      const std::size_t blocks = std::min(kHadamardGroup, layout_.blocks() - first);
      for (std::size_t i = 0; i < blocks; ++i) store_block(first + i, tile_.row(i), out);
    }
    if (streams_) finish_streaming();
  }

 private:
  std::size_t block_bytes() const { return layout_.block * Format::element_bytes; }

  std::size_t bytes_of(std::size_t block) const {
    const std::size_t first = std::min(layout_.elements, block * layout_.block);
    return std::min<std::size_t>(layout_.block, layout_.elements - first) * Format::element_bytes;
  }

  /// Radices are 1 to 16; said so, because a compiler that checks bounds does not know that.
  std::size_t radix_index() const { return std::min(log2_of(radix_), log2_of(kMostRadix)); }

  std::uint64_t first_word(std::size_t block) const { return block * (vectors_ / radix_) * kDrawWords; }

  void load_block(const std::byte* in, std::size_t block, float* row) {
    const std::size_t bytes = bytes_of(block);
    if (bytes == 0) {
      std::memset(row, 0, layout_.block * sizeof(float));
      return;
    }
    in += block * block_bytes();
    if (bytes < block_bytes()) in = pad(in, bytes);
    const float orthonormal = 1.0F / std::sqrt(static_cast<float>(layout_.block));
    kLoadPasses<Simd, Format>[radix_index()](in, vectors_, words_, first_word(block), orthonormal, row);
    middle_passes<Simd>(row, vectors_);
  }

  const std::byte* pad(const std::byte* in, std::size_t bytes) {
    auto* const padded = reinterpret_cast<std::byte*>(tile_.row(kHadamardGroup));
    std::memcpy(padded, in, bytes);
    std::memset(padded + bytes, 0, block_bytes() - bytes);
    return padded;
  }

  void scatter_group(float* out, std::size_t columns) {
    const float* const tile = tile_.row(0);
    const std::size_t row_floats = tile_.row_floats(), block = layout_.block, stride = layout_.stride;
    if (columns < kLineFloats) {
      scatter<Simd, Access::Part>(tile, row_floats, block, out, stride, columns);
    } else if (streams_ && bytes_into_line(out) == 0 && stride % kLineFloats == 0) {
      scatter<Simd, Access::Stream>(tile, row_floats, block, out, stride, kLineFloats);
    } else {
      scatter<Simd, Access::Cached>(tile, row_floats, block, out, stride, kLineFloats);
    }
  }

  void gather_group(const float* in, std::size_t columns, const float* scales) {
    const auto gather_columns =
        columns < kLineFloats ? &gather<Simd, Access::Part> : &gather<Simd, Access::Cached>;
    gather_columns(in, layout_.stride, columns, scales, tile_.row(0), tile_.row_floats(), layout_.block);
  }

  void store_block(std::size_t block, float* row, std::byte* out) {
    middle_passes<Simd>(row, vectors_);
    out += block * block_bytes();
    const std::size_t bytes = bytes_of(block);
    if (streams_ && bytes_into_line(out) == 0 && bytes == block_bytes()) {
      kStorePasses<Simd, Format, Access::Stream>[radix_index()](row, vectors_, words_, first_word(block),
                                                                out);
      return;
    }
    auto* const values = reinterpret_cast<std::byte*>(row);
    kStorePasses<Simd, Format, Access::Cached>[radix_index()](row, vectors_, words_, first_word(block),
                                                              values);
    if (streams_) {
      copy_streaming(out, values, bytes);
    } else {
      std::memcpy(out, values, bytes);
    }
  }

  HadamardLayout layout_;
  SignWords words_;
  std::size_t vectors_;
  std::size_t radix_;
  bool streams_;
  Tile tile_;
};

/// Others are refused before.
template <class Simd, class Float32, class BFloat16, class Float16>
void encode_with(DType dtype, const std::byte* in, const HadamardLayout& layout, std::uint64_t seed,
                 float* out) {
  switch (dtype) {
    case DType::Float32:
      return Codec<Simd, Float32>(layout, seed).encode(in, out);
    case DType::BFloat16:
      return Codec<Simd, BFloat16>(layout, seed).encode(in, out);
    case DType::Float16:
      return Codec<Simd, Float16>(layout, seed).encode(in, out);
    case DType::Float64:
    case DType::Int8Block:
      return;
  }
}

template <class Simd, class Float32, class BFloat16, class Float16>
void decode_with(DType dtype, const float* in, const HadamardLayout& layout, std::uint64_t seed,
                 const float* scales, std::byte* out) {
  switch (dtype) {
    case DType::Float32:
      return Codec<Simd, Float32>(layout, seed).decode(in, scales, out);
    case DType::BFloat16:
      return Codec<Simd, BFloat16>(layout, seed).decode(in, scales, out);
    case DType::Float16:
      return Codec<Simd, Float16>(layout, seed).decode(in, scales, out);
    case DType::Float64:
    case DType::Int8Block:
      return;
  }
}

}  // namespace
}  // namespace optireduce
