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
// The parts: group.cpp (calls), ends.cpp (their ends), receive.cpp and control.cpp (packets in), send.cpp
// (packets out), timeouts.cpp (time), views.cpp (membership), failures.cpp (errors).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "group/call.h"
#include "group/config.h"
#include "group/control.h"
#include "group/events.h"
#include "group/operations.h"
#include "group/progress.h"
#include "group/stats.h"
#include "group/timers.h"
#include "group/view_change.h"
#include "operation/best_effort_times.h"
#include "operation/report.h"
#include "operation/time_model.h"
#include "path/incast.h"
#include "path/multicast_health.h"
#include "path/peer.h"
#include "recovery/repair_queue.h"
#include "recovery/residual.h"
#include "wire/buffer.h"
#include "wire/received_run.h"
#include "wire/transmit.h"

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

/// What only tests and the simulator want to know.
struct Inspection {
  std::uint64_t view = 0;
  std::vector<Rank> members;
  bool away = false;
  bool left_behind = false;
  std::uint64_t completed = 0;
  std::size_t residual_bytes = 0;
  std::size_t engine_bytes = 0;  // of operations not begun, and of the log
  std::size_t waiting_repairs = 0;
};

class Group {
 public:
  Group(GroupConfig config, BufferPool& pool);

  // ---- Commands

  /// Takes the next number for a call, in place on its data. All ranks must make the same calls in the same
  /// order. Throws std::invalid_argument before it has changed anything. Never waits: a call that may not
  /// begin yet waits in the group.
  std::uint64_t start(Time now, const Call& call);
  /// The data of finished calls that stayed readable is about to be overwritten.
  void release(Time now);
  /// What is kept of a stream's excluded contributions. Forgets it.
  KeptValues take_residual(std::uint32_t stream) { return residuals_.take(stream); }
  /// The process stood still: what it did not hear meanwhile says nothing about others.
  void stood_still(Time now) { membership_.stood_still(now); }
  /// Asks every peer that has not been heard yet for a sign of life.
  void ping_silent_peers();
  /// Asks every peer that may still need our help what it has completed (before closing).
  void ping_unfinished_peers();
  /// Tells the members that we want to leave, and keeps serving.
  void prepare_to_leave(Time now);
  /// Fails everything that is not done and tells the peers that we are gone.
  void say_goodbye(Time now);

  // ---- Driving

  void handle_datagram(Time now, Datagram datagram);
  void handle_timeout(Time now);
  /// Fills `out` with the next batch; false if there is nothing to send now.
  bool poll_transmit(Time now, Transmit& out);
  /// When handle_timeout wants to be called, at the latest.
  Time poll_timeout() { return timers_.next(); }
  std::optional<Report> poll_completion();
  std::optional<MembershipEvent> poll_event();

  // ---- Getters

  bool heard(Rank peer) const { return peers_[peer].heard; }
  bool idle() const { return operations_.open().empty() && waiting_.empty(); }
  /// Whether every member has completed all that we have, so that nobody needs our data any more.
  bool everyone_caught_up() const;
  /// Whether nobody needs us any more after prepare_to_leave.
  bool may_leave() const;
  const Stats& stats() const { return stats_; }
  /// What the policies say now, for an operation of so many bytes.
  PolicySnapshot policy(std::size_t bytes) const;
  Inspection inspect() const;
  /// All operations below are over here.
  std::uint64_t completed() const { return progress_.completed(); }

  // ---- Multicast

  void probe_group() {
    controls_.push_back({.type = PacketType::Status, .to = config_.rank, .to_group = true});
  }
  void set_multicast(bool on) { multicast_.on = on; }
  bool heard_in_group(Rank peer) const { return peers_[peer].heard_in_group; }
  bool multicasts() const { return multicast_.on; }

 private:
  struct Waiting {
    std::uint64_t number;
    Call call;
    Time called_at;
  };
  struct Multicast {
    bool on;
    MulticastHealth health;
  };
  struct Repairs {
    RepairQueue decisions, contributions;
  };
  struct Outcomes {
    std::deque<Report> completions;
    std::deque<MembershipEvent> events;
    std::map<std::uint64_t, RejectBody> rejected;  // the last few failed operations, to answer latecomers
    std::set<std::uint64_t> failed;                // operations that failed ahead of their turn
    Time too_few_since = Time::never();
    bool told_left_behind = false;
  };
  struct Clock {
    std::int64_t last_timestamp = 0;             // microseconds
    std::optional<Operations::Key> last_sender;  // whose packets were handed out last
    std::uint64_t late_bytes = 0;  // best effort: came for operations that were over, since the last lesson
    std::uint32_t view_messages = 0;              // sent
    std::uint8_t oldest = 0;                      // age of our oldest residual
    bool away = false;                            // as was told
    bool hears_all = true;                        // members of the view
    RankMask suspects = 0;                        // that were counted
    Time viewed_at;                               // when the timer of the view fired last
    std::optional<std::uint64_t> says_completed;  // instead of what is: after the goodbye
  };
  struct Scratch {
    OutgoingBatch batch;
    std::vector<bool> genuine;  // packets of the datagram whose seals are right
    std::vector<bool> blocked;  // peers to whom an older operation must send first
    std::vector<RequestEntry> missing;
  };

