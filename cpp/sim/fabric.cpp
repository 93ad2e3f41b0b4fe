#include "sim/fabric.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "sim/hostile.h"

namespace optireduce::sim {
namespace {

/// Every port draws from its own stream, so that foreign packets do not change what else happens by chance.
std::uint64_t port_seed(std::uint64_t seed, Rank rank) {
  return Random(seed ^ (0xb10c'0000'0000'0000u + rank)).next();
}

std::vector<Background> backgrounds_of(Rank rank, const std::vector<Background>& all) {
  std::vector<Background> mine;
  for (const Background& background : all) {
    if (background.rank == rank) mine.push_back(background);
  }
  return mine;
}

}  // namespace

Fabric::Fabric(Surroundings around)
    : around_(around),
      forced_loss_(around.options),
      links_(std::size_t{around.options.ranks} * around.options.ranks) {
  const SimOptions& options = around.options;
  for (Rank rank = 0; rank < options.ranks; ++rank) {
    egress_.push_back({egress_of(options, rank), {}});
    ingress_.emplace_back(ingress_of(options, rank), backgrounds_of(rank, options.backgrounds),
                          port_seed(options.seed, rank));
  }
}

void Fabric::send(Time now, Rank from, const Transmit& transmit) {
  now_ = now;
  const auto batch = assemble(transmit, from, around_.options.ranks);
  if (transmit.group) return send_to_group(from, batch);
  for (const Rank to : transmit.to) {
    leave_host(from, *batch);
    send_batch(from, to, batch);
  }
}

/// Packets leave their host once, and the switch copies them for everybody, also for those who need them no
/// more. Every copy meets its own fate.
void Fabric::send_to_group(Rank from, const std::shared_ptr<const WireBatch>& batch) {
  leave_host(from, *batch);
  for (Rank to = 0; to < around_.options.ranks; ++to) {
    if (to == from) continue;
    if (!around_.options.is_outside_group(to, now_)) {
      send_batch(from, to, batch);
    } else {
      around_.counters.cut += batch->packets;
    }
  }
}

/// Fills departures_: when each packet has passed the egress port.
void Fabric::leave_host(Rank from, const WireBatch& batch) {
  around_.counters.sent += batch.packets;
  around_.counters.sent_bytes += batch.bytes.size();
  departures_.clear();
  if (egress_[from].options.whole_batches) {
    const std::size_t overhead = batch.packets * kWireOverheadBytes;
    departures_.assign(batch.packets, pass_egress(from, batch.bytes.size() + overhead));
    return;
  }
  for (std::uint32_t i = 0; i < batch.packets; ++i)
    departures_.push_back(pass_egress(from, batch.length_of(i) + kWireOverheadBytes));
}

/// What has left its host, to one rank.
void Fabric::send_batch(Rank from, Rank to, const std::shared_ptr<const WireBatch>& batch) {
  const LinkOptions& options = link_of(around_.options, from, to);
  const bool chosen = around_.random.chance(around_.options.coalesce);
  const bool coalesced = chosen || ingress_[to].takes_whole_batches();
  const Duration batch_jitter = around_.random.duration_up_to(options.jitter);
  bool spike = around_.random.chance(options.spike);
  Delivery together{batch, 0, from, true};
  arrivals_.clear();
  for (std::uint32_t i = 0; i < batch->packets; ++i) {
    const auto passed = pass_link(from, to, departures_[i], batch->length_of(i), spike);
    if (!passed) continue;
    if (forced_loss_.any() && forced_loss_.strikes(batch->packet(i), to, around_.nodes[to]->group())) {
      ++around_.counters.lost;
      continue;
    }
    const std::uint64_t bit = std::uint64_t{1} << i;
    if (around_.random.chance(options.duplicate)) {
      ++around_.counters.duplicated;
      deliver(*passed + options.delay + around_.random.duration_up_to(options.reorder_delay), to,
              {batch, bit, from, false});
    }
    const auto travelled = travel(options, around_.random, around_.counters);
    if (!travelled) continue;
    if (coalesced && *travelled == options.delay) {
      together.mask |= bit;
      arrivals_.push_back(*passed + *travelled + batch_jitter);
    } else {
      deliver(*passed + *travelled + around_.random.duration_up_to(options.jitter), to,
              {batch, bit, from, coalesced});
    }
  }
  if (together.mask != 0) deliver_each(arrivals_, to, std::move(together));
  send_hostile(from, to, *batch, options);
}

/// When a packet that has left its host then has passed the link; nothing if it does not get that far. A
/// spike begins when its batch comes to the link.
std::optional<Time> Fabric::pass_link(Rank from, Rank to, std::optional<Time> left_host, std::size_t bytes,
                                      bool& spike) {
  const LinkOptions& options = link_of(around_.options, from, to);
  if (!left_host) {
    ++around_.counters.queue_dropped;
    return std::nullopt;
  }
  if (around_.options.is_cut(from, to, *left_host)) {
    ++around_.counters.cut;
    return std::nullopt;
  }
  Link& link = links_[std::size_t{from} * around_.options.ranks + to];
  if (std::exchange(spike, false)) link.stall(*left_host + options.spike_delay);
  const auto passed = link.serialise(*left_host, bytes, options);
  if (!passed) ++around_.counters.queue_dropped;
  return passed;
}

std::optional<Time> Fabric::pass_egress(Rank from, std::size_t wire_bytes) {
  EgressPort& port = egress_[from];
  if (port.options.bits_per_second <= 0) return now_;
  return port.serialiser.pass(now_, wire_bytes, port.options);
}

/// Strangers are somewhere in the network: only the ingress port is before them.
void Fabric::send_hostile(Rank from, Rank to, const WireBatch& batch, const LinkOptions& link) {
  const HostileOptions& hostile = around_.options.hostile;
  if (hostile.forge + hostile.truncate + hostile.mangle + hostile.replay + hostile.tamper <= 0) return;
  for (std::uint32_t i = 0; i < batch.packets; ++i) {
    for (HostilePacket& packet : sabotage(batch.packet(i), to, around_.options, around_.random)) {
      ++around_.counters.hostile;
      const Time at = now_ + link.delay + packet.delay;
      deliver(at, to, {single_packet(std::move(packet.bytes)), 1, from, around_.random.chance(0.5)});
    }
  }
}

void Fabric::inject(Time now, Rank from, Rank to, std::vector<std::byte> packet) {
  now_ = now;
  ++around_.counters.hostile;
  deliver(now_ + link_of(around_.options, from, to).delay, to,
          {single_packet(std::move(packet)), 1, from, false});
}

/// A single packet comes to the receiver's side.
void Fabric::deliver(Time at, Rank to, Delivery delivery) {
  deliver_each({&at, 1}, to, std::move(delivery));
}

/// The packets of the delivery come to the receiver's side, each at its time, the last one last.
void Fabric::deliver_each(std::span<const Time> arrivals, Rank to, Delivery delivery) {
  const std::uint32_t slot = deliveries_.put(std::move(delivery));
  IngressPort& port = ingress_[to];
  if (!port.limited()) return around_.events.add(arrivals.back(), EventKind::Arrive, to, slot);
  const Delivery& waiting = deliveries_[slot];
  std::uint64_t left = port.takes_whole_batches() ? 0 : waiting.mask;
  if (port.takes_whole_batches()) port.expect_all(arrivals.back(), waiting, slot);
  for (const Time at : arrivals) {
    if (left == 0) break;
    const auto packet = static_cast<std::uint32_t>(std::countr_zero(left));
    left &= left - 1;
    port.expect(at, waiting.batch->length_of(packet), slot, packet);
  }
  around_.events.add(arrivals.back(), EventKind::Enter, to, slot);
}

const Delivery& Fabric::enter(Time now, const Event& event) {
  while (const auto passage = ingress_[event.rank].next(now, around_.counters)) {
    Delivery& delivery = deliveries_[passage->slot];
    if (passage->left) {
      delivery.left = *passage->left;
    } else {
      delivery.mask &= passage->packet == Passage::kAll ? 0 : ~(std::uint64_t{1} << passage->packet);
    }
  }
  return deliveries_[event.index];
}

void Fabric::pass(const Event& event) {
  const Delivery& delivery = deliveries_[event.index];
  if (delivery.mask == 0) {
    deliveries_.take(event.index);
  } else {
    around_.events.add(delivery.left, EventKind::Arrive, event.rank, event.index);
  }
}

}  // namespace optireduce::sim
