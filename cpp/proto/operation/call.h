// What the local process asks for, and what its group knows of that.
#pragma once

#include <cstdint>

#include "base/time.h"
#include "stage/bucket.h"
#include "wire/packet.h"

namespace optireduce {

struct Call {
  Descriptor descriptor;
  std::byte* data = nullptr;  // valid until the report; with `stays_readable` until Group::release
  Duration timeout;           // it fails if it is not complete then
  std::uint32_t weight = 1;   // samples behind the contribution; 0: it has none
  /// Names the bucket and its layout, alike on all ranks; 0: none. Excluded contributions are kept by it, so
  /// that bounded calls need one.
  std::uint32_t stream = 0;
  std::uint64_t step = 0;  // of training; members may differ by max_lag
  float scale = 1;         // the values are multiplied by it (a loss scale)
  /// The caller does not write to the data before Group::release, so that nothing has to be copied for
  /// members that are behind.
  bool stays_readable = false;
  /// Data of a narrow type that stands for these float32: they are what is contributed, they get the result,
  /// and the data is room to round to, with whatever it holds. Not for gathers.
  WideMemory wide = {};
};

/// A call from when it is made until its operation ends.
struct LocalCall : Call {
  std::uint64_t number = 0;
  Time called_at;
  WideMemory grid_wide = {};  // of the whole bucket, where stages exchange the narrow data itself
  bool contributes = true;    // false: the gradient is dropped, because this rank was not a member in time
  bool intact = true;         // false: decisions that do not count any more have overwritten some of it

  bool adds() const { return contributes && weight != 0; }
  Time fails_at() const { return called_at + timeout; }
};

}  // namespace optireduce
