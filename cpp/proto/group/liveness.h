// What peers say in every header, the answers that they wait for, and those that do not answer.
#pragma once

#include <cstdint>

#include "group/members.h"

namespace optireduce {

class Liveness {
 public:
  Liveness(Core& core, Members& members) : core_(core), members_(members) {}

  /// Reads the header of a packet. True: its sender has completed more than was known.
  bool note_header(Time now, const Header& header);
  void answer_peers(Time now);
  /// Looks for peers that something waits for and that do not answer.
  void check_stuck_peers(Time now);
  /// Tells everybody who does not know yet what we have completed.
  void send_status();
  void ping_silent_peers();
  void ping_unfinished_peers();

 private:
  void note_wishes(Time now, Peer& peer, std::uint8_t flags);

  Core& core_;
  Members& members_;
};

}  // namespace optireduce
