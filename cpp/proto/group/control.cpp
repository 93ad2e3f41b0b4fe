// The part of Group that takes control packets in: rejections, goodbyes, abstentions, views.
#include <algorithm>
#include <utility>

#include "group/group.h"

namespace optireduce {

void Group::handle_reject(Time now, const ReceivedRun& run) {
  const auto body = decode_reject(std::span(run.payload(0), run.header.length), config_.size);
  if (!body) {
    ++stats_.malformed_packets;
    return;
  }
  const bool known = run.operation >= progress_.completed() && run.operation < progress_.next_call();
  if (known) return fail_rejected(now, run.operation, *body);
  const bool ahead =
      run.operation >= progress_.next_call() && run.operation - progress_.next_call() < kMaxCallsAhead;
  if (!ahead) return;
  remember_rejection(run.operation, *body);
  operations_.erase_open(run.operation);  // nothing will come of packets that were early
}

/// A rank leaves when everybody has what it completed, or does not care: what is still missing from it will
/// not come.
void Group::handle_goodbye(Time now, Rank peer) {
  if (std::exchange(peers_[peer].left, true)) return;  // it is said more than once
  if (config_.elastic()) return changes_.suspect(now, bit_of(peer));
  std::vector<std::uint64_t> deserted;
  for (const auto& [key, operation] : operations_.open()) {
    const Rank place = operation->place_of(peer);
    if (place == kNoPlace || !operation->begun() || operation->setup().best_effort) continue;
    const bool contributes = operation->reduces() && operation->scatter().lacks(place);
    const bool decides = operation->gathers() && !operation->gather().complete(place);
    if (contributes || decides) deserted.push_back(key.first);
  }
  for (std::uint64_t number : deserted) {
    for (const Scope scope : {Scope::All, Scope::Row}) {
      if (Operation* operation = operations_.find_open(number, scope)) fail_deserted(now, *operation, peer);
    }
  }
  for (const auto& [_, operation] : operations_.open()) operation->remove_member(peer);
  complete_ready(now);
}

void Group::handle_abstention(Time now, const ReceivedRun& run) {
  Operation* operation = operations_.find_open(run.operation, run.header.scope);
  if (operation == nullptr) return;  // it is asked for again when this rank has begun
  operation->note_abstention(now, run.header.sender);
  advance(now, *operation);
}

void Group::handle_view_piece(Time now, const ReceivedRun& run) {
  if (!config_.elastic()) {
    ++stats_.malformed_packets;
    return;
  }
  const Rank from = run.header.sender;
  const auto whole = pieces_[from].add(std::span(run.payload(0), run.header.length));
  if (!whole) return;
  const auto message = decode_view_message(*whole, config_.size);
  if (!message) {
    ++stats_.malformed_packets;
    return;
  }
  changes_.handle(now, from, *message);
}

}  // namespace optireduce
