// The part of Grid between its lanes and the driver: packets, timers, and what is asked of all of them.
#include <algorithm>
#include <span>
#include <string>

#include "proto/grid.h"
#include "proto/grid_report.h"

namespace optireduce {

// ---- Packets and timers

/// Packets of several lanes may have come in one piece.
void Grid::handle_datagram(Time now, Datagram datagram) {
  const std::uint32_t stride = std::max<std::uint32_t>(1, std::min(datagram.segment_bytes, datagram.bytes));
  const auto lane_at = [&](std::uint32_t at) {
    return lane_of({datagram.buffer.data() + at, std::min(stride, datagram.bytes - at)});
  };
  for (std::uint32_t begin = datagram.begin; begin < datagram.bytes;) {
    std::uint32_t end = begin + stride;
    while (end < datagram.bytes && lane_at(end) == lane_at(begin)) end += stride;
    end = std::min(end, datagram.bytes);
    forward(now, datagram.from, datagram, begin, end);
    begin = end;
  }
  advance(now);
}

void Grid::forward(Time now, Rank from, const Datagram& datagram, std::uint32_t begin, std::uint32_t end) {
  const std::uint32_t stride = std::max<std::uint32_t>(1, std::min(datagram.segment_bytes, datagram.bytes));
  const std::span first(datagram.buffer.data() + begin, std::min(stride, end - begin));
  const std::uint8_t number = lane_of(first);
  if (number >= kLanes || !lanes_[number].has(from)) {
    const Decoded decoded = decode(first, config_.seal, config_.size);
    const bool forged = !decoded.header && decoded.error == HeaderError::BadSeal;
    (forged ? own_.forged_packets : own_.invalid_packets) += (end - begin + stride - 1) / stride;
    return;
  }
  Lane& lane = lanes_[number];
  Endpoint& endpoint = number == kFlat ? flat() : *lane.endpoint;
  lane.stirred = true;
  endpoint.handle_datagram(now, {lane.places[from], datagram.buffer, end, datagram.segment_bytes, begin});
}

void Grid::handle_timeout(Time now) {
  for (Lane& lane : lanes_) {
    if (!lane.endpoint || now < lane.endpoint->poll_timeout()) continue;
    lane.stirred = true;
    lane.endpoint->handle_timeout(now);
  }
  advance(now);
}

/// What is nearer to its end goes first.
bool Grid::poll_transmit(Time now, Transmit& out) {
  do {
    for (const LaneNumber number : {kGather, kAcross, kScatter, kFlat}) {
      Lane& lane = lanes_[number];
      if (!lane.endpoint || !lane.stirred) continue;
      if (lane.endpoint->poll_transmit(now, out)) {
        for (Rank& to : out.to) to = lane.members[to];
        return true;
      }
      lane.stirred = false;
    }
  } while (advance(now));  // an operation may be over with its last packet, and send in the next lane
  out.clear();
  return false;
}

Time Grid::poll_timeout() const {
  Time first = Time::never();
  for (const Lane& lane : lanes_) {
    if (lane.endpoint) first = std::min(first, lane.endpoint->poll_timeout());
  }
  return first;
}

std::optional<Report> Grid::poll_completion() {
  if (completions_.empty()) return std::nullopt;
  Report report = std::move(completions_.front());
  completions_.pop_front();
  return report;
}

std::optional<MembershipEvent> Grid::poll_event() {
  if (events_.empty()) return std::nullopt;
  const MembershipEvent event = events_.front();
  events_.pop_front();
  return event;
}

// ---- Beginning and end

void Grid::ping_absent_peers(Time now) {
  for (Lane& lane : lanes_) {
    if (!lane.endpoint) continue;
    lane.endpoint->ping_absent_peers(now);
    lane.stirred = true;
  }
}

void Grid::ping_unfinished_peers() {
  for (Lane& lane : lanes_) {
    if (!lane.endpoint) continue;
    lane.endpoint->ping_unfinished_peers();
    lane.stirred = true;
  }
}

void Grid::say_goodbye(Time now) {
  for (Lane& lane : lanes_) {
    if (!lane.endpoint) continue;
    lane.endpoint->say_goodbye(now);
    lane.stirred = true;
  }
  take_completions(now);
  for (auto& [sequence, operation] : operations_) {
    if (operation.failed) continue;  // the others wait for their turn in a lane that has closed
    operation.report.error = ErrorCode::Closed;
    operation.report.message = "all-reduce " + std::to_string(operation.number) + " of " +
                               describe(operation.descriptor) +
                               ": the group was closed before the operation was complete";
    fail(now, sequence, operation);
  }
  operations_.clear();
}

bool Grid::everyone_caught_up() const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return !lane.endpoint || lane.endpoint->everyone_caught_up(); });
}

// ---- Getters

bool Grid::heard(Rank peer) const {
  return std::any_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
    return lane.endpoint && lane.has(peer) && lane.endpoint->heard(lane.places[peer]);
  });
}

bool Grid::idle() const {
  return operations_.empty() && (!lanes_[kFlat].endpoint || lanes_[kFlat].endpoint->idle());
}

Stats Grid::stats() const {
  Stats total = own_;
  for (std::uint8_t lane = 0; lane < kLanes; ++lane) {
    if (lanes_[lane].endpoint) add_stats(total, lanes_[lane].endpoint->stats(), lane == kFlat);
  }
  return total;
}

PolicySnapshot Grid::policy(std::size_t bytes) const {
  PolicySnapshot total = lanes_[kScatter].endpoint->policy(bytes);
  add_policy(total, lanes_[kAcross].endpoint->policy(bytes / row_size_));
  add_policy(total, lanes_[kGather].endpoint->policy(bytes));
  return total;
}

bool Grid::wants_late_packets() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return lane.endpoint && lane.endpoint->wants_late_packets(); });
}

std::size_t Grid::archived_bytes() const {
  std::size_t bytes = 0;
  for (const Lane& lane : lanes_) bytes += lane.endpoint ? lane.endpoint->archived_bytes() : 0;
  return bytes;
}

std::uint64_t Grid::completed(std::uint8_t lane) const {
  const bool exists = lane < kLanes && lanes_[lane].endpoint;
  return exists ? lanes_[lane].endpoint->completed(lane) : 0;
}

Rank Grid::lane_ranks(std::uint8_t lane) const {
  return lane < kLanes ? static_cast<Rank>(lanes_[lane].members.size()) : Rank{1};
}

}  // namespace optireduce
