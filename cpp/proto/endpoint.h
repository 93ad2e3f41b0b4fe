// The plain form of the protocol: every rank exchanges with every other one. See protocol.h for how it is
// driven. Inside, ranks are places in this endpoint's part of the group; what leaves it in reports, events
// and messages has the group's names for them (EndpointConfig::members).
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/archive.h"
#include "proto/buffer.h"
#include "proto/config.h"
#include "proto/early_store.h"
#include "proto/events.h"
#include "proto/group_health.h"
#include "proto/incast.h"
#include "proto/late_repair.h"
#include "proto/operation.h"
#include "proto/packet.h"
#include "proto/peer.h"
#include "proto/protocol.h"
#include "proto/repair_queue.h"
#include "proto/report.h"
#include "proto/stats.h"
#include "proto/time.h"
#include "proto/timeouts.h"
#include "proto/transmit.h"

namespace optireduce {

class Endpoint final : public Protocol {
 public:
  Endpoint(EndpointConfig config, BufferPool& pool);

  std::uint64_t start(Time now, const Descriptor& descriptor, std::byte* data,
                      const StartOptions& options) override;
  void ping_silent_peers() override;
  void ping_absent_peers(Time now) override;
  void ping_unfinished_peers() override;
  void say_goodbye(Time now) override;
  void handle_datagram(Time now, Datagram datagram) override;
  void handle_timeout(Time now) override;
  bool poll_transmit(Time now, Transmit& out) override;
  Time poll_timeout() const override { return next_timeout_; }
  std::optional<Report> poll_completion() override;
  std::optional<MembershipEvent> poll_event() override;

  bool heard(Rank peer) const override { return peers_[peer].heard; }
  bool idle() const override { return operations_.empty(); }
  bool everyone_caught_up() const override;
  bool has_quorum() const override { return !timeouts_.warmed_up() || present_ranks() >= least_ranks(); }
  bool may_have_quorum() const override;
  Stats stats() const override { return stats_; }
  PolicySnapshot policy(std::size_t bytes) const override;
  bool absent(Rank peer) const override { return peers_[peer].absent; }
  bool wants_late_packets() const override { return late_.wants_any(); }
  std::size_t archived_bytes() const override { return archive_.bytes(); }
  std::uint64_t completed(std::uint8_t) const override { return completed_; }
  Rank lane_ranks(std::uint8_t) const override { return config_.size; }

  void probe_group() override { controls_.push_back({PacketType::Status, config_.rank, 0, {}, {}, 0, true}); }
  void set_multicast(bool on) override { multicast_ = on; }
  bool heard_in_group(Rank peer) const override { return peers_[peer].heard_in_group; }
  bool multicasts() const override { return multicast_; }

  /// Pieces that peers asked for again and whose windows do not admit them yet.
  std::size_t waiting_repairs() const {
    return reduced_repairs_.size() + contribution_repairs_.size() + late_repairs_.size();
  }

  // ---- For a grid

  /// Takes the next operation's number without carrying it out, and tells the others why, if there is a
  /// reason.
  void pass_over(Time now, const std::optional<RejectBody>& why);
  /// Why an operation failed, if others had to be told.
  std::optional<RejectBody> rejection(std::uint64_t operation) const;
  /// First stage alone: an operation is over for all, its data is not touched any more.
  void release(Time now, std::uint64_t operation);
  /// First stage alone: the shard of an operation that was handed over.
  const OwnedShard& owned(std::uint64_t operation) { return find(operation)->owned(); }
  bool warmed_up() const { return timeouts_.warmed_up(); }

 private:
  /// A packet without gradient data that waits to be sent.
  struct Control {
    PacketType type;
    Rank to;
    std::uint64_t operation = 0;
    PacketType wanted = PacketType::Contribution;  // Request
    RejectBody reject;                             // Reject
    std::uint8_t flags = 0;
    bool to_group = false;  // to everybody instead of `to`
  };

  // Receiving.
  std::optional<Run> next_run(const Datagram& datagram, std::uint32_t& at);
  void handle_run(Time now, const Run& run);
  void handle_data(Time now, const Run& run);
  void keep_for_later(Time now, const Run& run);
  void deliver(Time now, Operation& operation, const Run& run);
  void handle_request(Time now, const Run& run);
  void handle_reject(Time now, const Run& run);
  void handle_goodbye(Time now, Rank peer);
  void handle_abstention(Time now, const Run& run);
  void handle_gone(Time now, const Run& run);
  void note_peer(Time now, const Header& header);
  void note_standing(Peer& peer, const Header& header);
  void note_echo(Time now, Peer& peer, const Header& header);
  void note_wishes(Time now, Peer& peer, std::uint8_t flags);
  void note_completed(Time now, Rank from, std::uint64_t completed);
  void count_bad(HeaderError error);

