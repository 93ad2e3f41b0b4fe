// The view as the data path sees it: who is a member, who is silent, what may be done while the view changes.
// What a new view does to operations is in views.h.
#pragma once

#include <vector>

#include "group/core.h"
#include "views/membership.h"
#include "views/view_change.h"

namespace optireduce {

class Members {
 public:
  explicit Members(Core& core);

  const View& view() const { return membership.view(); }
  /// Of the shards of an operation.
  std::vector<Rank> owners(std::uint64_t operation) const;
  /// Whether this rank may neither begin nor complete anything.
  bool halted() const { return changes.standing().lost || (changes.standing().away && !changes.learning()); }
  /// No operation at or above this may be begun, decided or held. Outside the view: what was made ready
  /// there.
  std::uint64_t reach_end() const {
    if (!changes.standing().away) return changes.reach_end();
    return changes.learning() ? learned_end_ : 0;
  }
  /// Nothing of it may be asked for.
  bool is_out_of_reach(std::uint64_t operation) const {
    return changes.standing().away && operation >= reach_end();
  }
  std::uint64_t learned_end() const { return learned_end_; }
  /// Outside the view, operations below are fetched from its members from now on.
  void learn_below(std::uint64_t end) { learned_end_ = end; }
  /// When a member was heard last.
  Time heard_at() const;
  /// Whether what is complete may be handed over. After a standstill the others may have gone on without us
  /// and made void what nobody has but we: a quorum must have answered what was sent since.
  bool may_hand_over() const {
    return !halted() && (answered_ == kEverybody || membership.quorum(answered_));
  }
  /// A learner completes what all members have completed, whatever it heard itself.
  bool may_complete(std::uint64_t operation) const {
    return changes.standing().away ? operation < reach_end() : may_hand_over();
  }
  /// What was not heard meanwhile says nothing about others, and what is heard next may be old.
  void stood_still(Time now, Duration how_long);
  /// Who has not answered since the standstill, and may have to.
  RankMask unanswered() const { return view().members & ~answered_; }
  /// Asks them.
  void ask_unanswered();
  /// Whether all members of the view were heard lately.
  bool hears_all() const { return hears_all_; }
  /// Whether this rank may begin an operation that nobody else has begun. One that leaves would own a part of
  /// it: it is out of the view before.
  bool may_be_first(std::uint64_t number) const;
  /// The least completed of this rank and the members that are waited for.
  std::uint64_t least_completed() const;

  /// True if what is complete may be handed over now, and could not before.
  bool heard(Time now, const Header& header);
  /// A member may have come in with less than it said in an older view.
  bool tells_progress(const Header& header) const {
    return !of_other_view(header) || !view().contains(header.sender);
  }
  void advanced(const Header& header, std::uint64_t completed) {
    if (counts(header)) membership.advanced(header.sender, completed);
  }
  /// Where members can be removed: whether it is one.
  bool is_member(Rank rank) const { return !core_.config.elastic() || view().contains(rank); }
  /// A packet counts only in the view in which it was sent.
  bool of_other_view(const Header& header) const { return core_.config.elastic() && !in_view(header); }
  void note_other_view(Time now, const Header& header);
  void handle_piece(Time now, const ReceivedRun& run);
  void send_messages();

  /// A member that owes us something and says nothing is asked, and then suspected.
  void look_for_silence(Time now);
  void handle_timeout(Time now);
  void set_timer();

  bool may_accept(const Operation& operation, const ReceivedRun& run) const;
  /// Contributions to the operation from a quorum, in our view, are proof enough; else it must be heard
  /// lately.
  bool hears_quorum(Time now, const Operation& operation) const;
  /// Who can be asked for the decisions of an owner: itself, or if it no longer serves the operation whom the
  /// view names. A learner can ask all members. 0: nobody.
  RankMask holders(const Operation& operation, Rank owner) const;
  /// Owners that no longer serve the operation.
  std::vector<Rank> orphans_of(const Operation& operation) const;
  /// Members that no longer serve the operation: it does not wait for their contributions. Of their decisions
  /// void ones are settled, lost ones end our part.
  void apply_fates(Time now, Operation& operation);

  Membership membership;
  ViewChange changes;

 private:
  static constexpr RankMask kEverybody = ~RankMask{0};

  bool in_view(const Header& header) const {
    return header.view == static_cast<std::uint16_t>(view().number);
  }
  bool counts(const Header& header) const {
    return core_.config.elastic() && in_view(header) && view().contains(header.sender);
  }
  void set_pace();

  Core& core_;
  std::vector<PieceCollector> pieces_;  // by rank
  std::vector<PieceCutter> cutters_;    // by rank
  RankMask suspects_ = 0;               // that were counted
  bool hears_all_ = true;
  Time fired_at_;                   // our timer, last
  std::uint32_t first_since_ = 0;   // our first timestamp since the last standstill ...
  RankMask answered_ = kEverybody;  // ... and who has answered it or a later one
  std::uint64_t learned_end_ = 0;   // outside the view: all members have completed what is below
};

}  // namespace optireduce
