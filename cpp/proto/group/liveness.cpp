#include "group/liveness.h"

#include <algorithm>

namespace optireduce {

/// A packet may have been overtaken on the way, or recorded by somebody and sent again: then it is no news.
/// The operations say so first, because timestamps come around again in 71 minutes.
bool Liveness::note_header(Time now, const Header& header) {
  Peer& peer = core_.peers[header.sender];
  note_wishes(now, peer, header.flags);  // to answer once too often does no harm
  const std::uint64_t completed = widen(header.completed, peer.completed);
  if (completed < peer.completed) return false;
  const bool news = !peer.heard || completed > peer.completed || not_before(header.timestamp, peer.newest);
  if (news) members_.heard(now, header);
  // Idle for longer than half of the clock's range: the old echo says nothing about the new one.
  if (peer.heard && now - peer.newest_at > Duration::millis(1'000'000)) peer.echoed = false;
  if ((header.flags & kFlagEcho) != 0) note_echo(now, peer, header);
  if (!news) return false;
  peer.heard = true;
  peer.last_heard = peer.newest_at = now;
  peer.newest = header.timestamp;
  peer.oldest = header.oldest;
  peer.window.set_incast(header.incast, core_.config.size - 1u);
  if ((header.flags & kFlagGoOn) != 0) peer.window.on_go_on(peer.echo);
  if (completed <= peer.completed) return false;
  peer.completed = std::min(completed, core_.progress.next_call() + kMaxCallsAhead);
  members_.advanced(header, peer.completed);
  return true;
}

/// What the peer has seen of ours is no longer under way; how long that took tells about queues.
void Liveness::note_echo(Time now, Peer& peer, const Header& header) {
  const bool sent = not_before(static_cast<std::uint32_t>(core_.last_timestamp), header.echo);
  if (!sent || (peer.echoed && not_before(peer.echo, header.echo))) return;
  peer.echo = header.echo;
  peer.echoed = true;
  peer.note_answer();
  peer.window.on_arrived(header.echo);
  // Nothing comes back in a grid's first stage.
  if (!core_.config.rows.empty()) peer.window.on_go_on(header.echo);
  constexpr std::uint16_t kTooLong = 65'535;
  const Duration round_trip = since(header.echo, now) - Duration::micros(header.hold);
  if (header.hold == kTooLong || round_trip.ns <= 0) return;
  peer.window.on_round_trip(now, round_trip);
  peer.rtt.sample(round_trip);
}

void Liveness::note_wishes(Time now, Peer& peer, std::uint8_t flags) {
  const Time soon = now + core_.config.path.answer_delay;
  if ((flags & kFlagAnswer) != 0) peer.answer_due = std::min(peer.answer_due, soon);
  if ((flags & kFlagHeld) != 0) peer.go_on_due = std::min(peer.go_on_due, soon);
  const Time due = std::min(peer.answer_due, peer.go_on_due);
  if (due != Time::never()) core_.timers.set_earlier({TimerKind::Answer}, due);
}

void Liveness::answer_peers(Time now) {
  const bool roomy = core_.pool.bytes_in_use() < core_.config.early_bytes / 2;
  Time next = Time::never();
  for (Rank rank = 0; rank < core_.config.size; ++rank) {
    Peer& peer = core_.peers[rank];
    const bool go_on = peer.go_on_due <= now;
    if (go_on || peer.answer_due <= now) {
      core_.tell(PacketType::Status, rank, go_on && roomy ? kFlagGoOn : std::uint8_t{0});
      peer.answer_due = Time::never();
      if (go_on) peer.go_on_due = Time::never();
    }
    next = std::min({next, peer.answer_due, peer.go_on_due});
  }
  core_.timers.set({TimerKind::Answer}, next);
}

/// A peer that answers nothing while we could send on may have missed what asked for an answer: it is asked
/// again. One that does not answer that either has lost everything, or is gone.
void Liveness::check_stuck_peers(Time now) {
  constexpr Duration kLeastStuck = Duration::millis(50);
  Time next = Time::never();
  for (Rank rank = 0; rank < core_.config.size; ++rank) {
    Peer& peer = core_.peers[rank];
    if (peer.stuck_since == Time::never()) continue;
    const Time asks_at = peer.stuck_since + peer.rtt.repair_timeout();
    const Time gives_up_at = peer.stuck_since + std::max(kLeastStuck, peer.rtt.repair_timeout() * 4);
    if (gives_up_at <= now) {
      peer.window.on_silence(now);
      peer.stuck_since = Time::never();
      peer.silent = true;
      continue;
    }
    if (asks_at <= now && peer.pinged_at < peer.stuck_since) {
      peer.pinged_at = now;
      core_.tell(PacketType::Ping, rank);
    }
    next = std::min(next, asks_at > now ? asks_at : gives_up_at);
  }
  core_.timers.set({TimerKind::Stuck}, next);
}

void Liveness::send_status() {
  for (Rank rank = 0; rank < core_.config.size; ++rank) {
    const Peer& peer = core_.peers[rank];
    if (peer.present() && peer.told < core_.progress.completed()) core_.tell(PacketType::Status, rank);
  }
}

void Liveness::ping_silent_peers() {
  for (Rank rank = 0; rank < core_.config.size; ++rank) {
    if (rank != core_.config.rank && !core_.peers[rank].heard) core_.tell(PacketType::Ping, rank);
  }
}

void Liveness::ping_unfinished_peers() {
  for (Rank rank = 0; rank < core_.config.size; ++rank) {
    const Peer& peer = core_.peers[rank];
    if (peer.present() && peer.completed < core_.progress.completed()) core_.tell(PacketType::Ping, rank);
  }
}

}  // namespace optireduce
