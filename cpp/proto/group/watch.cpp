#include "group/watch.h"

#include <algorithm>
#include <utility>

namespace optireduce {

void Watch::begin(Time now) {
  if (looking_ || core_.config.elastic() || core_.config.size == 1) return;
  looking_ = true;
  core_.timers.set({TimerKind::Watch}, now + between_looks());
}

void Watch::set_outside(Time now, Duration limit) {
  const Duration before = this->limit();
  outside_ = std::min(limit, core_.config.exact_silence);
  if (!is_outside()) return;
  begin(now);
  if (this->limit() >= before) return;
  counts_from_ = now;  // nobody was asked as often as the new limit wants
  if (looking_) core_.timers.set_earlier({TimerKind::Watch}, now + between_looks());
}

void Watch::stood_still(Time now, Duration how_long) {
  // Shorter ones happen all the time on a busy machine. The driver's clock leaves them out.
  if (how_long >= limit() / 8) counts_from_ = now;
}

void Watch::look(Time now) {
  Time next = now + between_looks();
  std::vector<Rank> lost;
  for (const Peer& peer : core_.peers) {
    Time& awaited = awaited_since_[peer.rank];
    if (!is_awaited(peer)) {
      awaited = Time::never();
      continue;
    }
    // It may have been awaited since the last look, which nobody noticed.
    if (awaited == Time::never()) awaited = now - between_looks();
    const Time silent_since = std::max({peer.newest_at, awaited, counts_from_});
    if (now >= silent_since + limit()) {
      lost.push_back(peer.rank);
      continue;
    }
    next = std::min(next, silent_since + limit());
    if (now >= silent_since + between_looks()) core_.tell(PacketType::Ping, peer.rank);
  }
  looking_ = is_outside() || core_.progress.completed() < core_.progress.next_call();
  if (looking_) core_.timers.set({TimerKind::Watch}, next);
  for (const Rank rank : lost) lose(now, rank, true);
}

/// Ranks of a grid that are not linked to us are watched by those that are, which tell us.
bool Watch::is_awaited(const Peer& peer) const {
  if (!peer.present()) return false;
  if (is_outside()) return true;
  for (const auto& [_, operation] : core_.operations.open()) {
    if (needs(*operation, peer.rank)) return true;
  }
  if (core_.waiting.empty() || peer.completed > members_.least_completed()) return false;
  return core_.config.needs_everybody(core_.waiting.front().descriptor.bounded);
}

bool Watch::needs(const Operation& operation, Rank rank) const {
  const Rank place = operation.place_of(rank);
  if (place == kNoPlace || !operation.begun()) return false;
  if (!core_.config.needs_everybody(operation.descriptor().bounded)) return false;
  return operation.exchange().lacks(place) || operation.exchange().lacks_decisions_from(place);
}

/// The others go on as if it had left. If that is us, they have done so.
void Watch::lose(Time now, Rank rank, bool tell) {
  Peer& peer = core_.peers[rank];
  if (core_.config.elastic() || std::exchange(peer.left, true)) return;
  peer.lost = true;
  if (tell) calls_.announce_lost(rank);
  end_deserted(now, rank);
}

void Watch::left(Time now, Rank rank) {
  const bool again = std::exchange(core_.peers[rank].left, true);  // it is said more than once
  if (!again) end_deserted(now, rank);
}

void Watch::end_deserted(Time now, Rank rank) {
  const bool ours = rank == core_.config.rank;
  std::vector<std::pair<std::uint64_t, Descriptor>> deserted;
  for (const auto& [number, operation] : core_.operations.open()) {
    if (needs(*operation, rank) || (ours && operation->begun()))
      deserted.emplace_back(number, operation->descriptor());
  }
  for (const LocalCall& call : core_.waiting) {
    if (core_.config.needs_everybody(call.descriptor.bounded))
      deserted.emplace_back(call.number, call.descriptor);
  }
  for (const auto& [number, descriptor] : deserted) {
    const bool over = number < core_.progress.completed() || core_.progress.has_failed(number);
    if (!over) calls_.reject_deserted(now, number, descriptor, rank);
  }
  for (const auto& [_, operation] : core_.operations.open()) operation->exchange().remove_member(rank);
  calls_.complete_ready(now);
}

}  // namespace optireduce
