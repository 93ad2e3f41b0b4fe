// Groups side by side, with a wire between them that a test can cut packet by packet.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "check.h"
#include "group/group.h"
#include "views/view_messages.h"

namespace rankscase {

using namespace optireduce;

constexpr Duration kDelay = Duration::micros(50);
constexpr Duration kTimeout = Duration::millis(60'000);
constexpr std::uint32_t kStream = 4;

class Ranks {
 public:
  explicit Ranks(Rank size, GroupConfig config = {}) {
    config.size = size;
    config.seal = Seal(42);
    for (Rank rank = 0; rank < size; ++rank) {
      config.rank = rank;
      auto& side = sides_.emplace_back(std::make_unique<Side>());
      side->config = config;
      side->group = std::make_unique<Group>(config, side->pool);
    }
  }
  /// Another process takes its place.
  void restart(Rank rank) {
    Side& side = *sides_[rank];
    ++side.config.incarnation;
    side.group = std::make_unique<Group>(side.config, side.pool);
    side.reports.clear();
    side.gone = false;
    pump(rank);
  }

  std::uint64_t start(Rank rank, const Call& call) {
    const std::uint64_t number = group(rank).start(now_, call);
    pump(rank);
    return number;
  }
  /// Every rank's side of one operation on its values.
  void start_all(std::vector<std::vector<float>>& values, const Call& like) {
    for (Rank rank = 0; rank < sides_.size(); ++rank) start(rank, with(like, values[rank]));
  }
  static Call with(Call call, std::vector<float>& values) {
    call.descriptor.elements = static_cast<std::uint32_t>(values.size());
    call.data = reinterpret_cast<std::byte*>(values.data());
    if (call.timeout == Duration{}) call.timeout = kTimeout;
    return call;
  }
  void goodbye(Rank rank) {
    group(rank).say_goodbye(now_);
    pump(rank);
    sides_[rank]->gone = true;
  }
  void restore(Rank rank, const Position& position, std::uint64_t step) {
    group(rank).restore(now_, position, step);
    pump(rank);
  }
  /// It says nothing any more, and hears nothing.
  void kill(Rank rank) { sides_[rank]->gone = true; }
  /// It goes on after a kill, as after a standstill.
  void wake(Rank rank) { sides_[rank]->gone = false; }
  std::vector<CheckedStep> check(Rank rank, std::uint64_t step, std::uint64_t hash) {
    std::vector<CheckedStep> settled = group(rank).check(step, hash);
    pump(rank);
    return settled;
  }
  void prepare_to_leave(Rank rank) {
    group(rank).prepare_to_leave(now_, true);
    pump(rank);
  }
  void release(Rank rank) { group(rank).release(now_); }

  /// Until so much time has passed.
  void run(Duration time) {
    const Time end = now_ + time;
    for (;;) {
      Time next = wire_.empty() ? Time::never() : wire_.begin()->first;
      for (auto& side : sides_)
        next = std::min(next, side->gone ? Time::never() : side->group->poll_timeout());
      if (next > end) break;
      now_ = std::max(now_, next);
      step();
    }
    now_ = end;
  }

  /// Packets in one datagram, all but the last one `segment_bytes` long.
  void give(Rank to, Rank from, const std::vector<std::byte>& packets, std::size_t segment_bytes) {
    Side& side = *sides_[to];
    const auto bytes = static_cast<std::uint32_t>(packets.size());
    Datagram datagram{from, side.pool.take(bytes), bytes, static_cast<std::uint32_t>(segment_bytes)};
    std::copy(packets.begin(), packets.end(), datagram.buffer.data());
    side.group->handle_datagram(now_, std::move(datagram));
    pump(to);
  }

  Group& group(Rank rank) { return *sides_[rank]->group; }
  const BufferPool& pool(Rank rank) const { return sides_[rank]->pool; }
  /// That have come since the last look, in their order.
  std::vector<Report> take_reports(Rank rank) { return std::exchange(sides_[rank]->reports, {}); }
  Time now() const { return now_; }

  /// Packets that get lost.
  std::function<bool(Rank from, Rank to, const Header& header)> loses;
  /// View messages that wait for let_through; those that take more than one packet do not.
  std::function<bool(Rank from, Rank to, const ViewMessage& message)> holds;
  struct Packet {
    Rank from, to;
    std::vector<std::byte> bytes;
  };
  std::vector<Packet> held;
  void let_through() {
    for (Packet& packet : std::exchange(held, {})) wire_.insert({now_ + kDelay, std::move(packet)});
  }

 private:
  struct Side {
    GroupConfig config;
    BufferPool pool;
    std::unique_ptr<Group> group;
    std::vector<Report> reports;
    bool gone = false;
  };

  void step() {
    while (!wire_.empty() && wire_.begin()->first <= now_) {
      const Packet packet = std::move(wire_.begin()->second);
      wire_.erase(wire_.begin());
      Side& side = *sides_[packet.to];
      if (side.gone) continue;
      give(packet.to, packet.from, packet.bytes, packet.bytes.size());
    }
    for (Rank rank = 0; rank < sides_.size(); ++rank) {
      if (sides_[rank]->gone || group(rank).poll_timeout() > now_) continue;
      group(rank).handle_timeout(now_);
      pump(rank);
    }
  }

  void pump(Rank rank) {
    Transmit transmit;
    while (group(rank).poll_transmit(now_, transmit)) {
      for (const Segment& segment : transmit.segments) {
        std::vector<std::byte> bytes(segment.header.begin(), segment.header.end());
        bytes.insert(bytes.end(), segment.payload.begin(), segment.payload.end());
        const Header header = *decode(bytes, static_cast<Rank>(sides_.size()));
        for (const Rank to : transmit.to) {
          if (loses && loses(rank, to, header)) continue;
          if (is_held(rank, to, header, segment.payload)) {
            held.push_back({rank, to, bytes});
          } else {
            wire_.insert({now_ + kDelay, {rank, to, bytes}});
          }
        }
      }
    }
    while (auto report = group(rank).poll_completion()) sides_[rank]->reports.push_back(std::move(*report));
  }

  bool is_held(Rank from, Rank to, const Header& header, std::span<const std::byte> payload) const {
    if (!holds || header.type != PacketType::View) return false;
    const auto whole = PieceCollector().add(payload);
    if (!whole) return false;
    const auto message = decode_view_message(*whole, static_cast<Rank>(sides_.size()));
    return message && holds(from, to, *message);
  }

  std::vector<std::unique_ptr<Side>> sides_;
  std::multimap<Time, Packet> wire_;
  Time now_{1'000'000'000};
};

// ---- Calls and values

using Values = std::vector<float>;

inline bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr std::uint32_t kElements = 3'000;
constexpr Duration kLong = Duration::millis(1'000);

inline Call exact(ReduceOp op = ReduceOp::Sum) {
  return {.descriptor = {0, DType::Float32, op, false}, .timeout = kTimeout};
}

inline Call bounded(std::uint64_t step) {
  return {.descriptor = {0, DType::Float32, ReduceOp::Sum, true},
          .timeout = kTimeout,
          .stream = kStream,
          .step = step};
}

inline GroupConfig fixed() {
  GroupConfig config;
  config.fixed_membership = true;
  return config;
}

inline std::vector<Values> values_of(Rank ranks, std::size_t elements = kElements) {
  std::vector<Values> values;
  for (Rank rank = 0; rank < ranks; ++rank) values.emplace_back(elements, static_cast<float>(1 << rank));
  return values;
}

inline bool all_are(const Values& values, float wanted) {
  return std::all_of(values.begin(), values.end(), [wanted](float value) { return value == wanted; });
}

/// Steps in which everybody takes part, until owners know what is usual. The step that comes next.
inline std::uint64_t learn(Ranks& ranks, Rank size, std::uint64_t steps = 12) {
  for (std::uint64_t step = 0; step < steps; ++step) {
    std::vector<Values> values = values_of(size);
    ranks.start_all(values, bounded(step));
    ranks.run(Duration::millis(10));
    for (Rank rank = 0; rank < size; ++rank) CHECK_EQ(ranks.take_reports(rank).size(), 1u);
  }
  return steps;
}

}  // namespace rankscase
