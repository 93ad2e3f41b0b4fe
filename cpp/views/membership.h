// The view and what is known about each member. No packets and no clock: time is an argument.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/rank_mask.h"
#include "base/time.h"
#include "views/silence.h"
#include "views/view.h"

namespace optireduce {

struct MembershipConfig {
  Rank rank = 0;
  SilenceConfig silence = {};
};

/// The members to keep: while two of them have no good link (both hear each other), the one with most bad
/// links goes, of equals the highest. `hears` has a row for each rank.
RankMask keep_good_links(RankMask members, const std::vector<RankMask>& hears);

class Membership {
 public:
  Membership(MembershipConfig config, View first);

  Rank self() const { return config_.rank; }
  const View& view() const { return history_.newest(); }
  const ViewHistory& history() const { return history_; }
  std::size_t group_size() const { return view().ranks.size(); }

  // Maps of an operation.
  /// The owners of an operation's shards in rank order: the members of its view.
  std::vector<Rank> owners(std::uint64_t operation) const;
  bool serves(Rank rank, std::uint64_t operation) const { return view().serves(rank, operation); }
  ChunkFate fate(std::uint64_t operation, Rank owner, std::size_t chunk) const {
    return history_.fate(operation, owner, chunk);
  }
  /// Others count on me for orphan shards of this operation: the log keeps what I reported of them until all
  /// have completed it, whatever the limit on its size.
  bool must_keep(std::uint64_t operation) const;

  // Progress.
  void advanced(Rank rank, std::uint64_t completed) {
    members_[rank].completed = std::max(members_[rank].completed, completed);
  }
  std::uint64_t completed(Rank rank) const { return members_[rank].completed; }
  /// All members of the view have completed everything below: no later view undoes it.
  std::uint64_t completed_by_all() const;
  /// Forgets the views of operations below the log's floor, as far as all members have completed them. A view
  /// that is forgotten too early gives a later proposal the wrong owners.
  void forget_before(std::uint64_t floor);

  // Silence, and links.
  /// Only other members owe something.
  Silence& silence() { return silence_; }
  const Silence& silence() const { return silence_; }
  RankMask suspected() const { return silence_.suspected() & others(); }
  /// Whom I hear: the header's flag "hears all" is hears() == view().members.
  RankMask hears() const { return view().members & ~suspected(); }
  /// A peer's bitmap (of its Status, or all members if its header has the flag).
  void told_hearing(Time now, Rank rank, RankMask hears);
  /// The members to keep, by what I and the others hear. A member that somebody does not hear, and that has
  /// sent no bitmap from `asked` on, hears nobody.
  RankMask keep(Time now, Time asked) const;

  // Flags of members, cleared when they come in anew.
  /// `follows`: until it is out of the view it takes part in the operations that others begin.
  void mark_leaving(Rank rank, bool follows) {
    leaving_ |= bit_of(rank);
    if (follows) following_ |= bit_of(rank);
  }
  void mark_lost(Rank rank) { lost_ |= bit_of(rank); }
  /// A rank knows of these leavers, and has nothing open. From then on it begins no operation that nobody
  /// else has begun.
  void told_rest(Rank rank, RankMask leavers, bool rests) {
    members_[rank].at_rest_for = rests ? leavers : 0;
  }
  /// Whether none of these ranks has an operation open, or will begin one before this rank has left.
  bool at_rest_for(Rank leaver, RankMask ranks) const;
  RankMask leaving() const { return leaving_ & view().members; }
  bool follows(Rank leaver) const { return has(following_, leaver); }
  RankMask lost() const { return lost_ & view().members; }
  /// Ranks that left cleanly.
  RankMask left() const { return leaving_ & ~view().members; }

  // Quorum of the view.
  bool quorum(RankMask present) const { return is_quorum(present, view().members); }
  /// For the hold rule: I and the members heard lately are a quorum.
  bool hears_quorum(Time now) const;
  RankMask others() const { return view().members & ~bit_of(config_.rank); }

  /// The next view, in which this rank stays. Called by ViewChange.
  void install(Time now, View view);
  /// The views of others, which this rank joins with the newest of, or only observes. Called by ViewChange.
  void take_over(Time now, std::span<const View> views);

 private:
  struct Member {
    std::uint64_t completed = 0;
    RankMask hears = 0;
    Time hears_at = kLongAgo;
    RankMask at_rest_for = 0;
  };
  void enter(Rank rank, std::uint64_t completed);
  void begin_view(Time now);

  MembershipConfig config_;
  ViewHistory history_;
  Silence silence_;
  std::vector<Member> members_;
  RankMask leaving_ = 0, following_ = 0, lost_ = 0;
};

}  // namespace optireduce
