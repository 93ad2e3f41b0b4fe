// One rank's side of a group, as its drivers see it: a state machine without socket, thread or clock. Time is
// always an argument.
//
// Four families of methods (after quinn-proto):
//   commands   start, ping_*, say_goodbye   what the local rank wants
//   handle_*   something happened: a datagram came, a deadline passed
//   poll_*     what to do next: send this, wake me then, this operation is over
//   getters
// A driver calls a command or a handle_*, then poll_transmit until it returns false, then takes the
// completions. cpp/engine drives it over sockets, cpp/sim in virtual time. There are two: an Endpoint, which
// exchanges with every other rank, and a Grid of endpoints; both behind a QuorumGate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "proto/buffer.h"
#include "proto/config.h"
#include "proto/events.h"
#include "proto/operation.h"
#include "proto/packet.h"
#include "proto/report.h"
#include "proto/stats.h"
#include "proto/time.h"
#include "proto/transmit.h"

namespace optireduce {

/// What a socket delivered: one packet, or several of equal length (the last may be shorter) in one buffer
/// (GRO).
struct Datagram {
  Rank from = 0;
  BufferRef buffer;
  std::uint32_t bytes = 0;  // where the last packet ends in the buffer
  std::uint32_t segment_bytes = 0;
  std::uint32_t begin = 0;  // where the first one begins
  bool group = false;       // came by multicast
};

class Protocol {
 public:
  virtual ~Protocol() = default;

  /// Starts the next all-reduce, in place on `data`, which must stay valid until its completion. Ranks must
  /// start their operations in the same order. Returns the operation's number: 0, 1, 2, ...
  virtual std::uint64_t start(Time now, const Descriptor& descriptor, std::byte* data,
                              const StartOptions& options) = 0;

  /// Asks every peer that has not been heard yet for a sign of life.
  virtual void ping_silent_peers() = 0;

  /// Asks every peer that is absent for a sign of life, now and then.
  virtual void ping_absent_peers(Time now) = 0;

  /// Asks every peer that may still need our help what it has completed (before closing).
  virtual void ping_unfinished_peers() = 0;

  /// Fails everything that is not done and tells the peers that we leave.
  virtual void say_goodbye(Time now) = 0;

  virtual void handle_datagram(Time now, Datagram datagram) = 0;
  virtual void handle_timeout(Time now) = 0;

  /// Fills `out` with the next batch; false if there is nothing to send now.
  virtual bool poll_transmit(Time now, Transmit& out) = 0;

  /// When handle_timeout wants to be called, at the latest.
  virtual Time poll_timeout() const = 0;

  /// The next operation that is over.
  virtual std::optional<Report> poll_completion() = 0;
  /// The next rank that went absent or came back, or that multicast does not reach.
  virtual std::optional<MembershipEvent> poll_event() = 0;

  virtual bool heard(Rank peer) const = 0;
  virtual bool idle() const = 0;
  /// Whether every peer has completed all that we have (or has left), so that nobody needs our data any more.
  virtual bool everyone_caught_up() const = 0;
  /// Whether enough ranks are there (BoundOptions::min_ranks) for operations with a deadline, if there are
  /// any yet; and whether there ever can be: who has left does not come back.
  virtual bool has_quorum() const = 0;
  virtual bool may_have_quorum() const = 0;
  virtual Stats stats() const = 0;
  /// What the policies say now, for an operation of so many bytes.
  virtual PolicySnapshot policy(std::size_t bytes) const = 0;
  virtual bool absent(Rank peer) const = 0;
  virtual bool wants_late_packets() const = 0;
  virtual std::size_t archived_bytes() const = 0;
  /// All of a lane's operations below are over here.
  virtual std::uint64_t completed(std::uint8_t lane) const = 0;
  /// How many ranks a lane has.
  virtual Rank lane_ranks(std::uint8_t lane) const = 0;

  // ---- Multicast, for protocols that can use a group: others never hear anybody in it.

  /// Lets everybody hear us in the group once.
  virtual void probe_group() {}
  /// Whether reduced packets go to the group from now on.
  virtual void set_multicast(bool) {}
  virtual bool heard_in_group(Rank) const { return false; }
  virtual bool multicasts() const { return false; }
};

}  // namespace optireduce
