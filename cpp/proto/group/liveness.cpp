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
  const bool echoes = (header.flags & kFlagEcho) != 0 &&
                      peer.note_echo(now, header, static_cast<std::uint32_t>(core_.last_timestamp));
  // Nothing comes back in a grid's first stage.
  if (echoes && !core_.config.rows.empty()) peer.window.on_go_on(header.echo);
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
  for (Peer& peer : core_.peers) {
    const bool go_on = peer.go_on_due <= now;
    if (go_on || peer.answer_due <= now) {
      core_.tell(PacketType::Status, peer.rank, go_on && roomy ? kFlagGoOn : std::uint8_t{0});
      peer.answer_due = Time::never();
      if (go_on) peer.go_on_due = Time::never();
    }
    next = std::min({next, peer.answer_due, peer.go_on_due});
  }
  core_.timers.set({TimerKind::Answer}, next);
}

void Liveness::check_stuck_peers(Time now) {
  Time next = Time::never();
  for (Peer& peer : core_.peers) {
    if (peer.check_stuck(now)) core_.tell(PacketType::Ping, peer.rank);
    next = std::min(next, peer.stuck_until(now));
  }
  core_.timers.set({TimerKind::Stuck}, next);
}

void Liveness::send_status() {
  for (const Peer& peer : core_.peers) {
    if (peer.present() && peer.told < core_.progress.completed()) core_.tell(PacketType::Status, peer.rank);
  }
}

void Liveness::ping_silent_peers() {
  for (const Peer& peer : core_.peers) {
    if (peer.rank != core_.config.rank && !peer.heard) core_.tell(PacketType::Ping, peer.rank);
  }
}

void Liveness::ping_unfinished_peers() {
  for (const Peer& peer : core_.peers) {
    if (peer.present() && peer.completed < core_.progress.completed())
      core_.tell(PacketType::Ping, peer.rank);
  }
}

}  // namespace optireduce