  // Calls and their ends (group.cpp).
  void check(const Call& call) const;
  void begin_waiting(Time now);
  bool may_begin(const Waiting& waiting) const;
  void begin(Time now, const Waiting& waiting);
  OperationSetup setup_for(std::uint64_t number, Scope scope, const Descriptor& descriptor,
                           std::uint32_t stream) const;
  Operation& make_operation(Time now, std::uint64_t number, Scope scope, const Descriptor& descriptor,
                            std::uint32_t stream);
  void advance(Time now, Operation& operation);
  void advance_grid(Time now, Operation& operation);
  void begin_stage(Time now, std::uint64_t number, Scope scope, Operation& before);
  void complete_ready(Time now);
  void finish(Time now, Operation& operation);
  void note_completed(Time now, Report report);
  void learn(Time now, const Operation& operation);
  void learn_best_effort(Time now, const Operation& operation);
  void forget_old();
  std::vector<Rank> orphans_of(const Operation& operation) const;
  std::uint64_t least_completed() const;
  Report report_of(Time now, const Operation& operation) const;

  // Packets in (receive.cpp).
  std::optional<ReceivedRun> next_run(const Datagram& datagram, std::uint32_t& at);
  void note_peer(Time now, const Header& header);
  void note_echo(Time now, Peer& peer, const Header& header);
  void note_wishes(Time now, Peer& peer, std::uint8_t flags);
  void handle_run(Time now, const ReceivedRun& run);
  void handle_data(Time now, const ReceivedRun& run);
  Operation* operation_for(Time now, const ReceivedRun& run);
  bool matches(Time now, Operation& operation, const ReceivedRun& run);
  bool has_room(const Operation& operation, const ReceivedRun& run) const;
  bool may_accept(const Operation& operation, const ReceivedRun& run) const;
  void deliver(Time now, Operation& operation, const ReceivedRun& run);
  void handle_request(Time now, const ReceivedRun& run);
  void handle_reject(Time now, const ReceivedRun& run);
  void handle_goodbye(Time now, Rank peer);
  void handle_abstention(Time now, const ReceivedRun& run);
  void handle_view_piece(Time now, const ReceivedRun& run);

  // Time (timeouts.cpp).
  void fire(Time now, const TimerKey& timer);
  void check_timeout(Time now, std::uint64_t number);
  void check_shard(Time now, std::uint64_t number);
  void check_best_effort(Time now, Operation& operation);
  void begin_best_effort(Time now, Operation& operation);
  void end_best_effort(Time now, Operation& operation);
  void schedule_requests(Time now, Operation& operation);
  void request_missing(Time now, Operation& operation);
  Time request(Time now, Operation& operation, Rank place, PacketType wanted);
  void answer_peers(Time now);
  void check_stuck_peers(Time now);
  void send_status(Time now);
  void check_quorum(Time now);

  // Membership (views.cpp).
  Journal journal();
  std::vector<HeldShard> held(std::uint64_t operation, RankMask owners);
  std::uint64_t floor() const;
  void follow_views(Time now);
  void install(Time now, const View& view);
  void rejoin(Time now, const View& view);
  void apply_fates(Time now, Operation& operation);
  void fail_lost_exact(Time now, const View& view);
  void fail_rank_lost(Time now, std::uint64_t number, const View& view);
  void leave_behind(Time now);
  void note_owing(Time now);
  void set_view_timer(Time now);
  void set_pace();
  void send_view_messages(Time now);
  bool in_same_view(const Header& header) const;
  bool hears_quorum(Time now, const Operation& operation) const;
  RankMask holders(const Operation& operation, Rank owner) const;

  // Errors (failures.cpp).
  void fail(Time now, std::uint64_t number, ErrorCode code, std::string message, std::vector<Rank> ranks);
  void fail_rejected(Time now, std::uint64_t number, const RejectBody& body);
  void fail_deserted(Time now, Operation& operation, Rank peer);
  void fail_late(Time now, std::uint64_t number);
  void fail_too_few(Time now);
  void reject(std::uint64_t number, const RejectBody& body);
  void remember_rejection(std::uint64_t number, const RejectBody& body);
  void tell_rejection(std::uint64_t number, Rank to);

  // Packets out (send.cpp).
  bool transmit_control(Time now, Transmit& out);
  bool transmit_repair(Time now, RepairQueue& repairs, Transmit& out);
  bool transmit_data(Time now, Transmit& out);
  Operation* next_sender(Time now);
  bool fill_request(Time now, const Control& control, Transmit& out);
  void fill_control(Time now, const Control& control, std::size_t payload_bytes, Transmit& out);
  void fill_data(Time now, const OutgoingBatch& batch, std::uint32_t timestamp, Transmit& out);
  void send_batch(Time now, Operation& operation, Transmit& out);
  Header header_for(PacketType type, std::uint64_t operation, std::uint32_t timestamp) const;
  void add_echo(Time now, const Peer& peer, Header& header) const;
  std::uint32_t next_timestamp(Time now);
  void note_sent(const Transmit& out);
  void note_batch_sent(OutgoingBatch& batch, std::uint32_t timestamp);
  void note_held_back(Time now);
  void note_held_back(Time now, Rank rank);

  GroupConfig config_;
  BufferPool& pool_;
  Stats stats_;
  std::vector<Peer> peers_;  // by rank; our own stays untouched
  Progress progress_;
  Operations operations_;
  std::deque<Waiting> waiting_;  // calls that have not begun, oldest first
  Residuals residuals_;
  TimeModel times_;
  BestEffortTimes best_effort_;
  IncastPolicy incast_;
  Membership membership_;
  ViewChange changes_;
  std::vector<PieceCollector> pieces_;  // by rank
  Timers timers_;
  std::deque<Control> controls_;
  Repairs repairs_;
  Multicast multicast_;
  Outcomes outcomes_;
  Clock clock_;
  Scratch scratch_;
};

}  // namespace optireduce
