// What lies between the hosts: a packet passes its host's egress port, the link, and the receiver's ingress
// port. What becomes of it on the way is an event of its network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sim/counters.h"
#include "sim/event_queue.h"
#include "sim/forced_loss.h"
#include "sim/ingress_port.h"
#include "sim/link.h"
#include "sim/node.h"
#include "sim/options.h"
#include "sim/random.h"
#include "sim/serialiser.h"
#include "sim/wire.h"

namespace optireduce::sim {

/// What a network and its fabric share.
struct Surroundings {
  const SimOptions& options;
  const std::vector<std::unique_ptr<Node>>& nodes;
  Random& random;
  EventQueue& events;
  Counters& counters;
};

class Fabric {
 public:
  explicit Fabric(Surroundings around);

  /// A group hands out packets.
  void send(Time now, Rank from, const Transmit& transmit);
  /// Somebody sends this packet in the name of `from`; it arrives a link's delay from now.
  void inject(Time now, Rank from, Rank to, std::vector<std::byte> packet);
  /// All packets of an Enter event's delivery have come to the ingress port: by now their fate is known.
  /// Those that have passed arrive later.
  const Delivery& enter(Time now, const Event& event);
  /// The same, when the event has been noted: the delivery goes on, or is gone.
  void pass(const Event& event);
  /// What an Arrive event brings.
  Delivery take(const Event& event) { return deliveries_.take(event.index); }

 private:
  struct EgressPort {
    PortOptions options;
    Serialiser serialiser;
  };

  void send_to_group(Rank from, const std::shared_ptr<const WireBatch>& batch);
  void leave_host(Rank from, const WireBatch& batch);
  void send_batch(Rank from, Rank to, const std::shared_ptr<const WireBatch>& batch);
  void send_hostile(Rank from, Rank to, const WireBatch& batch, const LinkOptions& link);
  std::optional<Time> pass_link(Rank from, Rank to, std::optional<Time> left_host, std::size_t bytes,
                                bool& spike);
  std::optional<Time> pass_egress(Rank from, std::size_t wire_bytes);
  void deliver(Time at, Rank to, Delivery delivery);
  void deliver_each(std::span<const Time> arrivals, Rank to, Delivery delivery);

  Surroundings around_;
  ForcedLoss forced_loss_;
  Time now_;
  std::vector<Link> links_;                      // by from * ranks + to
  std::vector<EgressPort> egress_;               // by rank
  std::vector<IngressPort> ingress_;             // by rank
  DeliverySlots deliveries_;                     // of Arrive and Enter events
  std::vector<std::optional<Time>> departures_;  // scratch: of the packets of a batch, from their host
  std::vector<Time> arrivals_;                   // scratch: of the packets of a coalesced batch
};

}  // namespace optireduce::sim