  // Operations.
  Operation* find(std::uint64_t operation);
  /// Operations below are over on every rank that is still here: other than us, that is.
  std::uint64_t completed_everywhere() const;
  void finish_if_complete(Time now, Operation& operation);
  /// Ends an operation well, whatever is missing.
  void conclude(Time now, Operation& operation);
  void fail(Time now, Operation& operation, ErrorCode code, std::string message, std::vector<Rank> ranks);
  void finish(Time now, Operation& operation, Report report);
  /// First stage alone: the result is there, but others may ask for our part of theirs again.
  void hand_over(Time now, Operation& operation);
  void complete(Report report);
  void remove(Time now, Operation& operation);
  void note_removed(Time now);
  Report report_of(Time now, const Operation& operation) const;
  void fail_rejected(Time now, Operation& operation, const RejectBody& body);
  void fail_deserted(Time now, Operation& operation, Rank peer);
  void fail_late(Time now, Operation& operation);
  void remember_rejection(std::uint64_t operation, const RejectBody& body);
  void tell_rejection(std::uint64_t operation, const RejectBody& body);
  void answer_rejected(std::uint64_t operation, Rank peer);

  // Deadlines and membership (endpoint_bounds.cpp).
  void set_bound(Operation& operation);
  Duration head_start(const Operation& operation) const;
  bool admit_participants(Time now, Operation& operation);
  void hurry_after_others(Time now, Operation& operation);
  void catch_up(Time now, Operation& operation, std::uint64_t operations_behind);
  void check_deadlines(Time now, Operation& operation);
  Duration repair_wait() const;
  void learn(Time now, const Operation& operation, const Report& report);
  void note_attendance(Time now, const Operation& operation);
  void welcome_back(Rank peer);
  Rank present_ranks() const;
  Rank least_ranks() const;
  bool lacks_ranks(const Operation& operation) const;
  void fail_too_few(Time now, Operation& operation);

  // What came too late (endpoint_late.cpp).
  void request_late(Time now);
  void request_late(Time now, std::uint64_t operation, Rank owner, const InboundFlow& flow);
  void tell_wants_nothing();
  void note_wants(Peer& peer, bool wants);
  bool anybody_wants() const;
  void release_archive();

  /// Goes back to unicast for good where the group does not reach somebody.
  void check_group();

  // Timers.
  void schedule(Time when) { next_timeout_ = std::min(next_timeout_, when); }
  Time give_up_time(const Operation& operation) const;
  void request_missing(Time now, Operation& operation);
  void request_flow(Time now, Operation& operation, Rank peer, PacketType wanted);
  void send_status_if_due(Time now);
  void answer_if_due(Time now);
  void check_stuck_peers(Time now);
  Duration silence_limit(const Peer& peer) const {
    return std::max(kLeastSilence, peer.rtt.repair_timeout() * 4);
  }

  // Sending.
  bool transmit_control(Time now, Transmit& out);
  bool transmit_repair(Time now, RepairQueue& repairs, Transmit& out);
  std::uint8_t standing_flags() const { return late_.wants_any() ? kFlagWants : std::uint8_t{0}; }
  bool transmit_data(Time now, Transmit& out);
  void finish_last_sender(Time now);
  InboundFlow* flow_of(const Control& request);
  bool fill_request(Time now, const Control& control, Transmit& out);
  void fill_control(Time now, const Control& control, std::size_t payload_bytes, Transmit& out);
  void fill_data(Time now, const OutgoingBatch& batch, std::uint32_t timestamp, Transmit& out);
  Header header_for(PacketType type, std::uint64_t operation, std::uint32_t timestamp) const;
  std::uint32_t next_timestamp(Time now);
  void note_sent(const Transmit& out);
  void note_batch_sent(OutgoingBatch& batch, std::uint32_t timestamp);
  void note_held_back(Time now);
  void note_held_back(Time now, Peer& peer);
  void add_echo(Time now, const Peer& peer, Header& header) const;

  static constexpr Duration kLeastSilence = Duration::millis(50);

  EndpointConfig config_;
  BufferPool& pool_;
  Stats stats_;
  std::vector<Peer> peers_;                                         // by rank; our own stays untouched
  std::map<std::uint64_t, std::unique_ptr<Operation>> operations_;  // in flight, oldest first
  std::map<std::uint64_t, RejectBody> rejected_;  // the last few failed operations, to answer latecomers
  Archive archive_;
  EarlyStore early_;
  std::deque<Control> controls_;
  LateRepair late_;
  bool wants_told_ = false;                   // peers may think that we lack something
  std::optional<std::uint64_t> last_sender_;  // whose packets were handed out last
  // What is to be sent again. Reduced packets first: without them replicas differ.
  RepairQueue reduced_repairs_;
  RepairQueue contribution_repairs_;
  RepairQueue late_repairs_;  // for ranks that are through with the operation: when nothing else is to send
  std::deque<Report> completions_;
  std::deque<MembershipEvent> events_;
  bool multicast_;
  GroupHealth health_;
  TimeoutPolicy timeouts_;
  IncastPolicy incast_;
  OutgoingBatch batch_;                // scratch
  std::vector<bool> genuine_;          // scratch: packets of the datagram whose seals are right
  std::vector<bool> blocked_;          // scratch: peers to whom an older operation must send first
  std::vector<RequestEntry> missing_;  // scratch
  std::uint64_t next_operation_ = 0;
  std::uint64_t completed_ = 0;   // all operations below are over here
  std::uint64_t late_bytes_ = 0;  // came for operations that were over, since the last lesson
  Time status_due_ = Time::never();
  Time hurried_until_;  // the last hard deadline of an operation without patience
  Time next_timeout_ = Time::never();
  std::int64_t last_timestamp_ = 0;  // microseconds
};

}  // namespace optireduce
