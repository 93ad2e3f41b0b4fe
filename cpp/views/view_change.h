// The agreement on the next view, as a machine of values. No packets, sockets or clocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/rank_mask.h"
#include "base/time.h"
#include "views/agreement.h"
#include "views/change_plan.h"
#include "views/membership.h"
#include "views/next_view.h"
#include "views/view_mail.h"
#include "views/view_messages.h"

namespace optireduce {

/// What this rank is in the group.
struct Standing {
  /// Out of the view: decide nothing; forget what is held from C on, inboxes, early packets. Hold and
  /// complete only what learning() allows.
  bool away = false;
  /// A member that may do nothing but vote.
  bool lost = false;
  /// This rank needs a snapshot. It may still vote; it starts, decides, holds and completes nothing.
  bool left_behind = false;
  bool leaving = false;
  bool follows = false;  // as a leaver
  /// A leaver that is out of the view, and that nobody needs any more.
  bool departed = false;
  std::uint64_t known = 0;  // highest view number seen
};

/// A view change is one round of Paxos among the members of the old view. Its first round trip collects what
/// each member that stays holds of the owners that go. From its answer on a member is deaf to those owners,
/// and touches no operation beyond its reach. So the answers stay true until the next view is installed.
///
/// Events go in by handle(), saw_view() and handle_timeout(), commands by suspect(), leave(), mark_lost(),
/// restored(). After each of them: take_installed() first, then the flags, then poll_message().
class ViewChange {
 public:
  ViewChange(ViewChangeConfig config, Membership& membership, Journal journal);

  // What happened.
  void handle(Time now, Rank from, const ViewMessage& message);
  /// A packet with another view number than mine: the older side is told the newer view.
  void saw_view(Time now, Rank from, std::uint64_t number);
  void handle_timeout(Time now);
  /// T_round: the slowest round trip to a member, with its variation and lateness.
  void set_pace(Duration round);

  // Commands.
  /// These ranks are silent, beyond what Membership sees itself. Forgotten when they are heard.
  void suspect(Time now, RankMask ranks);
  /// I leave: I serve until every member has what I have, then a view without me is made. `follows`: I take
  /// part in what others begin, and the view is made when nothing is open.
  void leave(Time now, bool follows = false);
  /// I lack a packet that is gone: I vote on until I am removed, and I am left behind.
  void mark_lost(Time now);
  /// While I am away: I do not replay what I missed, or cannot, and need a snapshot.
  void give_up_replay();
  /// A snapshot was taken over, and the journal tells what it amounts to: I ask to come in with that.
  void restored(Time now);
  /// Begins a change at once. False if it cannot be: not a member that stays, no quorum, too few ranks.
  bool propose(Time now, RankMask without, RankMask joiners);

  // What to do next.
  bool poll_message(Rank& to, ViewMessage& message) { return mail_.poll(to, message); }
  /// The view that was installed since the last call. At most one for each event or command.
  std::optional<View> take_installed() { return std::exchange(installed_, std::nullopt); }
  /// Whether a view without me was told since the last call.
  bool take_observed() { return std::exchange(observed_, false); }
  Time poll_timeout() const;

  // State.
  const Standing& standing() const { return standing_; }
  bool changing() const { return agreement_.changing(); }
  /// Decisions from these senders must not be held.
  RankMask deaf() const { return agreement_.deaf; }
  /// I am out of the view, which I observe, and complete what all of its members have completed.
  bool learning() const;
  /// No operation at or above this may be started, decided or held: while changing, and outside the view.
  /// Else: no limit.
  std::uint64_t reach_end() const;
  /// A change is needed, but those that I hear, or that would stay, are no quorum, or fewer than min_ranks.
  bool too_few() const { return attempts_.too_few; }

 private:
  struct Repeats {
    Time next = Time::never();  // of what is not answered: proposal, view, Join, farewell; and of my Status
    Duration interval{};
    Time farewell_end = Time::never();  // a leaver's
    RankMask untold = 0;                // who has not shown the view that I made, or left with
    std::vector<View> farewell{};       // the view that a leaver is out of
    std::uint64_t join_from = 0;        // what this rank had completed at its first Join of now
  };

  // Messages.
  void dispatch(Time now, Rank from, const ViewMessage& message);
  void on_propose(Time now, Rank from, const Propose& propose);
  void on_adopt(Time now, Rank from, const Adopt& adopt);
  void on_status(Time now, Rank from, const Status& status);
  void on_join(Time now, Rank from, const Join& request);
  void on_refusal(std::uint64_t view, const Join& request);
  void on_install(Time now, Rank from, const std::vector<View>& views);

  // The agreement.
  const State& answer_to(Time now, const Propose& propose);
  void try_compute(Time now);
  void try_chosen(Time now);
  void enter(Time now, const std::vector<View>& views, bool joins);
  void go_away(Time now, const std::vector<View>& views);

  // When to propose, and repeats.
  WantedChange schedule(Time now);
  void repeat(Time now);
  void repeat_away(Time now);
  void send_status(RankMask to, bool asks);
  bool rests() const;
  void note_rest();
  Join my_request() const;

  Membership& membership_;
  Journal journal_;
  std::uint32_t incarnation_;
  ViewMail mail_;
  Agreement agreement_;
  ChangePlan plan_;
  Attempts attempts_;
  Standing standing_;
  Repeats repeats_;
  std::optional<View> installed_;
  bool told_rest_ = false;  // since somebody leaves
  bool observed_ = false;
};

}  // namespace optireduce
