// How many senders at once a receiver takes: advertised in its packets, halved by an operation in which many
// packets were lost on their way to it, raised by one by an operation in which few were. Senders do not take
// turns, which would starve a receiver that asks for few: each uses its part of as many windows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/rank.h"

namespace optireduce {

class IncastPolicy {
 public:
  explicit IncastPolicy(Rank size) : most_(std::clamp<std::uint32_t>(size - 1u, 1, 255)), value_(most_) {}

  /// `lost_share`: of the operation's bytes, lost on their way to us and repaired. What a deadline cut off
  /// does not count: with fewer senders it would only be more.
  void learn(double lost_share) {
    if (lost_share > kTolerated) {
      value_ = std::max<std::uint32_t>(1, value_ / 2);
    } else {
      value_ = std::min(most_, value_ + 1);
    }
  }

  std::uint32_t value() const { return value_; }
  /// For the header: 0 where every sender may send.
  std::uint8_t code() const { return value_ == most_ ? std::uint8_t{0} : static_cast<std::uint8_t>(value_); }

 private:
  static constexpr double kTolerated = 0.1;  // less is noise on some link

  std::uint32_t most_;
  std::uint32_t value_;
};

}  // namespace optireduce
