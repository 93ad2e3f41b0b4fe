// What all paths of a rank are told once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/time.h"

namespace optireduce {

struct PathOptions {
  /// Bytes of a bucket in one packet; the same on every rank, a multiple of 16 (better of 64, see
  /// payload_for_mtu).
  std::uint32_t payload_bytes = 1408;

  /// Contributions that may be on their way to one peer. 2 to 4 chunks of 64 KB fill a fast link; more falls
  /// out of the caches and overflows stock socket buffers.
  std::size_t window_bytes = 256 * 1024;

  /// Bounds of the adaptive wait before missing packets are asked for again, and its value before any
  /// measurement.
  Duration repair_min = Duration::millis(5);
  Duration repair_max = Duration::millis(200);
  Duration repair_initial = Duration::millis(20);

  /// How long a gap may be explained by reordering before it counts as loss.
  Duration reorder_delay = Duration::micros(250);

  /// A peer whose window is full is told what has arrived after this time, unless a packet that goes there
  /// anyway says so before.
  Duration answer_delay = Duration::millis(1);

  /// An idle rank tells its peers after this time what it has completed, so that they can free memory.
  Duration ack_delay = Duration::millis(5);
};

}  // namespace optireduce
