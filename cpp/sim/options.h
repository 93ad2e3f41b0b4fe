// What a simulated network is told before it runs. Times are virtual.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "base/time.h"
#include "group/config.h"
#include "sim/trace.h"

namespace optireduce::sim {

/// The session's secrets. Any will do: nothing leaves the process.
constexpr std::uint64_t kToken = 0x0123'4567'89ab'cdefu;
constexpr SipKey kSessionKey{kToken, ~kToken};

/// One direction between two ranks. Probabilities are per packet.
struct LinkOptions {
  double bits_per_second = 0;  // 0: unlimited, packets take no time to serialise
  Duration delay = Duration::micros(50);
  Duration jitter;                                 // uniform in [0, jitter] on top of the delay
  double loss = 0;                                 // anywhere on the way
  double reorder = 0;                              // packets that are overtaken ...
  Duration reorder_delay = Duration::micros(500);  // ... because they take up to this much longer
  double duplicate = 0;                            // a second copy, up to reorder_delay later
  std::size_t queue_bytes = 0;  // waiting for the link; beyond it packets are dropped. 0: no limit
  double spike = 0;             // per batch: that the link stands still ...
  Duration spike_delay = Duration::millis(5);  // ... for so long, and then lets all that waits pass at once
};

/// What all of a rank's links share: its own interface (egress), or the switch's port towards it (ingress).
struct PortOptions {
  double bits_per_second = 0;   // 0: unlimited, there is no port
  std::size_t queue_bytes = 0;  // waiting for the port; beyond it packets are dropped. 0: no limit
  std::size_t burst_bytes = 0;  // a token bucket: so much passes at once after a pause
  bool policer = false;         // what cannot pass at once is dropped; nothing waits
  /// A batch that was sent by one call passes, waits and is dropped as one, as the kernel's queues do with it
  /// until it is on a wire.
  bool whole_batches = false;
};

/// In [begin, end) others send so much through a rank's ingress port, whether or not it has room.
struct Background {
  Rank rank = 0;
  Time begin;
  Time end;
  double bits_per_second = 0;  // on the wire
};

/// Nothing that leaves `from` for `to` in [begin, end) arrives.
struct LinkCut {
  Rank from = 0;
  Rank to = 0;
  Time begin;
  Time end;
};

/// What is sent to the group in [begin, end) does not reach this rank: a switch has forgotten it.
struct GroupOutage {
  Rank rank = 0;
  Time begin;
  Time end;
};

/// The rank runs nothing in [begin, end): its packets, timers and calls wait.
struct Pause {
  Rank rank = 0;
  Time begin;
  Time end;
};

/// The rank says goodbye and takes part in nothing more.
struct Departure {
  Rank rank = 0;
  Time at;
};

/// From then on the rank runs, sends and receives nothing, unless it is restarted. What it has sent before is
/// still under way.
struct Crash {
  Rank rank = 0;
  Time at;
};

/// A crashed rank's process begins anew, with nothing. It calls nothing before Network::restore.
struct Restart {
  Rank rank = 0;
  Time at;
};

/// Packets that should change nothing, sent beside the genuine ones. Probabilities are per genuine packet.
struct HostileOptions {
  double forge = 0;     // a stranger's: a wrong seal, any bytes
  double truncate = 0;  // a member's: the right seal, cut short
  double mangle = 0;    // a member's: the right seal, one field that cannot be right
  double replay = 0;    // a genuine packet again, up to replay_delay later
  Duration replay_delay = Duration::millis(50);
  double tamper = 0;  // a genuine packet with one bit changed on the way; needs tags
};

/// Packets that are lost by a pattern, chosen anew for each operation, stage and pair of ranks. Some stay
/// lost however often they are sent, until their operation has ended at the receiver: what a deadline loses.
struct ForcedLossOptions {
  /// Storms: some receivers of each operation lose a lot, all others nothing. The share is the average.
  enum class Pattern : std::uint8_t { Random, Tail, Bursts, Storms };
  /// What cannot be repaired in time.
  enum class Hopeless : std::uint8_t { Nothing, Contributions, Everything };
  Pattern pattern = Pattern::Random;
  Hopeless hopeless = Hopeless::Everything;
  double share = 0;
  double burst_packets = 8;           // mean length
  std::uint64_t first_operation = 0;  // before it nothing is lost: a warm-up has no deadline
  std::uint32_t least_elements = 0;   // shorter operations are spared
};

/// What goes wrong.
struct Faults {
  std::vector<LinkCut> cuts;
  std::vector<GroupOutage> group_outages;
  std::vector<Pause> pauses;
  std::vector<Departure> departures;
  std::vector<Crash> crashes;
  std::vector<Restart> restarts;
  HostileOptions hostile;
  ForcedLossOptions forced_loss;

