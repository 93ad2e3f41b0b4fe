#include "sim/node.h"

#include <bit>
#include <utility>

namespace optireduce::sim {
namespace {

std::vector<Pause> pauses_of(Rank rank, const std::vector<Pause>& all) {
  std::vector<Pause> mine;
  for (const Pause& pause : all) {
    if (pause.rank == rank) mine.push_back(pause);
  }
  return mine;
}

}  // namespace

Node::Node(const EndpointConfig& config, const std::vector<Pause>& pauses)
    : pauses_(pauses_of(config.rank, pauses)), endpoint_(config, pool_) {}

Time Node::runs_at(Time now) const {
  for (bool moved = true; moved;) {  // pauses may overlap or follow each other
    moved = false;
    for (const Pause& pause : pauses_) {
      if (now >= pause.begin && now < pause.end) {
        now = pause.end;
        moved = true;
      }
    }
  }
  return now;
}

void Node::receive(Delivery delivery, std::size_t buffer_bytes, Counters& counters) {
  const std::size_t bytes = delivery.bytes();
  if (buffer_bytes > 0 && inbox_bytes_ + bytes > buffer_bytes) {
    counters.buffer_dropped += delivery.packets();
    return;
  }
  inbox_bytes_ += bytes;
  inbox_.push_back(std::move(delivery));
}

void Node::read_inbox(Time now, Counters& counters) {
  while (!inbox_.empty()) {
    const Delivery& first = inbox_.front();
    const bool coalesced = first.coalesced;
    const Rank from = first.from;
    DatagramBuilder builder(pool_, from, coalesced ? WireBatch::kMaxBytes : first.batch->segment_bytes);
    do {
      const Delivery delivery = std::move(inbox_.front());
      inbox_.pop_front();
      for (std::uint64_t left = delivery.mask; left != 0; left &= left - 1) {
        const auto packet = delivery.batch->packet(static_cast<std::uint32_t>(std::countr_zero(left)));
        if (!builder.fits(packet.size())) hand_over(now, builder.take());
        builder.add(packet);
        ++counters.delivered;
      }
    } while (coalesced && !inbox_.empty() && inbox_.front().coalesced && inbox_.front().from == from);
    hand_over(now, builder.take());
  }
  inbox_bytes_ = 0;
}

void Node::hand_over(Time now, Datagram datagram) {
  endpoint_.handle_datagram(now, std::move(datagram));
}

}  // namespace optireduce::sim
