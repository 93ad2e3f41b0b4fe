#include "views/silence.h"

#include <algorithm>

namespace optireduce {

void Silence::heard(Time now, Rank rank) {
  Peer& peer = peers_[rank];
  if (has(owing(), rank)) learn(now, now - silent_since(peer));
  peer.heard = now;
  suspected_ &= ~bit_of(rank);
}

void Silence::set_owing(Time now, RankMask data, RankMask view_change) {
  const RankMask begins = (data | view_change) & ~owing();
  for_each_rank(begins, [&](Rank rank) {
    if (rank < peers_.size()) peers_[rank].waiting_since = now;
  });
  owing_data_ = data;
  owing_change_ = view_change;
}

void Silence::restart(Time now) {
  restarted_ = now;
  suspected_ = 0;
}

Time Silence::silent_since(const Peer& peer) const {
  return std::max({peer.heard, peer.waiting_since, restarted_});
}

// The longest gap fades within some twenty seconds, so that one bad moment does not slow detection for ever.
void Silence::learn(Time now, Duration gap) {
  const std::int64_t passed =
      std::clamp<std::int64_t>((now - learned_at_).ns, 0, Duration::millis(20'000).ns);
  const double kept = 1.0 - static_cast<double>(passed) / 20e9;
  const Duration faded{static_cast<std::int64_t>(static_cast<double>(longest_gap_.ns) * kept)};
  longest_gap_ = std::max(faded, std::min(gap, config_.most));
  learned_at_ = now;
}

Duration Silence::limit() const {
  if (exact_open_) return config_.exact;
  return std::clamp(longest_gap_ * 5 / 2, config_.least, config_.most);
}

RankMask Silence::take_pings(Time now) {
  RankMask due = 0;
  for_each_rank(owing() & ~suspected_, [&](Rank rank) {
    Peer& peer = peers_[rank];
    const Time since = silent_since(peer);
    if (peer.pinged > since || now < since + limit() / 3) return;
    peer.pinged = now;
    due |= bit_of(rank);
  });
  return due;
}

void Silence::update(Time now) {
  for_each_rank(owing(), [&](Rank rank) {
    if (now >= silent_since(peers_[rank]) + limit()) suspected_ |= bit_of(rank);
  });
}

RankMask Silence::heard_lately(Time now) const {
  RankMask found = 0;
  for (std::size_t rank = 0; rank < std::min(peers_.size(), kMaskRanks); ++rank) {
    const Time heard = peers_[rank].heard;
    if (heard >= restarted_ && heard + limit() > now) found |= bit_of(static_cast<Rank>(rank));
  }
  return found;
}

Time Silence::next_event() const {
  Time next = Time::never();
  for_each_rank(owing() & ~suspected_, [&](Rank rank) {
    const Peer& peer = peers_[rank];
    const Time since = silent_since(peer);
    next = std::min(next, since + (peer.pinged > since ? limit() : limit() / 3));
  });
  return next;
}

}  // namespace optireduce