  bool is_cut(Rank from, Rank to, Time at) const {
    return std::any_of(cuts.begin(), cuts.end(), [&](const LinkCut& cut) {
      return cut.from == from && cut.to == to && at >= cut.begin && at < cut.end;
    });
  }
  bool is_outside_group(Rank rank, Time at) const {
    return std::any_of(group_outages.begin(), group_outages.end(), [&](const GroupOutage& outage) {
      return outage.rank == rank && at >= outage.begin && at < outage.end;
    });
  }
};

struct SimOptions : Faults {
  Rank ranks = 2;
  std::uint64_t seed = 0;
  Time begin;  // what the clock shows at first

  LinkOptions link;                                          // of every ordered pair ...
  std::map<std::pair<Rank, Rank>, LinkOptions> other_links;  // ... but these (from, to)

  /// A packet passes its sender's egress port, the pair's link and its receiver's ingress port. One that is
  /// sent to the multicast group (protocol.multicast) passes the egress port once, and then the links and
  /// ports of all.
  PortOptions egress;   // of every rank; without a limit its queue is the host's own, which does not drop
  PortOptions ingress;  // of every rank
  std::map<Rank, PortOptions> other_egress;   // instead, for some ranks
  std::map<Rank, PortOptions> other_ingress;  // instead, for some ranks
  std::vector<Background> backgrounds;

  /// What a rank's clock shows more than the network's at the beginning, and how many microseconds it gains
  /// each second (parts per million). All other times of these options are the network's.
  std::map<Rank, Duration> clock_offset;
  std::map<Rank, double> clock_drift;

  /// Share of the batches that arrive as GRO would hand them over: in one piece when their last packet is
  /// there. 1 is the fastest to simulate (an event for each batch instead of one for each packet).
  double coalesce = 0.5;

  /// A rank looks at its packets only up to this long after the first one came, as a busy scheduler would let
  /// it.
  Duration wake_delay;

  /// Bytes that wait at a rank until it looks; beyond it packets are dropped. 0: no limit.
  std::size_t receive_buffer_bytes = 0;

  /// The configuration of every rank's group; rank, size and seal are filled in.
  GroupConfig protocol;
  Seal::Kind seal = Seal::Kind::Token;

  /// A protocol that never gets anywhere ends here with an error, not in an endless loop.
  std::uint64_t max_events = 100'000'000;

  /// Sees every event before it happens; for tests and for people.
  std::function<void(const TraceEntry&)> observer;
};

/// What the rank closes and opens packets with.
Seal seal_of(const SimOptions& options, Rank rank);

/// The pair's link: its own or everybody's.
const LinkOptions& link_of(const SimOptions& options, Rank from, Rank to);
/// The rank's port: its own or everybody's.
const PortOptions& egress_of(const SimOptions& options, Rank rank);
const PortOptions& ingress_of(const SimOptions& options, Rank rank);

/// The options, if a network can run with them. Throws std::invalid_argument that names the one that is
/// wrong.
SimOptions checked(SimOptions options);

}  // namespace optireduce::sim
