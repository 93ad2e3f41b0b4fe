// What the owner of a shard can learn from one operation: how its contributions came.
#pragma once

#include <algorithm>
#include <cstdint>

#include "operation/operation.h"
#include "operation/time_model.h"

namespace optireduce {

/// Of an operation that half of the members have begun, and in which our shard is not empty.
inline Collected collected_by(const Operation& operation, Time now, std::uint64_t step) {
  const Time from = operation.half_begun_at();
  const ReduceScatter& scatter = operation.scatter();
  const std::uint32_t packets = scatter.shard().packets();
  Collected collected{.stream = operation.setup().stream,
                      .step = step,
                      .ended = now,
                      .bytes = operation.bytes(),
                      .arrivals = {}};
  for (Rank place = 0; place < operation.places(); ++place) {
    const Time began = operation.begun_at(place), complete = scatter.complete_at(place);
    if (operation.rank_at(place) ==
        operation.setup().rank) {  // there at once, and known also after the deadline
      if (began != Time::never()) collected.arrivals.push_back({began - from, began - from, 0});
      continue;
    }
    const bool whole = complete != Time::never();
    const Time ended = whole ? complete : std::min(now, operation.closed_at());
    const double missing = whole ? 0.0 : scatter.excluded_packets(place) / static_cast<double>(packets);
    collected.arrivals.push_back(
        {began == Time::never() ? ended - from : began - from, ended - from, missing});
  }
  return collected;
}

}  // namespace optireduce
