// One round of Paxos on the view that follows the current one: what this rank promised, and what it proposes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "base/rank_mask.h"
#include "wire/view_messages.h"

namespace optireduce {

class Agreement {
 public:
  // As a member that answers.
  bool changing() const { return pledge_.changing; }
  RankMask deaf() const { return pledge_.deaf; }
  std::uint64_t reach_end() const { return pledge_.reach_end; }
  Ballot promised() const { return pledge_.promised; }
  const std::optional<Adopt>& adopted() const { return pledge_.adopted; }
  void promise(Ballot ballot, RankMask without, std::uint64_t reach_end);
  void adopt(Adopt adopt, std::uint64_t reach_end);

  // As the one that proposes.
  Ballot next_ballot(Rank self) const { return {highest_round_ + 1, self}; }
  void saw_round(std::uint32_t round) { highest_round_ = std::max(highest_round_, round); }
  std::uint32_t highest_round() const { return highest_round_; }
  void begin(Propose propose);
  const Propose& proposal() const { return proposal_.what; }
  /// Nobody has been promised a higher ballot here.
  bool leads() const { return proposal_.what.ballot.round != 0 && proposal_.what.ballot == pledge_.promised; }
  bool collects(Ballot ballot) const {
    return leads() && ballot == proposal_.what.ballot && !proposal_.value;
  }
  void add_state(Rank rank, State state);
  RankMask answered() const { return proposal_.answered; }
  const std::map<Rank, State>& states() const { return proposal_.states; }
  /// The view of the highest ballot that an answer names. Another value must not be proposed then.
  std::optional<View> adopted_by_others() const;
  void put_to_vote(View view) { proposal_.value = std::move(view); }
  const std::optional<View>& value() const { return proposal_.value; }
  void add_vote(Rank rank) { proposal_.votes |= bit_of(rank); }
  RankMask votes() const { return proposal_.votes; }
  void give_up() { proposal_ = {}; }

  /// A view is installed, or this rank is out: all of it is over. Rounds never fall.
  void clear();

 private:
  struct Pledge {
    bool changing = false;
    Ballot promised;
    std::optional<Adopt> adopted;
    RankMask deaf = 0;
    std::uint64_t reach_end = 0;
  };
  struct Proposal {
    Propose what;  // round 0: none
    RankMask answered = 0, votes = 0;
    std::map<Rank, State> states;
    std::optional<View> value;
  };
  void begin_change(std::uint64_t reach_end);

  Pledge pledge_;
  Proposal proposal_;
  std::uint32_t highest_round_ = 0;
};

inline void Agreement::begin_change(std::uint64_t reach_end) {
  if (pledge_.changing) return;
  pledge_.changing = true;
  pledge_.reach_end = reach_end;
}

// Deafness only grows: whichever ballot wins, nothing of the ranks that it removes came in after our answer.
inline void Agreement::promise(Ballot ballot, RankMask without, std::uint64_t reach_end) {
  begin_change(reach_end);
  pledge_.promised = ballot;
  pledge_.deaf |= without;
  saw_round(ballot.round);
}

inline void Agreement::adopt(Adopt adopt, std::uint64_t reach_end) {
  begin_change(reach_end);
  pledge_.promised = adopt.ballot;
  saw_round(adopt.ballot.round);
  pledge_.adopted = std::move(adopt);
}

inline void Agreement::begin(Propose propose) {
  proposal_ = {};
  proposal_.what = std::move(propose);
}

inline void Agreement::add_state(Rank rank, State state) {
  proposal_.answered |= bit_of(rank);
  proposal_.states.insert_or_assign(rank, std::move(state));
}

inline std::optional<View> Agreement::adopted_by_others() const {
  const State* best = nullptr;
  for (const auto& [rank, state] : proposal_.states) {
    if (!state.adopted || state.adopted_ballot.round == 0) continue;
    if (best == nullptr || best->adopted_ballot < state.adopted_ballot) best = &state;
  }
  return best == nullptr ? std::nullopt : best->adopted;
}

inline void Agreement::clear() {
  pledge_ = {};
  proposal_ = {};
}

}  // namespace optireduce
