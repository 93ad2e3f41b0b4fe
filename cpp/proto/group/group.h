// One rank's side of a group, as its drivers see it: a state machine without socket, thread or clock. Time is
// always an argument.
//
// Four families of methods (after quinn-proto):
//   commands   start, release, ...   what the local rank wants
//   handle_*   something happened: a datagram came, a timer fired
//   poll_*     what to do next: send this, wake me then, this operation is over
//   getters
// A driver calls a command or a handle_*, then poll_transmit until it returns false, then takes the
// completions. cpp/engine drives it over sockets, cpp/sim in virtual time.
//
// The parts, each of which knows only those before it:
//   Core        what they share: settings, peers, operations, timers, what waits to be sent
//   Members     the view, silence, view messages
//   Requests    missing packets
//   Calls       calls and operations, from beginning to end
//   Learner     replays outside the view, and comes in
//   Watch       silent ranks where membership is fixed
//   Views       what a new view does to them
//   Checks      whether the members' parameters are equal
//   Receiver    packets in
//   Sender      packets out; knows nothing of Calls
#pragma once

#include "group/receiver.h"
#include "group/sender.h"

namespace optireduce {

/// Ranks that said goodbye, and ranks that were silent for too long.
struct Gone {
  std::vector<Rank> left, lost;
};

class Group {
 public:
  Group(GroupConfig config, BufferPool& pool) : core_(std::move(config), pool) {}
  Group(const Group&) = delete;  // its parts refer to each other

  // ---- Commands

  /// Takes the next number for a call, in place on its data. All ranks must make the same calls in the same
  /// order. Throws std::invalid_argument before it has changed anything. Never waits: a call that may not
  /// begin yet waits in the group.
  std::uint64_t start(Time now, const Call& call);
  /// The data of finished calls that stayed readable is about to be overwritten.
  void release(Time) { calls_.release(); }
  /// What is kept of a stream's excluded contributions. Forgets it.
  KeptValues take_residual(std::uint32_t stream) { return core_.residuals.take(stream); }
  /// How far this rank is, for a snapshot of what its operations amount to. Between two steps: throws
  /// std::logic_error while a call is open. From here on the log is kept for the rank that gets the snapshot,
  /// while there is room.
  Position position();
  /// A rank that is out of the view does not replay what it missed, but takes a snapshot: it is left behind.
  /// False: it is a member.
  bool give_up_replay(Time now);
  /// The process has taken over a snapshot that was made at this position and before this step, and its next
  /// call is the one that follows. What this rank knew of operations is forgotten, residuals are dropped and
  /// counted, and it asks to come in. A snapshot that the members do not accept leaves it behind again.
  /// Throws std::logic_error if it is not left behind, or a call is open.
  void restore(Time now, const Position& position, std::uint64_t step) {
    views_.restore(now, position, step);
  }
  /// See Checks::tell.
  std::vector<CheckedStep> check(std::uint64_t step, std::uint64_t hash) { return checks_.tell(step, hash); }
  /// The process stood still for so long. To be said before what came meanwhile is handled.
  void stood_still(Time now, Duration how_long);
  /// The process waits for all ranks outside of this group. Where membership is fixed, ranks that are silent
  /// for longer than the limit, or than exact_silence, are gone() then. 0: it does not wait any more.
  void watch_outside(Time now, Duration limit) { watch_.set_outside(now, limit); }
  /// Asks every peer that has not been heard yet for a sign of life.
  void ping_silent_peers() { sender_.ping_silent_peers(); }
  /// Asks every peer that may still need our help what it has completed (before closing).
  void ping_unfinished_peers() { sender_.ping_unfinished_peers(); }
  /// The next operation that others have begun and this rank has not called.
  std::optional<Uncalled> uncalled() const { return calls_.uncalled(); }
  /// Whether contributions of ours wait to be added to the next ones.
  bool keeps_residual() const { return core_.residuals.any(); }
  /// Tells the members that we want to leave, and keeps serving. `follows`: what others begin meanwhile will
  /// be called, see uncalled(), so that no operation ends without us.
  void prepare_to_leave(Time now, bool follows = false) { views_.prepare_to_leave(now, follows); }
  /// Fails everything that is not done and tells the peers that we are gone.
  void say_goodbye(Time now) { views_.say_goodbye(now); }

  // ---- Driving

  void handle_datagram(Time now, Datagram datagram);
  void handle_timeout(Time now);
  /// Fills `out` with the next batch; false if there is nothing to send now.
  bool poll_transmit(Time now, Transmit& out);
  /// When handle_timeout wants to be called, at the latest.
  Time poll_timeout() const { return core_.timers.next(); }
  std::optional<Report> poll_completion() { return core_.outcomes.take_report(); }
  std::optional<MembershipEvent> poll_event() { return core_.outcomes.take_event(); }

  // ---- Getters

  bool heard(Rank peer) const { return core_.peers[peer].heard; }
  bool idle() const { return core_.idle(); }
  /// Ranks that are gone for ever where membership is fixed.
  Gone gone() const;
  /// Calls end at once with an error until a snapshot is restored.
  bool left_behind() const { return members_.changes.standing().left_behind; }
  /// How many operations all members have completed beyond ours while we are out of their view and replay
  /// them. Nothing: we are a member, or cannot replay.
  std::optional<std::uint64_t> behind() const { return learner_.behind(); }
  /// Whether every member has completed all that we have, so that nobody needs our data any more.
  bool everyone_caught_up() const { return views_.everyone_caught_up(); }
  /// Whether nobody needs us any more after prepare_to_leave.
  bool may_leave() const { return views_.may_leave(); }
  const Stats& stats() const { return core_.stats; }
  /// What the policies say now, for an operation of so many bytes.
  PolicySnapshot policy(std::size_t bytes) const { return calls_.policy(bytes); }
  /// All operations below are over here.
  std::uint64_t completed() const { return core_.progress.completed(); }

  // ---- Multicast

  void probe_group() {
    core_.controls.push_back({.type = PacketType::Status, .to = core_.config.rank, .to_group = true});
  }
  void set_multicast(bool on) { core_.multicast = on; }
  bool heard_in_group(Rank peer) const { return core_.peers[peer].heard_in_group; }
  bool multicasts() const { return core_.multicast; }

 private:
  friend struct Inspection;  // what only tests want to know
  void fire(Time now, const TimerKey& timer);

  Core core_;
  Members members_{core_};
  Requests requests_{core_, members_};
  Calls calls_{core_, members_, requests_};
  Learner learner_{core_, members_, calls_, requests_};
  Watch watch_{core_, members_, calls_};
  Views views_{core_, members_, calls_, requests_, learner_};
  Checks checks_{core_, members_};
  Receiver receiver_{core_, members_, requests_, calls_, learner_, watch_, views_, checks_};
  Sender sender_{core_, members_};
};

}  // namespace optireduce
