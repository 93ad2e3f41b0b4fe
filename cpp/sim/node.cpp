#include "sim/node.h"

#include <algorithm>
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

Clock clock_of(Rank rank, const SimOptions& options) {
  const auto offset = options.clock_offset.find(rank);
  const auto drift = options.clock_drift.find(rank);
  return {options.begin, offset == options.clock_offset.end() ? Duration{} : offset->second,
          drift == options.clock_drift.end() ? 0 : drift->second};
}

}  // namespace

Node::Node(const GroupConfig& config, const SimOptions& options)
    : config_(config),
      pauses_(pauses_of(config.rank, options.pauses)),
      clock_(clock_of(config.rank, options)),
      group_(std::make_unique<Group>(config, pool_)) {}

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

void Node::note_run(Time now) {
  Time begin = Time::never(), end;
  for (const Pause& pause : pauses_) {
    if (pause.begin <= ran_at_ || pause.end > now) continue;
    begin = std::min(begin, pause.begin);
    end = std::max(end, pause.end);
  }
  if (begin < end) group_->stood_still(clock(now), end - begin);
  ran_at_ = now;
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
  const Time shown = clock(now);
  while (!inbox_.empty()) {
    const bool coalesced = inbox_.front().coalesced;
    const Rank from = inbox_.front().from;
    DatagramBuilder builder(pool_, from, joinable_bytes());
    do {
      const Delivery delivery = std::move(inbox_.front());
      inbox_.pop_front();
      for (std::uint64_t left = delivery.mask; left != 0; left &= left - 1) {
        const auto packet = delivery.batch->packet(static_cast<std::uint32_t>(std::countr_zero(left)));
        if (!builder.fits(packet.size())) group_->handle_datagram(shown, builder.take());
        builder.add(packet);
        ++counters.delivered;
      }
    } while (coalesced && !inbox_.empty() && inbox_.front().coalesced && inbox_.front().from == from);
    group_->handle_datagram(shown, builder.take());
  }
  inbox_bytes_ = 0;
}

/// What the first deliveries can fill of one datagram. A buffer of the largest size for each would take most
/// of the memory, and of the time, of a large group.
std::size_t Node::joinable_bytes() const {
  const Delivery& first = inbox_.front();
  if (!first.coalesced) return first.batch->segment_bytes;
  std::size_t bytes = 0;
  for (const Delivery& delivery : inbox_) {
    if (!delivery.coalesced || delivery.from != first.from) break;
    bytes += delivery.bytes();
    if (bytes >= WireBatch::kMaxBytes) return WireBatch::kMaxBytes;
  }
  return bytes;
}

void Node::crash() {
  crashed_ = true;
  inbox_.clear();
  inbox_bytes_ = 0;
  owed = 0;
}

void Node::restart() {
  constexpr Duration kOtherHost = Duration::millis(3'000'000);  // its timestamps seem to be older
  if (!crashed_) return;
  crashed_ = false;
  clock_ = clock_.shifted(kOtherHost);
  ++config_.incarnation;
  group_ = std::make_unique<Group>(config_, pool_);
  timer = wake = Time::never();
  called.clear();
  only_call = Time::never();
}

}  // namespace optireduce::sim
