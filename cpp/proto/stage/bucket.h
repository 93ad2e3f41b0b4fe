// The memory of one operation, and the only class that touches the caller's. Until the local process has
// begun the operation the engine's own memory stands in for it, so that this rank can serve as an owner and
// hold decisions for a process that is late. It does so again after the end, for members that are late.
//
// A bucket may travel in a narrower form than the caller's values (bfloat16, blocks of 8-bit numbers).
// Contributions are then rounded when they are sent and results widened when they come, both while they are
// in the cache; the caller gives float32 and room for the narrow form.
#pragma once

#include <span>
#include <vector>

#include "geometry/schedule.h"

namespace optireduce {

/// The float32 values behind narrow data; without values the data is what the caller has.
struct WideMemory {
  float* values = nullptr;
  std::size_t count = 0;   // the last element of the narrow data may stand for fewer values than others
  std::uint64_t seed = 0;  // for rounding at random: another one for every operation and rank
};

/// Whether so many values are what the elements stand for, and the type is a narrow form of float32 at all.
bool can_stand_for(DType dtype, std::size_t elements, std::size_t values);

/// A piece of the bucket, in bytes of the form that travels, from the beginning of the bucket.
struct Place {
  std::size_t begin;
  std::size_t bytes;
};

inline Place place_of(const Shard& shard, std::uint32_t packet) {
  return {shard.begin + shard.place_of(packet), shard.length_of(packet)};
}

/// Leaves new elements of a vector as they are.
template <typename Value>
struct Unwritten : std::allocator<Value> {
  template <typename Other>
  struct rebind {
    using other = Unwritten<Other>;
  };
  template <typename Element>
  void construct(Element*) noexcept {}
};

class Bucket {
 public:
  /// Pages that nobody writes to cost nothing.
  using Memory = std::vector<std::byte, Unwritten<std::byte>>;

  Bucket(DType dtype, std::size_t bytes, Rank shards) : dtype_(dtype), bytes_(bytes), standing_in_(shards) {}

  /// From now on the bucket is the caller's memory. Returns what was placed before, by shard, in the order of
  /// memory; empty: nothing.
  std::vector<Memory> begin(std::byte* data, const WideMemory& wide);
  bool begun() const { return begun_; }
  bool narrow() const { return wide_.values != nullptr; }

  /// The shard's memory in the form that travels; the engine's own before begin() and after detach().
  std::byte* data(Rank index, const Shard& shard);
  /// The same; null where there is none.
  const std::byte* data(Rank index, const Shard& shard) const;
  /// Whether there is any.
  bool holds(Rank index) const { return begun_ || !standing_in_[index].empty(); }
  /// Of memory that stands in for the caller's.
  std::size_t engine_bytes() const;

  /// Rounds the caller's values of that place to the form that travels. Only if narrow().
  void round(Place place);
  /// Writes a decision. Call finish_streaming() after the last one, before another thread is told.
  void put(Rank index, const Shard& shard, std::uint32_t packet, const std::byte* payload);
  void zero(Rank index, const Shard& shard, std::uint32_t packet);
  /// Adds contributions in the order given and writes the decision. `own`: the caller's values are the
  /// first (if narrow()) or are among the inputs.
  void reduce(Rank index, const Shard& shard, std::uint32_t packet, std::span<const std::byte* const> inputs,
              bool own, double divisor);

  /// The caller's values of a place, in their own type.
  std::span<std::byte> values(Place place) const;
  DType value_type() const { return narrow() ? DType::Float32 : dtype_; }
  std::size_t value_bytes() const { return narrow() ? wide_.count * sizeof(float) : bytes_; }
  /// Where the values of a place begin, in bytes of the caller's values.
  std::size_t value_begin(Place place) const;

  /// Copies a shard from a chunk on, for the time after detach().
  void keep(Rank index, const Shard& shard, std::uint32_t first_chunk);
  /// Lets go of the caller's memory.
  void detach() {
    begun_ = false;
    data_ = nullptr;
    wide_ = {};
  }

 private:
  std::span<float> floats(Place place) const;
  void widen(Place place, const std::byte* narrow) const;

  DType dtype_;
  std::size_t bytes_;
  bool begun_ = false;
  std::byte* data_ = nullptr;
  WideMemory wide_;
  std::vector<Memory> standing_in_;  // by shard
};

}  // namespace optireduce
