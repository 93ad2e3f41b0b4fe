#include "group/receiver.h"

#include <algorithm>
#include <utility>

namespace optireduce {
namespace {

/// Of an operation, for others than its sender.
bool says_something(PacketType type) {
  return is_data(type) || type == PacketType::Abstain || type == PacketType::Reject ||
         type == PacketType::Gone;
}

}  // namespace

void Receiver::handle(Time now, const Datagram& datagram) {
  Stats& stats = core_.stats;
  bool forged = false;
  intake_.open(datagram);
  for (std::uint32_t at = datagram.begin; at < datagram.bytes;) {
    std::optional<ReceivedRun> run = intake_.next(datagram, at, forged);
    if (!run) {
      ++(forged ? stats.forged_packets : stats.invalid_packets);
      continue;
    }
    run->operation = widen(run->header.operation, core_.progress.next_call());
    run->received_at = now;
    stats.packets_received += run->packets;
    stats.payload_bytes_received += run->payload_bytes();
    note_header(now, run->header);
    if (datagram.group) core_.peers[run->header.sender].heard_in_group = true;
    handle_run(now, *run);
  }
}

/// A packet may have been overtaken on the way, or recorded by somebody and sent again: then it is no news.
/// The operations say so first, because timestamps come around again in 71 minutes.
void Receiver::note_header(Time now, const Header& header) {
  Peer& peer = core_.peers[header.sender];
  note_wishes(now, peer, header.flags);  // to answer once too often does no harm
  const std::uint64_t completed = widen(header.completed, peer.completed);
  if (completed < peer.completed) return;
  const bool news = !peer.heard || completed > peer.completed || not_before(header.timestamp, peer.newest);
  if (news && members_.heard(now, header)) calls_.complete_ready(now);
  // Idle for longer than half of the clock's range: the old echo says nothing about the new one.
  if (peer.heard && now - peer.newest_at > Duration::millis(1'000'000)) peer.echoed = false;
  if ((header.flags & kFlagEcho) != 0)
    peer.note_echo(now, header.echo, header.hold, static_cast<std::uint32_t>(core_.last_timestamp));
  if (!news) return;
  peer.heard = true;
  peer.newest_at = now;
  peer.newest = header.timestamp;
  peer.oldest = header.oldest;
  peer.window.set_incast(header.incast, core_.config.size - 1u);
  if ((header.flags & kFlagGoOn) != 0) peer.window.on_go_on(peer.echo);
  if (completed <= peer.completed || !members_.tells_progress(header)) return;
  peer.completed = std::min(completed, core_.progress.next_call() + kMaxCallsAhead);
  members_.advanced(header, peer.completed);
  calls_.forget_old();
  calls_.begin_waiting(now);
}

void Receiver::note_wishes(Time now, Peer& peer, std::uint8_t flags) {
  const Time soon = now + core_.config.path.answer_delay;
  if ((flags & kFlagAnswer) != 0) peer.answer_due = std::min(peer.answer_due, soon);
  if ((flags & kFlagHeld) != 0) peer.go_on_due = std::min(peer.go_on_due, soon);
  const Time due = std::min(peer.answer_due, peer.go_on_due);
  if (due != Time::never()) core_.timers.set_earlier({TimerKind::Answer}, due);
}

void Receiver::handle_run(Time now, const ReceivedRun& run) {
  const Header& header = run.header;
  if (header.type == PacketType::View) {
    members_.handle_piece(now, run);
    return views_.follow(now);  // before the next packet: nothing of the old view may begin in the new
  }
  if (header.type == PacketType::Ping) core_.tell(PacketType::Status, header.sender);
  if (members_.of_other_view(header)) {
    core_.stats.other_view_packets += run.packets;
    // Whoever is away never sees the view in which the others end.
    if (header.type == PacketType::Goodbye && members_.changes.standing().away)
      core_.peers[header.sender].left = true;
    return members_.note_other_view(now, header);
  }
  // A rank that replays outside the view asks for decisions. Nothing else of it counts.
  if (!members_.is_member(header.sender) && says_something(header.type)) {
    core_.stats.other_view_packets += run.packets;
    return;
  }
  switch (header.type) {
    case PacketType::Contribution:
    case PacketType::Decision:
      return handle_data(now, run);
    case PacketType::Gone:
      return learner_.note_gone(now, run.operation, header.shard, header.sender);
    case PacketType::Request:
      note_wanted(now, run);
      return requests_.handle(now, run);
    case PacketType::Reject:
      return handle_reject(now, run);
    case PacketType::Goodbye:
      return handle_goodbye(now, header.sender);
    case PacketType::Abstain:
      return handle_abstention(now, run);
    case PacketType::Check:
      return checks_.handle(run);
    default:
      return;  // the header, which was read before, is all they say
  }
}

// ---- Data

void Receiver::handle_data(Time now, const ReceivedRun& run) {
  Stats& stats = core_.stats;
  Operation* const operation = operation_for(now, run);
  if (operation == nullptr || !matches(now, *operation, run)) return;
  std::uint64_t* const refused = !operation->exchange().fits(run)        ? &stats.malformed_packets
                                 : !has_room(*operation, run)            ? &stats.early_dropped
                                 : !members_.may_accept(*operation, run) ? &stats.other_view_packets
                                                                         : nullptr;
  if (refused != nullptr) {
    *refused += run.packets;
    return;
  }
  if (!operation->begun()) stats.early_packets += run.packets;
  deliver(now, *operation, run);
}

/// The operation that a packet belongs to, made if this is the first packet of it. Null: it is over, or
/// cannot be.
Operation* Receiver::operation_for(Time now, const ReceivedRun& run) {
  const Header& header = run.header;
  const std::uint64_t number = run.operation;
  if (Operation* open = core_.operations.find_open(number)) return open;
  if (const RejectBody* rejection = core_.outcomes.rejection(number)) {
    core_.tell_rejection(number, *rejection, header.sender);
    return nullptr;
  }
  if (number < core_.progress.completed()) {
    core_.stats.stale_packets += run.packets;
    if ((header.flags & kFlagResent) == 0) core_.best_effort.note_late(run.payload_bytes());
    return nullptr;
  }
  if (!may_exist(run)) {
    core_.stats.early_dropped += run.packets;
    return nullptr;
  }
  return &calls_.make_operation(now, number, header.descriptor, header.stream);
}

bool Receiver::may_exist(const ReceivedRun& run) const {
  const Descriptor& descriptor = run.header.descriptor;
  const std::size_t bytes = std::size_t{descriptor.elements} * size_of(descriptor.dtype);
  return run.operation < core_.progress.next_call() + kMaxCallsAhead &&
         run.operation < members_.reach_end() && bytes <= core_.most_bytes() &&
         early_bytes() + table_bytes(descriptor) <= core_.config.early_bytes;
}

/// Memory for packets, and for operations that the process has not begun.
std::size_t Receiver::early_bytes() const {
  std::size_t used = core_.pool.bytes_in_use();
  for (const auto& [_, open] : core_.operations.open())
    used += open->begun() ? 0 : open->exchange().engine_bytes() + table_bytes(open->descriptor());
  return used;
}

/// About what an operation costs before it has any data: one short packet names a bucket of many gigabytes.
std::size_t Receiver::table_bytes(const Descriptor& descriptor) const {
  constexpr std::size_t kOfOperation = 1024, kOfPlace = 512, kOfChunk = 64;
  const std::uint32_t payload = core_.config.path.payload_bytes;
  const std::size_t chunk_bytes = std::size_t{chunk_packets_for(payload)} * payload;
  const std::size_t bytes = std::size_t{descriptor.elements} * size_of(descriptor.dtype);
  return kOfOperation + core_.config.size * kOfPlace + bytes / chunk_bytes * kOfChunk;
}

bool Receiver::matches(Time now, const Operation& operation, const ReceivedRun& run) {
  const Header& header = run.header;
  if (header.descriptor == operation.descriptor() && header.stream == operation.setup().stream) return true;
  if (operation.begun())  // else the local call will tell who is right
    calls_.reject(now, operation.number(),
                  {RejectReason::Mismatch, header.sender, core_.config.rank, operation.descriptor(),
                   header.descriptor});
  return false;
}

/// Packets of operations that the process has not begun take no more than their share of memory: they are
/// asked for again later.
bool Receiver::has_room(const Operation& operation, const ReceivedRun& run) const {
  if (operation.begun()) return true;
  std::size_t used = early_bytes();
  if (run.header.type == PacketType::Decision && !operation.exchange().bucket().holds(run.header.shard))
    used += operation.gather().shard(operation.gather().owner(run.header.shard)).bytes;
  return used <= core_.config.early_bytes;
}

void Receiver::deliver(Time now, Operation& operation, const ReceivedRun& run) {
  const std::uint32_t fresh = run.header.type == PacketType::Contribution
                                  ? deliver_contribution(now, operation, run)
                                  : deliver_decision(now, operation, run);
  if (fresh == 0) core_.stats.duplicate_packets += run.packets;
  if ((run.header.flags & kFlagResent) != 0) {
    operation.repaired_bytes += fresh;
    core_.stats.repaired_bytes += fresh;
  }
  go_on(now, operation.number());
}

/// Each of these may end the operation, after which it need not exist any more.
void Receiver::go_on(Time now, std::uint64_t number) {
  if (members_.membership.leaving() != 0) calls_.begin_waiting(now);  // it is not the first any more
  calls_.check_shard(now, number);
  if (Operation* open = core_.operations.find_open(number)) calls_.advance(now, *open);
}

std::uint32_t Receiver::deliver_contribution(Time now, Operation& operation, const ReceivedRun& run) {
  /// Above this much held memory, small runs are moved out of their large receive buffers.
  constexpr std::size_t kCompactAboveBytes = 8 * 1024 * 1024;
  const Rank from = run.header.sender;
  const bool roomy = core_.pool.bytes_in_use() <= kCompactAboveBytes;
  const std::uint32_t undecided = operation.scatter().undecided_packets();
  const std::uint32_t fresh = operation.accept_contribution(now, roomy ? run : compacted(run, core_.pool));
  if (operation.scatter().undecided_packets() != undecided) core_.progress.touch(operation.number());
  requests_.schedule(operation,
                     operation.exchange().collector(run.header.shard)->inbox(operation.place_of(from)), from);
  return fresh;
}

std::uint32_t Receiver::deliver_decision(Time now, Operation& operation, const ReceivedRun& run) {
  const Rank from = run.header.sender;
  const Rank owner = operation.gather().owner(run.header.shard);
  const std::uint32_t fresh = operation.accept_decision(now, run, core_.residuals);
  if (fresh != 0) core_.progress.touch(operation.number());
  if (fresh != 0 && operation.setup().above(operation.setup().me, owner) == operation.place_of(from)) {
    const std::uint32_t last = run.header.offset / core_.config.path.payload_bytes + run.packets - 1;
    const std::uint32_t sent_at = operation.exchange().sent_at(owner, last);
    if (sent_at != 0) {
      core_.peers[from].window.on_returned(sent_at);
      core_.peers[from].note_answer();
    }
  }
  if (requests_.wants_decisions(operation, owner))
    requests_.schedule(operation, operation.gather().inbox(owner), from);
  return fresh;
}

// ---- Control packets

/// While somebody leaves, calls wait for somebody else to begin. Who owns no part of the operation hears of
/// it only from one that waits for us.
void Receiver::note_wanted(Time now, const ReceivedRun& run) {
  if (members_.membership.leaving() == 0 || run.header.descriptor.elements == 0) return;
  if (run.operation < core_.progress.completed() || operation_for(now, run) == nullptr) return;
  calls_.begin_waiting(now);
}

void Receiver::handle_reject(Time now, const ReceivedRun& run) {
  const auto body = from_bytes<RejectBody>({run.payload(0), run.header.length}, core_.config.size);
  const Progress& progress = core_.progress;
  if (!body) {
    ++core_.stats.malformed_packets;
    return;
  }
  if (body->reason == RejectReason::Silent) watch_.told_lost(now, body->culprit);
  if (run.operation >= progress.completed() && run.operation < progress.next_call()) {
    calls_.fail(now, run.operation, *body);
  } else if (run.operation >= progress.next_call() && run.operation - progress.next_call() < kMaxCallsAhead) {
    core_.outcomes.remember_rejection(run.operation, *body);
    core_.operations.erase(run.operation);  // nothing will come of packets that were early
  }
}

/// A rank leaves when everybody has what it completed, or does not care: what is still missing from it will
/// not come.
void Receiver::handle_goodbye(Time now, Rank peer) {
  if (!core_.config.elastic()) return watch_.left(now, peer);
  core_.peers[peer].left = true;
  members_.changes.suspect(now, bit_of(peer));  // to hear it again is no sign of life
}

void Receiver::handle_abstention(Time now, const ReceivedRun& run) {
  Operation* const operation = core_.operations.find_open(run.operation);
  if (operation == nullptr || !members_.may_accept(*operation, run)) return;  // it is asked for again
  operation->note_abstention(now, run.header.sender);
  go_on(now, run.operation);
}

}  // namespace optireduce
