// Missing packets: asks for them, and answers those who ask.
#pragma once

#include <vector>

#include "group/members.h"

namespace optireduce {

class Requests {
 public:
  Requests(Core& core, const Members& members) : core_(core), members_(members) {}

  /// An operation has begun, or its owners have changed. Whoever has completed it has sent all that it had to
  /// send: what is missing of that is asked for at once.
  void schedule(Time now, Operation& operation);
  /// Packets from that rank came: what is missing between them may be lost.
  void schedule(const Operation& operation, const Inbox& inbox, Rank from) {
    const Time due = inbox.request_due(core_.repair_timers(from));
    core_.timers.set_earlier({TimerKind::Request, operation.number()}, due);
  }
  /// Whether we want that owner's decisions now: our process does, or a relay hands them on for a process
  /// that is late.
  static bool wants_decisions(const Operation& operation, Rank owner) {
    const bool hands_on = operation.descriptor().bounded && operation.gather().hands_out(owner);
    return operation.begun() || hands_on;
  }
  /// Asks for everything that an operation misses and that is due.
  void ask(Time now, Operation& operation);
  void handle(Time now, const ReceivedRun& run);

 private:
  Time ask_for_contributions(Time now, Operation& operation, ReduceScatter& collector);
  Time ask_for(Time now, const Operation& operation, Inbox& inbox, Rank to, PacketType wanted, Rank shard);
  std::vector<std::byte> written(Time now, Inbox& inbox, Rank to, PacketType wanted);
  bool is_gone(const ReceivedRun& run, const Operation* operation) const;
  Rank whom_to_ask(const Operation& operation, Rank owner) const;

  Core& core_;
  const Members& members_;
};

}  // namespace optireduce
