// Contributions that a decision did not include. They are kept by stream and place and added to the next
// contribution to the same values, so that every gradient counts once.
//
// The contribution to a weighted mean is a pair: values, and the weight (samples) behind them. Both are kept
// and go along together, so that the mean of all included pairs is one over samples, each counted once.
// Values and weight must then always be cut alike: a piece is what one packet carries, and all operations of
// a weighted mean cut the values at the same places (geometry/schedule.h).
//
// Invariant: a pair is in one place at a time. keep() takes it from a contribution whose outcome is known,
// add_to() gives it to the next one, give_back() takes it from one that failed.
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
  float scale = 1;              // the values are multiplied by it (a loss scale)
  std::size_t piece_bytes = 0;  // values with one weight; 0: no weights
};

/// What is kept of a stream.
struct KeptValues {
  DType type = DType::Float32;
  float scale = 1;
  std::vector<std::byte> values;       // empty: nothing
  std::vector<std::uint32_t> weights;  // of a weighted mean, by piece
};

class Residuals {
 public:
  struct Carried {
    std::size_t bytes = 0;     // of the values that had something
    std::uint32_t weight = 0;  // behind what was added
  };

  /// An operation of the stream begins: from step to step residuals get older. Those of a stream that is not
  /// called any more do not.
  void note_begun(std::uint32_t stream, std::uint64_t step);
  /// Whether add_to() would change anything of that stream.
  bool any(std::uint32_t stream) const;
  /// The same of all streams.
  bool any() const;
  /// Adds what is kept of these values, which begin at `begin`, to them, and forgets it. With weights: they
  /// are one piece.
  Carried add_to(const ValueSpace& space, std::size_t begin, std::span<std::byte> values);
  /// Keeps excluded values and the weight behind them; ones that are not finite are dropped and counted.
  void keep(const ValueSpace& space, std::size_t begin, std::span<const std::byte> values,
            std::uint32_t weight = 0);
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
  /// A copy of what is kept, before it goes along with an operation that includes everybody or fails ...
  class Loan;
  Loan lend(std::uint32_t stream) const;
  /// ... and, if it has failed, back again.
  void give_back(const Loan& loan);
  /// Forgets everything, counted as dropped. Returns how many bytes that were, in whole blocks.
  std::size_t drop_all();

 private:
  static constexpr std::size_t kBlockBytes = 4096;           // the granularity of ages, without weights
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};  // later than any step

  struct Stream {
    DType type = DType::Float32;
    float scale = 1;
    std::size_t block_bytes = kBlockBytes;  // with weights a piece
    std::vector<std::byte> values;
    std::vector<std::uint32_t> weights;    // by block; empty: none
    std::vector<std::uint64_t> since;      // by block: the step of its oldest values
    std::vector<std::uint64_t> under_way;  // the same of values that went along with a contribution
    std::uint64_t latest = 0;              // the step of the newest operation
    bool any = false;

    std::size_t block_of(std::size_t byte) const { return byte / block_bytes; }
    std::span<const std::byte> block(std::size_t index) const;
    bool fits(const ValueSpace& space) const;
  };

  Stream& stream_of(const ValueSpace& space);
  static void rescale(Stream& stream, float scale);
  static void add(Stream& stream, std::size_t begin, std::span<const std::byte> values);
  static void note_emptied(Stream& stream, std::size_t first_block, std::size_t last_block);

  std::map<std::uint32_t, Stream> streams_;
  std::uint64_t dropped_bytes_ = 0;
};

class Residuals::Loan {
 public:
  Loan() = default;
  bool any() const { return kept_.any; }

 private:
  friend class Residuals;
  std::uint32_t stream_ = 0;
  Stream kept_;
};

}  // namespace optireduce
