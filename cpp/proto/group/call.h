// What the local process asks for.
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

}  // namespace optireduce
