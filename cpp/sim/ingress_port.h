// The switch's port towards one rank: all senders, and others' traffic, share its rate and its queue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

#include "base/time.h"
#include "sim/counters.h"
#include "sim/options.h"
#include "sim/random.h"
#include "sim/serialiser.h"
#include "sim/wire.h"

namespace optireduce::sim {

/// What became of one packet at a port.
struct Passage {
  static constexpr std::uint32_t kAll = ~std::uint32_t{0};  // packets of the slot

  std::uint32_t slot = 0;    // as given to expect()
  std::uint32_t packet = 0;  // as given to expect(), or kAll
  std::optional<Time> left;  // nothing: the queue had no room
};

/// Looks at packets in the order in which they come, but only when somebody asks: a whole batch costs one
/// event, and foreign packets cost none.
class IngressPort {
 public:
  IngressPort(const PortOptions& options, const std::vector<Background>& backgrounds, std::uint64_t seed);

  /// Without a rate there is nothing to share, and no packet should come here.
  bool limited() const { return options_.bits_per_second > 0; }
  bool takes_whole_batches() const { return options_.whole_batches; }

  /// A packet will come at `at`, which must not be before what next() was asked for.
  void expect(Time at, std::size_t bytes, std::uint32_t slot, std::uint32_t packet);
  /// All packets of a delivery come at once, and share their fate.
  void expect_all(Time at, const Delivery& delivery, std::uint32_t slot);

  /// The fate of the next packet that has come by now; nothing if there is no other.
  std::optional<Passage> next(Time now, Counters& counters);

 private:
  struct Packet {
    Time at;
    std::uint64_t sequence = 0;
    std::size_t wire_bytes = 0;
    std::uint32_t slot = 0;
    std::uint32_t packet = 0;
    std::uint32_t packets = 1;
  };
  /// A packet in every interval, at a random place in it: exactly even spacing would, at a full queue, let
  /// always the same sender find room.
  struct Foreign {
    Time at;  // of its next packet
    Time begin;
    Time end;
    double interval_ns = 0;
    std::uint64_t sent = 0;
  };
  struct Later {
    bool operator()(const Packet& a, const Packet& b) const {
      return a.at != b.at ? a.at > b.at : a.sequence > b.sequence;
    }
    bool operator()(const Foreign& a, const Foreign& b) const { return a.at > b.at; }
  };

  void add_foreign(Foreign foreign);
  void pass_foreign(Time until, Counters& counters);
  std::optional<Time> pass(Time at, std::size_t wire_bytes);

  PortOptions options_;
  Random random_;
  Serialiser serialiser_;
  std::priority_queue<Packet, std::vector<Packet>, Later> packets_;
  std::priority_queue<Foreign, std::vector<Foreign>, Later> foreign_;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace optireduce::sim
