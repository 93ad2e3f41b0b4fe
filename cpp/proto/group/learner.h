// A rank outside the view replays what it missed there, where nobody waits for it: it completes what all
// members have completed, with the decisions that they keep, and asks to come in meanwhile. What all members
// of a view have completed is never undone, so what is completed here stays right whatever follows.
//
// It contributes nothing, owns nothing and does not vote. The members admit it when it is near.
#pragma once

#include <optional>

#include "group/calls.h"

namespace optireduce {

class Learner {
 public:
  Learner(Core& core, Members& members, Calls& calls, Requests& requests)
      : core_(core), members_(members), calls_(calls), requests_(requests) {}

  /// This rank is out of the view: from here on it learns anew.
  void begin();
  /// After everything that may have told how far the members are.
  void go_on(Time now);
  /// A member no longer has a shard's decisions. Left behind if nobody has them.
  void note_gone(Time now, std::uint64_t number, Rank shard, Rank from);
  /// This rank is a member again. What it had decided or held before may not be what the others agreed on:
  /// every operation that was not learned is fetched anew, and only the fate of our contribution to it is
  /// still open.
  void rejoin(Time now, const View& view);
  /// How many operations all members have completed beyond ours. Nothing: we do not learn.
  std::optional<std::uint64_t> behind() const;

 private:
  void observe(Time now);
  void note_progress();
  void fail_lost_exact(Time now);
  std::vector<LocalCall> drop(Time now, std::uint64_t begin, std::uint64_t end);
  void fetch(Time now, const LocalCall& call);

  Core& core_;
  Members& members_;
  Calls& calls_;
  Requests& requests_;
};

}  // namespace optireduce
