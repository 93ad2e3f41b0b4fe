// Where membership is fixed: finds ranks that are silent, and ends what needs a rank that is gone.
//
// An engine answers as long as it lives, whatever its process does: a late rank is not silent. Elsewhere
// silent ranks are removed by a view change, or not waited for.
#pragma once

#include <vector>

#include "group/calls.h"

namespace optireduce {

class Watch {
 public:
  Watch(Core& core, Members& members, Calls& calls)
      : core_(core), members_(members), calls_(calls), awaited_since_(core.config.size, Time::never()) {}

  /// Somebody may wait for others from now on.
  void begin(Time now);
  /// The process waits for all ranks also outside of this group, and a rank may be silent for so long. 0: it
  /// does not any more.
  void set_outside(Time now, Duration limit);
  /// Asks the ranks that are waited for and silent. One that has been silent for too long is lost.
  void look(Time now);
  /// What was not heard during a standstill of our own says nothing about others.
  void stood_still(Time now, Duration how_long);

  /// A rank is lost, says a peer.
  void told_lost(Time now, Rank rank) { lose(now, rank, !core_.config.rows.empty()); }
  /// A rank said goodbye.
  void left(Time now, Rank rank);

 private:
  /// A silent rank is asked so many times. Where 70 % of the packets are lost, a live one answers.
  static constexpr int kLooks = 32;
  bool is_outside() const { return outside_ != Duration{}; }
  Duration limit() const { return is_outside() ? outside_ : core_.config.exact_silence; }
  Duration between_looks() const { return limit() / kLooks; }

  bool is_awaited(const Peer& peer) const;
  bool needs(const Operation& operation, Rank rank) const;
  void lose(Time now, Rank rank, bool tell);
  void end_deserted(Time now, Rank rank);

  Core& core_;
  Members& members_;
  Calls& calls_;
  std::vector<Time> awaited_since_;  // by rank; never: it was not at the last look
  bool looking_ = false;
  Duration outside_;
  Time counts_from_;  // no silence began before
};

}  // namespace optireduce
