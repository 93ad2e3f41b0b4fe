#include "proto/wide.h"

#include <algorithm>
#include <array>

#include "kernels/bfloat16.h"
#include "kernels/int8_block.h"
#include "kernels/reduce.h"
#include "proto/mix.h"

namespace optireduce {
namespace {

/// From here on values do not fit the caches, and writing them past those saves reading what they replace.
constexpr std::size_t kStreamAboveValues = 1024 * 1024;
constexpr std::size_t kTileBlocks = 16;
/// Whole blocks and whole cache lines, that stay in the first cache.
constexpr std::size_t kTileValues = kTileBlocks * kInt8BlockValues;

constexpr std::size_t values_in(DType dtype) {
  return dtype == DType::Int8Block ? kInt8BlockValues : 1;
}

}  // namespace

bool can_stand_for(DType dtype, std::size_t elements, std::size_t values) {
  if (dtype != DType::BFloat16 && dtype != DType::Int8Block) return false;
  return elements == (values + values_in(dtype) - 1) / values_in(dtype);
}

std::span<float> Wide::values_of(Place place) const {
  const std::size_t first = place.begin / size_of(dtype_) * values_in(dtype_);
  const std::size_t most = place.bytes / size_of(dtype_) * values_in(dtype_);
  return {memory_.values + first, std::min(most, memory_.count - first)};
}

void Wide::narrow(Place place, std::byte* narrow) const {
  const std::span<const float> values = values_of(place);
  if (dtype_ == DType::BFloat16) {
    bfloat16_encode(values.data(), values.size(), narrow);
  } else {
    std::uint64_t state = memory_.seed ^ place.begin;
    int8_encode(values.data(), values.size(), mix(state), narrow);
  }
}

void Wide::decode(const std::byte* narrow, std::span<float> values) const {
  if (dtype_ == DType::BFloat16) {
    bfloat16_decode(narrow, values.size(), values.data());
  } else {
    int8_decode(narrow, values.size(), values.data());
  }
}

/// Calls use(values, decoded) for some values at a time and what `narrow` says of them.
template <typename Use>
void Wide::decode_in_tiles(Place place, const std::byte* narrow, Use use) const {
  const std::size_t tile_bytes = kTileValues / values_in(dtype_) * size_of(dtype_);
  std::array<float, kTileValues> decoded;
  for (std::span<float> left = values_of(place); !left.empty(); narrow += tile_bytes) {
    const std::span<float> some = left.first(std::min(kTileValues, left.size()));
    decode(narrow, std::span(decoded).first(some.size()));
    use(some, decoded.data());
    left = left.subspan(some.size());
  }
}

void Wide::widen(Place place, const std::byte* narrow) const {
  if (memory_.count < kStreamAboveValues) return decode(narrow, values_of(place));
  decode_in_tiles(place, narrow, [](std::span<float> values, const float* decoded) {
    copy_streaming(reinterpret_cast<std::byte*>(values.data()), reinterpret_cast<const std::byte*>(decoded),
                   values.size_bytes());
  });
}

void Wide::add(Place place, const std::byte* narrow, float factor) const {
  decode_in_tiles(place, narrow, [factor](std::span<float> values, const float* decoded) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += factor * decoded[i];
  });
}

void Wide::zero(Place place) const {
  const std::span<float> values = values_of(place);
  std::fill(values.begin(), values.end(), 0.0F);
}

void Wide::reduce(Place place, std::span<const std::byte* const> inputs, double divisor,
                  std::byte* narrow) const {
  const std::span<float> own = values_of(place);
  if (dtype_ == DType::BFloat16) {
    bfloat16_reduce_onto(own.data(), own.size(), inputs, divisor, narrow);
  } else {
    int8_reduce_onto(own.data(), own.size(), inputs, divisor, narrow);
  }
}

}  // namespace optireduce
