// What to send next, and what to ask and answer as time passes. The order: control packets, packets that were
// asked for again, decisions, contributions, what ranks outside the view ask for; of each the oldest
// operation first.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "group/members.h"
#include "wire/packet.h"

namespace optireduce {

class Sender {
 public:
  Sender(Core& core, const Members& members) : core_(core), members_(members) {}

  /// Fills `out`, which is empty, with the next batch; false if there is nothing to send now.
  bool poll(Time now, Transmit& out);
  /// The operation that handed out its own packets last. It may be over with them, but only when they have
  /// left: its end gives the memory back.
  std::optional<std::uint64_t> take_last_sender() { return std::exchange(last_sender_, std::nullopt); }

  /// Tells peers what has arrived, and that they may go on.
  void answer_peers(Time now);
  /// Looks for peers that something waits for and that do not answer.
  void check_stuck_peers(Time now);
  /// Tells everybody who does not know yet what we have completed.
  void send_status() {
    core_.tell_all(PacketType::Status, [this](const Peer& peer) {
      return peer.present() && peer.told < core_.progress.completed();
    });
  }
  void ping_silent_peers() {
    core_.tell_all(PacketType::Ping,
                   [this](const Peer& peer) { return peer.rank != core_.config.rank && !peer.heard; });
  }
  void ping_unfinished_peers() {
    core_.tell_all(PacketType::Ping, [this](const Peer& peer) {
      return peer.present() && peer.completed < core_.progress.completed();
    });
  }

 private:
  bool transmit_control(Time now, Transmit& out);
  bool transmit_repair(Time now, bool to_members, Transmit& out);
  bool is_over(Repair& repair, const Operation* operation);
  Operation* next_sender(Time now);
  void send_batch(Time now, Operation& operation, Transmit& out) {
    const std::uint32_t timestamp = next_timestamp(now);
    operation.exchange().stamp(batch_, timestamp);
    charge_windows(timestamp);
    fill_data(now, timestamp, out);
  }
  void fill_data(Time now, std::uint32_t timestamp, Transmit& out);
  Header header_for(PacketType type, std::uint64_t operation, std::uint32_t timestamp) const;
  void add_echo(Time now, Rank to, Header& header) const;
  std::uint32_t next_timestamp(Time now);
  void note_sent(const Transmit& out);
  void describe(const Control& request, Header& header) const;
  void set_answer_timer();
  void charge_windows(std::uint32_t timestamp);
  void note_held_back(Time now);
  void note_held_back(Time now, Peer& peer);
  void ping_stuck(const Peer& peer);

  Core& core_;
  const Members& members_;
  std::optional<std::uint64_t> last_sender_;
  OutgoingBatch batch_;                // scratch, as the following
  std::vector<bool> blocked_;          // peers to whom an older operation must send first
  std::vector<Operation*> same_step_;  // operations before the one that is looked at
};

}  // namespace optireduce
