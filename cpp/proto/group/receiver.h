// Packets in: checks them, and hands each to the part that it is for.
#pragma once

#include "group/checks.h"
#include "group/views.h"
#include "group/watch.h"
#include "wire/intake.h"

namespace optireduce {

class Receiver {
 public:
  Receiver(Core& core, Members& members, Requests& requests, Calls& calls, Learner& learner, Watch& watch,
           Views& views, Checks& checks)
      : core_(core),
        members_(members),
        requests_(requests),
        calls_(calls),
        learner_(learner),
        watch_(watch),
        views_(views),
        checks_(checks),
        intake_(core.config.seal, core.config.rank, core.config.size) {}

  void handle(Time now, const Datagram& datagram);

 private:
  void note_header(Time now, const Header& header);
  void note_wishes(Time now, Peer& peer, std::uint8_t flags);
  void handle_run(Time now, const ReceivedRun& run);
  void handle_data(Time now, const ReceivedRun& run);
  Operation* operation_for(Time now, const ReceivedRun& run);
  bool may_exist(const ReceivedRun& run) const;
  std::size_t early_bytes() const;
  std::size_t table_bytes(const Descriptor& descriptor) const;
  bool matches(Time now, const Operation& operation, const ReceivedRun& run);
  bool has_room(const Operation& operation, const ReceivedRun& run) const;
  void deliver(Time now, Operation& operation, const ReceivedRun& run);
  void go_on(Time now, std::uint64_t number);
  std::uint32_t deliver_contribution(Time now, Operation& operation, const ReceivedRun& run);
  std::uint32_t deliver_decision(Time now, Operation& operation, const ReceivedRun& run);
  void note_wanted(Time now, const ReceivedRun& run);
  void handle_reject(Time now, const ReceivedRun& run);
  void handle_goodbye(Time now, Rank peer);
  void handle_abstention(Time now, const ReceivedRun& run);

  Core& core_;
  Members& members_;
  Requests& requests_;
  Calls& calls_;
  Learner& learner_;
  Watch& watch_;
  Views& views_;
  Checks& checks_;
  Intake intake_;
};

}  // namespace optireduce
