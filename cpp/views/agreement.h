// One round of Paxos on the view that follows the current one: what this rank promised, and what it proposes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "base/rank_mask.h"
#include "views/view_messages.h"

namespace optireduce {

struct Agreement {
  std::uint32_t highest_round = 0;  // seen; never falls

  // As a member that answers.
  Ballot promised{};               // round 0: no change is under way
  std::optional<Adopt> adopted{};  // the view that this rank voted for last
  RankMask deaf = 0;               // only grows: whichever ballot wins, nothing came of the ranks it removes
  std::uint64_t reach_end = 0;     // set by the first promise
  State answer{};                  // to the last proposal: repeated as it was, so that its pieces add up

  // As the one that proposes.
  Propose proposal{};              // round 0: none
  std::map<Rank, State> states{};  // the answers to it
  RankMask votes = 0;              // for the view that follows from them

  bool changing() const { return promised != Ballot{}; }
  void saw_round(std::uint32_t round) { highest_round = std::max(highest_round, round); }
  void promise(Ballot ballot, std::uint64_t reach) {
    if (!changing()) reach_end = reach;
    promised = ballot;
    saw_round(ballot.round);
  }

  void begin(Propose propose) {
    give_up();
    proposal = std::move(propose);
  }
  /// Nobody has been promised a higher ballot here.
  bool leads() const { return proposal.ballot.round != 0 && proposal.ballot == promised; }
  /// The answers are complete, and the view that follows from them is put to the vote.
  bool votes_begun() const { return leads() && adopted && adopted->ballot == proposal.ballot; }
  bool collects_states() const { return leads() && !votes_begun(); }
  RankMask answered() const {
    RankMask ranks = 0;
    for (const auto& [rank, state] : states) ranks |= bit_of(rank);
    return ranks;
  }
  /// The view of the highest ballot that an answer names. Another value must not be proposed then.
  std::optional<View> adopted_by_others() const {
    const auto ballot = [](const auto& entry) {
      return entry.second.adopted ? entry.second.adopted->ballot : Ballot{};
    };
    const auto highest = std::ranges::max_element(states, {}, ballot);
    if (highest == states.end() || ballot(*highest).round == 0) return std::nullopt;
    return highest->second.adopted->view;
  }
  void give_up() {
    proposal = {};
    states.clear();
    votes = 0;
  }
  /// A view is installed, or this rank is out: all of it is over.
  void clear() { *this = {.highest_round = highest_round}; }
};

}  // namespace optireduce
