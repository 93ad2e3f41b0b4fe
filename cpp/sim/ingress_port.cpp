#include "sim/ingress_port.h"

namespace optireduce::sim {
namespace {

constexpr std::size_t kForeignBytes = 1'400 + kWireOverheadBytes;

}  // namespace

IngressPort::IngressPort(const PortOptions& options, const std::vector<Background>& backgrounds,
                         std::uint64_t seed)
    : options_(options), random_(seed) {
  for (const Background& background : backgrounds) {
    const double interval_ns = kForeignBytes * 8e9 / background.bits_per_second;
    add_foreign({background.begin, background.begin, background.end, interval_ns, 0});
  }
}

void IngressPort::expect(Time at, std::size_t bytes, std::uint32_t slot, std::uint32_t packet) {
  packets_.push({at, next_sequence_++, bytes + kWireOverheadBytes, slot, packet});
}

void IngressPort::expect_all(Time at, const Delivery& delivery, std::uint32_t slot) {
  const std::size_t wire_bytes = delivery.bytes() + delivery.packets() * kWireOverheadBytes;
  packets_.push({at, next_sequence_++, wire_bytes, slot, Passage::kAll, delivery.packets()});
}

std::optional<Passage> IngressPort::next(Time now, Counters& counters) {
  if (packets_.empty() || packets_.top().at > now) return std::nullopt;
  const Packet packet = packets_.top();
  packets_.pop();
  pass_foreign(packet.at, counters);
  const auto left = pass(packet.at, packet.wire_bytes);
  if (!left) counters.queue_dropped += packet.packets;
  return Passage{packet.slot, packet.packet, left};
}

/// Draws when the next foreign packet comes, if there is another.
void IngressPort::add_foreign(Foreign foreign) {
  const double place = static_cast<double>(foreign.sent++) + random_.uniform();
  foreign.at = foreign.begin + Duration{static_cast<std::int64_t>(place * foreign.interval_ns)};
  if (foreign.at < foreign.end) foreign_.push(foreign);
}

void IngressPort::pass_foreign(Time until, Counters& counters) {
  while (!foreign_.empty() && foreign_.top().at <= until) {
    const Foreign foreign = foreign_.top();
    foreign_.pop();
    ++counters.foreign;
    if (!pass(foreign.at, kForeignBytes)) ++counters.foreign_dropped;
    add_foreign(foreign);
  }
}

std::optional<Time> IngressPort::pass(Time at, std::size_t wire_bytes) {
  return serialiser_.pass(at, wire_bytes, options_);
}

}  // namespace optireduce::sim
