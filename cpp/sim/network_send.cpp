// The way of a packet: its host's egress port, the link, the receiver's ingress port.
#include <algorithm>
#include <bit>
#include <utility>

#include "sim/hostile.h"
#include "sim/network.h"

namespace optireduce::sim {

void Network::send(Rank from, const Transmit& transmit) {
  const auto batch = assemble(transmit, from, options_.ranks);
  if (transmit.group) return send_to_group(from, batch);
  for (const Rank to : transmit.to) {
    leave_host(from, *batch);
    send_batch(from, to, batch);
  }
}

/// Packets leave their host once, and the switch copies them for everybody, also for those who need them no
/// more. Every copy meets its own fate.
void Network::send_to_group(Rank from, const std::shared_ptr<const WireBatch>& batch) {
  leave_host(from, *batch);
  for (Rank to = 0; to < options_.ranks; ++to) {
    if (to == from) continue;
    if (!options_.is_outside_group(to, now_)) {
      send_batch(from, to, batch);
    } else {
      counters_.cut += batch->packets;
    }
  }
}

/// Fills departures_: when each packet has passed the egress port.
void Network::leave_host(Rank from, const WireBatch& batch) {
  counters_.sent += batch.packets;
  counters_.sent_bytes += batch.bytes.size();
  departures_.clear();
  for (std::uint32_t i = 0; i < batch.packets; ++i)
    departures_.push_back(pass_egress(from, batch.length_of(i)));
}

/// What has left its host, to one rank.
void Network::send_batch(Rank from, Rank to, const std::shared_ptr<const WireBatch>& batch) {
  const LinkOptions& options = link_of(options_, from, to);
  const bool coalesced = random_.chance(options_.coalesce);
  const Duration batch_jitter = random_.duration_up_to(options.jitter);
  bool spike = random_.chance(options.spike);
  Delivery together{batch, 0, from, true};
  arrivals_.clear();
  for (std::uint32_t i = 0; i < batch->packets; ++i) {
    const auto passed = pass_link(from, to, departures_[i], batch->length_of(i), spike);
    if (!passed) continue;
    if (forced_loss_.any() && forced_loss_.strikes(batch->packet(i), to, nodes_[to]->group())) {
      ++counters_.lost;
      continue;
    }
    const std::uint64_t bit = std::uint64_t{1} << i;
    if (random_.chance(options.duplicate)) {
      ++counters_.duplicated;
      deliver(*passed + options.delay + random_.duration_up_to(options.reorder_delay), to,
              {batch, bit, from, false});
    }
    const auto travelled = travel(options, random_, counters_);
    if (!travelled) continue;
    if (coalesced && *travelled == options.delay) {
      together.mask |= bit;
      arrivals_.push_back(*passed + *travelled + batch_jitter);
    } else {
      deliver(*passed + *travelled + random_.duration_up_to(options.jitter), to,
              {batch, bit, from, coalesced});
    }
  }
  if (together.mask != 0) deliver_each(arrivals_, to, std::move(together));
  send_hostile(from, to, *batch, options);
}

/// When a packet that has left its host then has passed the link; nothing if it does not get that far. A
/// spike begins when its batch comes to the link.
std::optional<Time> Network::pass_link(Rank from, Rank to, std::optional<Time> left_host, std::size_t bytes,
                                       bool& spike) {
  const LinkOptions& options = link_of(options_, from, to);
  if (!left_host) {
    ++counters_.queue_dropped;
    return std::nullopt;
  }
  if (options_.is_cut(from, to, *left_host)) {
    ++counters_.cut;
    return std::nullopt;
  }
  Link& link = links_[std::size_t{from} * options_.ranks + to];
  if (std::exchange(spike, false)) link.stall(*left_host + options.spike_delay);
  const auto passed = link.serialise(*left_host, bytes, options);
  if (!passed) ++counters_.queue_dropped;
  return passed;
}

std::optional<Time> Network::pass_egress(Rank from, std::size_t bytes) {
  EgressPort& port = egress_[from];
  const double rate = port.options.bits_per_second;
  if (rate <= 0) return now_;
  return port.serialiser.pass(now_, bytes + kWireOverheadBytes, rate, port.options.queue_bytes);
}

/// Strangers are somewhere in the network: only the ingress port is before them.
void Network::send_hostile(Rank from, Rank to, const WireBatch& batch, const LinkOptions& link) {
  const HostileOptions& hostile = options_.hostile;
  if (hostile.forge + hostile.truncate + hostile.mangle + hostile.replay + hostile.tamper <= 0) return;
  for (std::uint32_t i = 0; i < batch.packets; ++i) {
    for (HostilePacket& packet : sabotage(batch.packet(i), to, options_, random_)) {
      ++counters_.hostile;
      const Time at = now_ + link.delay + packet.delay;
      deliver(at, to, {single_packet(std::move(packet.bytes)), 1, from, random_.chance(0.5)});
    }
  }
}

void Network::inject(Rank from, Rank to, std::vector<std::byte> packet) {
  ++counters_.hostile;
  deliver(now_ + link_of(options_, from, to).delay, to, {single_packet(std::move(packet)), 1, from, false});
}

/// A single packet comes to the receiver's side.
void Network::deliver(Time at, Rank to, Delivery delivery) {
  deliver_each({&at, 1}, to, std::move(delivery));
}

/// The packets of the delivery come to the receiver's side, each at its time, the last one last.
void Network::deliver_each(std::span<const Time> arrivals, Rank to, Delivery delivery) {
  const std::uint32_t slot = deliveries_.put(std::move(delivery));
  IngressPort& port = ingress_[to];
  if (!port.limited()) return events_.add(arrivals.back(), EventKind::Arrive, to, slot);
  const Delivery& waiting = deliveries_[slot];
  std::uint64_t left = waiting.mask;
  for (const Time at : arrivals) {
    const auto packet = static_cast<std::uint32_t>(std::countr_zero(left));
    left &= left - 1;
    port.expect(at, waiting.batch->length_of(packet), slot, packet);
  }
  events_.add(arrivals.back(), EventKind::Enter, to, slot);
}

/// All packets of a delivery have come to the ingress port: by now their fate is known.
void Network::enter(const Event& event) {
  while (const auto passage = ingress_[event.rank].next(now_, counters_)) {
    Delivery& delivery = deliveries_[passage->slot];
    if (passage->left) {
      delivery.left = *passage->left;
    } else {
      delivery.mask &= ~(std::uint64_t{1} << passage->packet);
    }
  }
  const Delivery& delivery = deliveries_[event.index];
  note(EventKind::Enter, event.rank, delivery.from, delivery.mask);
  if (delivery.mask == 0) {
    deliveries_.take(event.index);
  } else {
    events_.add(delivery.left, EventKind::Arrive, event.rank, event.index);
  }
}

}  // namespace optireduce::sim
