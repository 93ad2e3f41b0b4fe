// The caller's float32 behind an operation whose data travels narrow (bfloat16, blocks of 8-bit numbers).
// Contributions are narrowed when they are sent, results widened when they come, both while they are in the
// cache: no pass over memory is for rounding alone, and the shard that this rank reduces is read as it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/dtype.h"

namespace optireduce {

/// What the caller gives; without values there is none.
struct WideMemory {
  float* values = nullptr;
  std::size_t count = 0;   // the last element of the narrow data may stand for fewer values than others
  std::uint64_t seed = 0;  // for rounding at random: another one for every operation and rank
};

/// Whether so many values are what the elements stand for, and the type is a narrow form of float32 at all.
bool can_stand_for(DType dtype, std::size_t elements, std::size_t values);

/// A piece of the narrow data.
struct Place {
  std::size_t begin;  // in bytes, from the beginning of the bucket; of an element
  std::size_t bytes;
};

class Wide {
 public:
  Wide() = default;
  Wide(const WideMemory& memory, DType dtype) : memory_(memory), dtype_(dtype) {}

  explicit operator bool() const { return memory_.values != nullptr; }

  /// Rounds our values of that place to `narrow`.
  void narrow(Place place, std::byte* narrow) const;
  /// They become, or are increased by so many times, what `narrow` stands for, which needs no alignment. Call
  /// finish_streaming() after the last widen() and before telling another thread.
  void widen(Place place, const std::byte* narrow) const;
  void add(Place place, const std::byte* narrow, float factor) const;
  void zero(Place place) const;
  /// Our values and the narrow inputs are added up, divided and rounded once, to `narrow`; then ours become
  /// what it stands for.
  void reduce(Place place, std::span<const std::byte* const> inputs, double divisor, std::byte* narrow) const;

 private:
  std::span<float> values_of(Place place) const;
  void decode(const std::byte* narrow, std::span<float> values) const;
  template <typename Use>
  void decode_in_tiles(Place place, const std::byte* narrow, Use use) const;

  WideMemory memory_;
  DType dtype_ = DType::Float32;
};

}  // namespace optireduce
