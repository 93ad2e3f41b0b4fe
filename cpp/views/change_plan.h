// Which change of the view is wanted now: who goes, who asks to come in, whether it can be made, and when.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/rank_mask.h"
#include "base/time.h"
#include "views/membership.h"
#include "views/view_messages.h"

namespace optireduce {

struct ViewChangeConfig {
  std::uint32_t incarnation = 0;
  std::size_t min_ranks = 0;  // 0: a majority of the group, without those that left cleanly
  /// Wait after a second removal within a minute; doubles to 60 s.
  Duration readmission = Duration::millis(1000);
  /// Who decides a tied vote. A function, so that a rendezvous store can do it instead of the lowest rank.
  bool (*quorum)(RankMask present, RankMask members) = &is_quorum;
};

struct WantedChange {
  RankMask without = 0, joiners = 0;
  RankMask proposers = 0;  // who may propose it, in rank order

  bool any() const { return (without | joiners) != 0; }
};

/// A member proposes one round trip after it saw the reason, later the further back its place is, and later
/// after each attempt.
struct Attempts {
  Duration round = Duration::millis(5);  // T_round
  Time at = Time::never();               // of the next attempt
  Time asked = Time::never();            // since when others are asked for their Status
  int count = 0;
  bool thaw = false;  // the last attempt could not be made: only silent ranks are removed in the next one
  bool too_few = false;

  /// T_view: four rounds, doubled with each attempt.
  Duration view_wait() const { return round * 4 * (std::int64_t{1} << std::min(count, 6)); }
  /// There is a reason for a change. True when it is new.
  bool plan(Time now, int place) {
    if (at != Time::never()) return false;
    asked = now;
    at = now + round + view_wait() * place;
    return true;
  }
  /// Somebody proposes: the others wait for their turn.
  void postpone(Time now, int place) {
    asked = std::min(asked, now);
    at = now + view_wait() * (1 + place);
  }
  void clear() { *this = {.round = round}; }
};

class ChangePlan {
 public:
  ChangePlan(const ViewChangeConfig& config, const Membership& membership)
      : config_(config), membership_(membership) {}

  /// A rank asks to come in: it becomes a candidate, is told the view first, or needs a snapshot. One that is
  /// not near replays outside the view, where nobody waits for it.
  enum class Answer { Ignore, Tell, Refuse };
  Answer consider(Time now, Rank rank, const Join& request, Verdict verdict, bool near);
  std::vector<std::pair<Rank, Join>> requests(RankMask ranks) const;

  /// `asked`: since when members are asked whom they hear. `thaw`: leave leavers and joiners out.
  WantedChange wanted(Time now, Time asked, bool thaw) const;
  /// Those that would stay, with leavers and lost ranks that still vote, are a quorum, and enough.
  bool possible(const WantedChange& change) const;
  std::size_t min_ranks(RankMask without) const;
  bool quorum(RankMask present) const { return config_.quorum(present, membership_.view().members); }

  void installs(Time now, const View& view);
  void clear();

 private:
  struct Candidate {
    Join request;
    bool near = false;
    Time at{};
  };
  struct Removals {
    int count = 0;  // in a row, each soon after the return
    Time last{};
    Time returned{};
  };
  RankMask ready_joiners(Time now, bool near) const;
  RankMask ready_leavers(RankMask without) const;
  Duration wait_of(const Removals& removals) const;
  Time readmitted_at(Rank rank) const;

  ViewChangeConfig config_;
  const Membership& membership_;
  std::map<Rank, Candidate> candidates_;
  std::map<Rank, Removals> removals_;
  RankMask replaced_ = 0;  // members whose process was restarted: the old one is dead
};

}  // namespace optireduce
