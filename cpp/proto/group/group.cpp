#include "group/group.h"

#include <stdexcept>
#include <string>

namespace optireduce {

std::uint64_t Group::start(Time now, const Call& call) {
  const std::uint64_t number = calls_.take(now, call);
  if (const RejectBody* known = core_.outcomes.rejection(number)) {
    calls_.fail(now, number, *known);
  } else if (!views_.ends_at_once(now, number)) {
    watch_.begin(now);
    calls_.begin_waiting(now);
    members_.look_for_silence(now);
    views_.check_quorum(now);
  }
  return number;
}

void Group::stood_still(Time now, Duration how_long) {
  members_.stood_still(now, how_long);
  watch_.stood_still(now, how_long);
}

Gone Group::gone() const {
  Gone gone;
  for (const Peer& peer : core_.peers) {
    if (peer.left) (peer.lost ? gone.lost : gone.left).push_back(peer.rank);
  }
  return gone;
}

Position Group::position() {
  const Progress& progress = core_.progress;
  if (progress.completed() < progress.next_call())
    throw std::logic_error("all-reduce " + std::to_string(progress.completed()) +
                           " is not over: a position is known between two steps, when no call is open");
  core_.operations.note_snapshot(progress.completed());
  return progress.position();
}

bool Group::give_up_replay(Time now) {
  members_.changes.give_up_replay();
  views_.follow(now);
  return left_behind();
}

void Group::handle_datagram(Time now, Datagram datagram) {
  receiver_.handle(now, datagram);
  views_.follow(now);
}

void Group::handle_timeout(Time now) {
  while (const std::optional<TimerKey> timer = core_.timers.take_due(now)) fire(now, *timer);
  views_.follow(now);
}

void Group::fire(Time now, const TimerKey& timer) {
  switch (timer.kind) {
    case TimerKind::Shard:
      return calls_.check_shard(now, timer.operation);
    case TimerKind::Request:
      if (Operation* const open = core_.operations.find_open(timer.operation)) requests_.ask(now, *open);
      return;
    case TimerKind::Fail:
      return calls_.check_timeout(now, timer.operation);
    case TimerKind::Answer:
      return sender_.answer_peers(now);
    case TimerKind::Stuck:
      return sender_.check_stuck_peers(now);
    case TimerKind::Status:
      return sender_.send_status();
    case TimerKind::View:
      return members_.handle_timeout(now);
    case TimerKind::Quorum:
      return views_.check_quorum(now);
    case TimerKind::Watch:
      return watch_.look(now);
  }
}

bool Group::poll_transmit(Time now, Transmit& out) {
  out.clear();
  if (const auto last = sender_.take_last_sender()) {
    Operation* const operation = core_.operations.find_open(*last);
    if (operation != nullptr) calls_.advance(now, *operation);
  }
  members_.send_messages();
  return sender_.poll(now, out);
}

}  // namespace optireduce
