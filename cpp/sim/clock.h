// A rank's own clock, which may be off and may drift away from the network's.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace optireduce::sim {

class Clock {
 public:
  Clock() = default;
  /// Shows `offset` more than the network's at `begin`, and gains `drift` microseconds each second after it.
  Clock(Time begin, Duration offset, double drift) : begin_(begin), offset_(offset), drift_(drift * 1e-6) {}

  /// One that shows so much more.
  Clock shifted(Duration more) const {
    Clock other = *this;
    other.offset_ = offset_ + more;
    return other;
  }

  /// What it shows at a time of the network's.
  Time at(Time network) const { return network + offset_ + gained(network); }

  /// The earliest time of the network's at which it shows `shown` or more.
  Time when(Time shown) const;

 private:
  Duration gained(Time network) const {
    return {static_cast<std::int64_t>(static_cast<double>((network - begin_).ns) * drift_)};
  }

  Time begin_;
  Duration offset_;
  double drift_ = 0;
};

inline Time Clock::when(Time shown) const {
  if (shown == Time::never()) return shown;
  const Time without_drift{shown.ns - offset_.ns};
  if (drift_ == 0) return without_drift;
  const double since = static_cast<double>((without_drift - begin_).ns) / (1 + drift_);
  if (since >= static_cast<double>(Time::never().ns - begin_.ns)) return Time::never();
  Time network = begin_ + Duration{static_cast<std::int64_t>(since)};
  while (at(network) < shown) network = network + Duration{1};  // rounded down: a step or two is missing
  return network;
}

}  // namespace optireduce::sim
