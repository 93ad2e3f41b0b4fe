#include "stage/bucket.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernels/bfloat16.h"
#include "kernels/int8_block.h"
#include "kernels/reduce.h"

namespace optireduce {
namespace {

/// From here on a bucket does not fit the caches, and writing past those saves reading what is replaced.
constexpr std::size_t kStreamAboveValues = 1024 * 1024;
constexpr std::size_t kStreamAboveBytes = 4 * 1024 * 1024;
constexpr std::size_t kTileBlocks = 16;
/// Whole blocks and whole cache lines, that stay in the first cache.
constexpr std::size_t kTileValues = kTileBlocks * kInt8BlockValues;

constexpr std::size_t values_in(DType dtype) {
  return dtype == DType::Int8Block ? kInt8BlockValues : 1;
}

void decode(DType dtype, const std::byte* narrow, std::span<float> values) {
  if (dtype == DType::BFloat16) {
    bfloat16_decode(narrow, values.size(), values.data());
  } else {
    int8_decode(narrow, values.size(), values.data());
  }
}

}  // namespace

bool can_stand_for(DType dtype, std::size_t elements, std::size_t values) {
  if (dtype != DType::BFloat16 && dtype != DType::Int8Block) return false;
  return elements == (values + values_in(dtype) - 1) / values_in(dtype);
}

std::vector<Bucket::Memory> Bucket::begin(std::byte* data, const WideMemory& wide) {
  data_ = data;
  wide_ = wide;
  begun_ = true;
  return std::exchange(standing_in_, std::vector<Memory>(standing_in_.size()));
}

std::byte* Bucket::data(Rank index, const Shard& shard) {
  if (begun_) return data_ + shard.begin;
  standing_in_[index].resize(shard.bytes);
  return standing_in_[index].data();
}

const std::byte* Bucket::data(Rank index, const Shard& shard) const {
  return begun_ ? data_ + shard.begin : standing_in_[index].data();
}

void Bucket::keep(Rank index, const Shard& shard, std::uint32_t first_chunk) {
  Memory& memory = standing_in_[index];
  if (first_chunk >= shard.chunks()) return;
  memory.resize(shard.bytes);
  for (std::uint32_t packet = first_chunk * shard.chunk_packets; packet < shard.packets(); ++packet) {
    const std::uint32_t place = shard.place_of(packet);
    std::memcpy(memory.data() + place, data_ + shard.begin + place, shard.length_of(packet));
  }
}

std::size_t Bucket::engine_bytes() const {
  std::size_t bytes = 0;
  for (const auto& memory : standing_in_) bytes += memory.size();
  return bytes;
}

std::span<float> Bucket::floats(Place place) const {
  const std::size_t first = place.begin / size_of(dtype_) * values_in(dtype_);
  const std::size_t most = place.bytes / size_of(dtype_) * values_in(dtype_);
  return {wide_.values + first, std::min(most, wide_.count - first)};
}

std::span<std::byte> Bucket::values(Place place) const {
  if (!narrow()) return {data_ + place.begin, place.bytes};
  const std::span<float> found = floats(place);
  return {reinterpret_cast<std::byte*>(found.data()), found.size_bytes()};
}

std::size_t Bucket::value_begin(Place place) const {
  return narrow() ? static_cast<std::size_t>(floats(place).data() - wide_.values) * sizeof(float)
                  : place.begin;
}

void Bucket::round(Place place) {
  const std::span<const float> from = floats(place);
  if (dtype_ == DType::BFloat16) {
    bfloat16_encode(from.data(), from.size(), data_ + place.begin);
  } else {
    std::uint64_t state = wide_.seed ^ place.begin;
    int8_encode(from.data(), from.size(), splitmix64(state), data_ + place.begin);
  }
}

void Bucket::widen(Place place, const std::byte* narrow) const {
  std::span<float> left = floats(place);
  if (wide_.count < kStreamAboveValues) return decode(dtype_, narrow, left);
  const std::size_t tile_bytes = kTileValues / values_in(dtype_) * size_of(dtype_);
  std::array<float, kTileValues> decoded;
  for (; !left.empty(); narrow += tile_bytes) {
    const std::span<float> some = left.first(std::min(kTileValues, left.size()));
    decode(dtype_, narrow, std::span(decoded).first(some.size()));
    copy_streaming(reinterpret_cast<std::byte*>(some.data()),
                   reinterpret_cast<const std::byte*>(decoded.data()), some.size_bytes());
    left = left.subspan(some.size());
  }
}

void Bucket::put(Rank index, const Shard& shard, std::uint32_t packet, const std::byte* payload) {
  std::byte* const to = data(index, shard) + shard.place_of(packet);
  const std::uint32_t length = shard.length_of(packet);
  if (begun_ && !narrow() && bytes_ >= kStreamAboveBytes) return copy_streaming(to, payload, length);
  std::memcpy(to, payload, length);
  if (begun_ && narrow()) widen(place_of(shard, packet), payload);
}

void Bucket::zero(Rank index, const Shard& shard, std::uint32_t packet) {
  std::memset(data(index, shard) + shard.place_of(packet), 0, shard.length_of(packet));
  if (!begun_ || !narrow()) return;
  const std::span<float> own = floats(place_of(shard, packet));
  std::fill(own.begin(), own.end(), 0.0F);
}

void Bucket::reduce(Rank index, const Shard& shard, std::uint32_t packet,
                    std::span<const std::byte* const> inputs, bool own, double divisor) {
  std::byte* const to = data(index, shard) + shard.place_of(packet);
  const Place place = place_of(shard, packet);
  if (begun_ && narrow() && own) {
    const std::span<float> mine = floats(place);
    if (dtype_ == DType::BFloat16) return bfloat16_reduce_onto(mine.data(), mine.size(), inputs, divisor, to);
    return int8_reduce_onto(mine.data(), mine.size(), inputs, divisor, to);
  }
  optireduce::reduce(dtype_, inputs, divisor, to, place.bytes / size_of(dtype_));
  if (begun_ && narrow()) widen(place, to);
}

}  // namespace optireduce
