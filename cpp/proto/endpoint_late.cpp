// The part of Endpoint that fetches what was missing at a deadline, and keeps what others may still fetch.
#include "proto/endpoint.h"

namespace optireduce {
namespace {

/// An owner that answers so many requests with nothing does not have it any more, or is gone.
constexpr int kMostRequestsInVain = 12;
/// Updates older than this are left to the resync of the parameters.
constexpr std::uint64_t kLateOperations = 128;

}  // namespace

void Endpoint::request_late(Time now) {
  if (!wants_told_ && !late_.wants_any()) return;
  if (completed_ > kLateOperations) late_.forget_below(completed_ - kLateOperations);
  std::vector<std::pair<std::uint64_t, Rank>> hopeless;
  late_.for_each([&](std::uint64_t operation, Rank owner, const InboundFlow& flow) {
    if (!peers_[owner].present() || flow.requests_in_vain() > kMostRequestsInVain) {
      hopeless.emplace_back(operation, owner);
    } else {
      request_late(now, operation, owner, flow);
    }
  });
  for (const auto& [operation, owner] : hopeless) late_.give_up(operation, owner);
  if (std::exchange(wants_told_, late_.wants_any()) && !wants_told_) tell_wants_nothing();
}

/// So that owners can free what they have kept for us.
void Endpoint::tell_wants_nothing() {
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer != config_.rank && peers_[peer].present())
      controls_.push_back({PacketType::Status, peer, 0, {}, {}, 0});
  }
}

void Endpoint::request_late(Time now, std::uint64_t operation, Rank owner, const InboundFlow& flow) {
  const RepairTimers timers = peers_[owner].rtt.timers(config_.reorder_delay);
  const Time due = flow.request_due(timers);
  if (due <= now) controls_.push_back({PacketType::Request, owner, operation, PacketType::Reduced, {}, 0});
  schedule(due <= now ? now + timers.retry : due);
}

void Endpoint::note_wants(Peer& peer, bool wants) {
  if (std::exchange(peer.wants, wants) && !wants) release_archive();
}

bool Endpoint::anybody_wants() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return peer.wants && peer.present(); });
}

void Endpoint::release_archive() {
  archive_.forget_below(completed_everywhere(), !anybody_wants());
}

}  // namespace optireduce
