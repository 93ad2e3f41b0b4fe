// Contributions that a decision did not include. They are kept by stream and place and added to the next
// contribution to the same values, so that every gradient counts once.
//
// Invariant: a value is in one place at a time. keep() takes it from a contribution whose outcome is known,
// add_to() gives it to the next one.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "kernels/dtype.h"

namespace optireduce {

/// What one operation knows of its values.
struct ValueSpace {
  std::uint32_t stream = 0;
  DType type = DType::Float32;  // of the caller's values
  std::size_t bytes = 0;        // of all of them
  std::uint64_t step = 0;
  float scale = 1;  // the values are multiplied by it (a loss scale)
};

/// What is kept of a stream.
struct KeptValues {
  DType type = DType::Float32;
  float scale = 1;
  std::vector<std::byte> values;  // empty: nothing
};

class Residuals {
 public:
  /// Whether add_to() would change anything of that stream.
  bool any(std::uint32_t stream) const;
  /// The same of all streams.
  bool any() const;
  /// Adds what is kept of these values, which begin at `begin`, to them, and forgets it. Returns how many
  /// bytes of them had something.
  std::size_t add_to(const ValueSpace& space, std::size_t begin, std::span<std::byte> values);
  /// Keeps excluded values; ones that are not finite are dropped and counted.
  void keep(const ValueSpace& space, std::size_t begin, std::span<const std::byte> values);
  /// The outcome of all values of the stream's operation is known.
  void settle(std::uint32_t stream);

  /// Age in steps of the oldest excluded values, those on their way included: 0 if there are none, 1 in the
  /// step after they were excluded.
  std::uint8_t oldest(std::uint64_t step) const;
  /// Bytes of memory that hold residuals.
  std::size_t bytes() const;
  std::uint64_t dropped_bytes() const { return dropped_bytes_; }
  /// What is kept for a stream. Forgets it.
  KeptValues take(std::uint32_t stream);
  /// Forgets everything, counted as dropped. Returns how many bytes that were, in whole blocks.
  std::size_t drop_all();

 private:
  static constexpr std::size_t kBlockBytes = 4096;           // the granularity of ages
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};  // later than any step

  struct Stream {
    DType type = DType::Float32;
    float scale = 1;
    std::vector<std::byte> values;
    std::vector<std::uint64_t> since;      // by block: the step of its oldest values
    std::vector<std::uint64_t> under_way;  // the same of values that went along with a contribution
    bool any = false;
  };

  Stream& stream_of(const ValueSpace& space);
  static void rescale(Stream& stream, float scale);
  static void note_emptied(Stream& stream, std::size_t first_block, std::size_t last_block);

  std::map<std::uint32_t, Stream> streams_;
  std::uint64_t dropped_bytes_ = 0;
};

}  // namespace optireduce
