// The reduction loop, written once for all instruction sets, so that every one adds in the same order.
//
// A .cpp for an instruction set defines OPTIREDUCE_TARGET (the function attribute that enables it) before
// including this file, and then calls reduce_with<> with a format type for each dtype, which has:
// - Vector, lanes: unfinished sums (float or double, in any lane order) with + and /, and how many they are;
// - Scalar: what a Vector is divided by;
// - element_bytes: the size of one element in memory;
// - load, store: `lanes` elements from and to any address.
// Everything here has internal linkage: code for one instruction set must never be linked for another's.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "kernels/dtype.h"

namespace optireduce {
namespace {

/// Inputs added in one pass. Eight pointers, the output and the index still fit x86's 16 registers.
constexpr std::size_t kFusedInputs = 8;
/// Unfinished sums of one tile when there are more inputs: a quarter of a 32 KiB L1 cache.
constexpr std::size_t kTileBytes = 8192;

template <class Format>
constexpr std::size_t kTileVectors = kTileBytes / sizeof(typename Format::Vector);

/// What a pass adds: all inputs, or of many the first (into a tile), some more (onto it), the last (to out).
enum class Pass { All, First, Middle, Last };

/// The first `count` lanes from memory, zero in the others.
template <class Format>
OPTIREDUCE_TARGET inline typename Format::Vector load_some(const std::byte* source, std::size_t count) {
  std::array<std::byte, Format::lanes * Format::element_bytes> padded{};
  std::memcpy(padded.data(), source, count * Format::element_bytes);
  return Format::load(padded.data());
}

template <class Format>
OPTIREDUCE_TARGET inline void store_some(std::byte* destination, typename Format::Vector sum,
                                         std::size_t count) {
  std::array<std::byte, Format::lanes * Format::element_bytes> padded;
  Format::store(padded.data(), sum);
  std::memcpy(destination, padded.data(), count * Format::element_bytes);
}

/// Adds N inputs, vector by vector. A vector of `out` is written after that of every input is read.
template <class Format, Pass pass, std::size_t N>
OPTIREDUCE_TARGET void fuse(const std::byte* const* inputs, double divisor, std::byte* out,
                            std::size_t elements, typename Format::Vector* tile) {
  constexpr bool kContinues = pass == Pass::Middle || pass == Pass::Last;
  constexpr bool kFinishes = pass == Pass::All || pass == Pass::Last;
  constexpr std::size_t kStep = Format::lanes * Format::element_bytes;
  std::array<const std::byte*, N> input;
  std::copy_n(inputs, N, input.begin());
  const bool divides = divisor != 1.0;
  const auto by = static_cast<typename Format::Scalar>(divisor);

  const std::size_t vectors = elements / Format::lanes;
  for (std::size_t i = 0; i < vectors; ++i) {
    auto sum = Format::load(input[0] + i * kStep);
    if constexpr (kContinues) sum = tile[i] + sum;
    for (std::size_t k = 1; k < N; ++k) sum = sum + Format::load(input[k] + i * kStep);
    if constexpr (kFinishes) {
      if (divides) sum = sum / by;
      Format::store(out + i * kStep, sum);
    } else {
      tile[i] = sum;
    }
  }

  const std::size_t left = elements % Format::lanes;
  if (left == 0) return;
  auto sum = load_some<Format>(input[0] + vectors * kStep, left);
  if constexpr (kContinues) sum = tile[vectors] + sum;
  for (std::size_t k = 1; k < N; ++k) sum = sum + load_some<Format>(input[k] + vectors * kStep, left);
  if constexpr (kFinishes) {
    if (divides) sum = sum / by;
    store_some<Format>(out + vectors * kStep, sum, left);
  } else {
    tile[vectors] = sum;
  }
}

template <class Format>
using Fuse = decltype(&fuse<Format, Pass::All, 1>);

/// fuse<> for a number of inputs that is known only at run time: table[n - 1] takes n inputs.
template <class Format, Pass pass, std::size_t... Index>
constexpr std::array<Fuse<Format>, sizeof...(Index)> make_fuse_table(std::index_sequence<Index...>) {
  return {&fuse<Format, pass, Index + 1>...};
}

template <class Format, Pass pass>
constexpr auto kFuseTable = make_fuse_table<Format, pass>(std::make_index_sequence<kFusedInputs>{});

/// More than kFusedInputs inputs, at most a tile of each.
template <class Format>
void reduce_tile(std::span<const std::byte* const> inputs, std::size_t offset_bytes, double divisor,
                 std::byte* out, std::size_t elements) {
  typename Format::Vector tile[kTileVectors<Format>];
  std::array<const std::byte*, kFusedInputs> operands;
  const auto take = [&](std::size_t first, std::size_t count) {
    for (std::size_t k = 0; k < count; ++k) operands[k] = inputs[first + k] + offset_bytes;
    return operands.data();
  };

  fuse<Format, Pass::First, kFusedInputs>(take(0, kFusedInputs), 1.0, nullptr, elements, tile);
  std::size_t next = kFusedInputs;
  for (; inputs.size() - next > kFusedInputs; next += kFusedInputs) {
    fuse<Format, Pass::Middle, kFusedInputs>(take(next, kFusedInputs), 1.0, nullptr, elements, tile);
  }
  const std::size_t last = inputs.size() - next;
  kFuseTable<Format, Pass::Last>[last - 1](take(next, last), divisor, out + offset_bytes, elements, tile);
}

template <class Format>
void reduce_format(std::span<const std::byte* const> inputs, double divisor, std::byte* out,
                   std::size_t elements) {
  if (inputs.size() <= kFusedInputs) {
    kFuseTable<Format, Pass::All>[inputs.size() - 1](inputs.data(), divisor, out, elements, nullptr);
    return;
  }
  constexpr std::size_t kTileElements = kTileVectors<Format> * Format::lanes;
  for (std::size_t done = 0; done < elements; done += kTileElements) {
    const std::size_t count = std::min(kTileElements, elements - done);
    reduce_tile<Format>(inputs, done * Format::element_bytes, divisor, out, count);
  }
}

template <class Float32, class Float64, class BFloat16, class Float16>
void reduce_with(DType dtype, std::span<const std::byte* const> inputs, double divisor, std::byte* out,
                 std::size_t elements) {
  switch (dtype) {
    case DType::Float32:
      return reduce_format<Float32>(inputs, divisor, out, elements);
    case DType::Float64:
      return reduce_format<Float64>(inputs, divisor, out, elements);
    case DType::BFloat16:
      return reduce_format<BFloat16>(inputs, divisor, out, elements);
    case DType::Float16:
      return reduce_format<Float16>(inputs, divisor, out, elements);
    case DType::Int8Block:  // int8_reduce() does it
      return;
  }
}

}  // namespace
}  // namespace optireduce
