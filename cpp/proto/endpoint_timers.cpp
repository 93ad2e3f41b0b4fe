// The part of Endpoint that acts when time has passed: asks for what is missing, answers, and looks for peers
// that do not.
#include "proto/endpoint.h"

namespace optireduce {

void Endpoint::handle_timeout(Time now) {
  if (now < next_timeout_) return;
  next_timeout_ = Time::never();
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, _] : operations_) numbers.push_back(number);
  for (std::uint64_t number : numbers) {
    if (Operation* operation = find(number)) check_deadlines(now, *operation);
    if (Operation* operation = find(number)) request_missing(now, *operation);
  }
  request_late(now);
  answer_if_due(now);
  check_stuck_peers(now);
  send_status_if_due(now);
}

/// Who waits for reduced shards only cannot know whose contribution their owners lack: it hears the owners'
/// verdict before its own.
Time Endpoint::give_up_time(const Operation& operation) const {
  return operation.waits_for_contributions() ? operation.deadline()
                                             : operation.deadline() + config_.repair_max;
}

void Endpoint::request_missing(Time now, Operation& operation) {
  if (operation.handed_over || (!operation.repairs() && operation.bound())) return;
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer == config_.rank || peers_[peer].left || (operation.bound() && peers_[peer].absent)) continue;
    if (operation.owned().waits_for(peer)) request_flow(now, operation, peer, PacketType::Contribution);
    request_flow(now, operation, peer, PacketType::Reduced);
  }
}

void Endpoint::request_flow(Time now, Operation& operation, Rank peer, PacketType wanted) {
  const InboundFlow& flow =
      wanted == PacketType::Contribution ? operation.owned().flow(peer) : operation.foreign(peer).flow();
  const RepairTimers timers = peers_[peer].rtt.timers(config_.reorder_delay);
  const Time due = flow.request_due(timers);
  if (due <= now) {
    controls_.push_back({PacketType::Request, peer, operation.number(), wanted, {}, 0});
    schedule(now + timers.retry);
  } else {
    schedule(due);
  }
}

void Endpoint::send_status_if_due(Time now) {
  if (now < status_due_) return schedule(status_due_);
  status_due_ = Time::never();
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer != config_.rank && !peers_[peer].left && peers_[peer].told < completed_) {
      controls_.push_back({PacketType::Status, peer, 0, {}, {}, 0});
    }
  }
}

void Endpoint::answer_if_due(Time now) {
  for (Rank rank = 0; rank < config_.size; ++rank) {
    Peer& peer = peers_[rank];
    const bool go_on = peer.go_on_due <= now;
    if (go_on || peer.answer_due <= now) {
      const std::uint8_t flags = go_on && early_.roomy(rank) ? kFlagGoOn : std::uint8_t{0};
      controls_.push_back({PacketType::Status, rank, 0, {}, {}, flags});
      peer.answer_due = Time::never();
      if (go_on) peer.go_on_due = Time::never();
    }
    schedule(std::min(peer.answer_due, peer.go_on_due));
  }
}

/// A peer that answers nothing while we could send on may have missed what asked for an answer: it is asked
/// again. One that does not answer that either has lost everything, or is gone.
void Endpoint::check_stuck_peers(Time now) {
  for (Rank rank = 0; rank < config_.size; ++rank) {
    Peer& peer = peers_[rank];
    if (peer.stuck_since == Time::never()) continue;
    const Time asks_at = peer.stuck_since + peer.rtt.repair_timeout();
    const Time gives_up_at = peer.stuck_since + silence_limit(peer);
    if (gives_up_at <= now) {
      peer.window.on_silence(now);
      peer.stuck_since = Time::never();
      peer.silent = true;
    } else if (asks_at <= now && peer.pinged_at < peer.stuck_since) {
      peer.pinged_at = now;
      controls_.push_back({PacketType::Ping, rank, 0, {}, {}, 0});
    }
    if (peer.stuck_since != Time::never()) schedule(asks_at > now ? asks_at : gives_up_at);
  }
}

}  // namespace optireduce
