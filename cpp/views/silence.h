// How long a peer that owes something may be silent. Learned from the gaps between a question and the next
// packet.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "base/rank_mask.h"
#include "base/time.h"

namespace optireduce {

inline constexpr Time kLongAgo{std::numeric_limits<std::int64_t>::min() / 2};

struct SilenceConfig {
  Duration least = Duration::millis(50);
  Duration most = Duration::millis(1000);
  Duration exact = Duration::millis(10'000);  // while an exact operation is open
};

/// Times are the process's own running time: a standstill of our own restarts every silence.
class Silence {
 public:
  Silence(std::size_t ranks, SilenceConfig config) : config_(config), peers_(ranks) {}

  void heard(Time now, Rank rank);
  /// Who owes us something, by its reason. A rank that begins to owe has its whole time from now on.
  void set_owing_data(Time now, RankMask data) { set_owing(now, data, owing_change_); }
  void set_owing_change(Time now, RankMask view_change) { set_owing(now, owing_data_, view_change); }
  void set_exact_open(bool open) { exact_open_ = open; }
  /// Every silence begins anew: after a standstill of our own, and with a new view.
  void restart(Time now);

  /// The silence after which a peer is suspected, now: 2.5 times the longest recent gap, clamped.
  Duration limit() const;
  /// Peers that owe something and have been silent for a third of the limit. Each is named once a silence.
  RankMask take_pings(Time now);
  /// Suspects the peers whose silence has reached the limit.
  void update(Time now);
  void suspect(RankMask ranks) { suspected_ |= ranks; }
  /// Suspected peers that have not been heard since.
  RankMask suspected() const { return suspected_; }
  /// Peers heard within the limit and since the last standstill, whether they owe something or not.
  RankMask heard_lately(Time now) const;
  Time next_event() const;

 private:
  struct Peer {
    Time heard = kLongAgo, waiting_since = kLongAgo, pinged = kLongAgo;
  };
  void set_owing(Time now, RankMask data, RankMask view_change);
  RankMask owing() const { return owing_data_ | owing_change_; }
  Time silent_since(const Peer& peer) const;
  void learn(Time now, Duration gap);

  SilenceConfig config_;
  std::vector<Peer> peers_;
  RankMask owing_data_ = 0, owing_change_ = 0;
  bool exact_open_ = false;
  RankMask suspected_ = 0;
  Duration longest_gap_{};
  Time learned_at_ = kLongAgo;
  Time restarted_ = kLongAgo;
};

}  // namespace optireduce
