// The part of Group that takes packets in.
#include <algorithm>

#include "group/group.h"

namespace optireduce {
namespace {

/// Above this much held memory, small runs are moved out of their large receive buffers.
constexpr std::size_t kCompactAboveBytes = 8 * 1024 * 1024;

/// From one packet to the next.
std::uint32_t stride_of(const Datagram& datagram) {
  return std::max<std::uint32_t>(1, std::min(datagram.segment_bytes, datagram.bytes));
}

bool is_data(PacketType type) {
  return type == PacketType::Contribution || type == PacketType::Decision;
}

}  // namespace

void Group::handle_datagram(Time now, Datagram datagram) {
  const std::span packets(datagram.buffer.data() + datagram.begin, datagram.bytes - datagram.begin);
  config_.seal.open_all(packets, stride_of(datagram), scratch_.genuine);
  std::uint32_t at = datagram.begin;
  while (at < datagram.bytes) {
    std::optional<ReceivedRun> run = next_run(datagram, at);
    if (!run) continue;
    run->received_at = now;
    stats_.packets_received += run->packets;
    stats_.payload_bytes_received += run->payload_bytes();
    note_peer(now, run->header);
    if (datagram.group) peers_[run->header.sender].heard_in_group = true;
    handle_run(now, *run);
  }
  follow_views(now);
}

/// Decodes the packet at `at` and those behind it that continue it, and moves `at` past them. Nothing if the
/// packet is bad. No byte of a packet is believed before its seal has been checked.
std::optional<ReceivedRun> Group::next_run(const Datagram& datagram, std::uint32_t& at) {
  const std::uint32_t stride = stride_of(datagram);
  const auto packet_at = [&](std::uint32_t where) {
    return std::span<const std::byte>(datagram.buffer.data() + where,
                                      std::min(stride, datagram.bytes - where));
  };
  const auto is_genuine = [&](std::uint32_t where) {
    return scratch_.genuine[(where - datagram.begin) / stride];
  };
  const std::uint32_t begin = at;
  at += stride;
  const Decoded first = decode_opened(packet_at(begin), is_genuine(begin), config_.size);
  if (!first.header || first.header->sender != datagram.from || first.header->sender == config_.rank) {
    ++(!first.header && first.error == HeaderError::BadSeal ? stats_.forged_packets : stats_.invalid_packets);
    return std::nullopt;
  }
  ReceivedRun run{*first.header,
                  widen(first.header->operation, progress_.next_call()),
                  datagram.buffer,
                  begin,
                  stride,
                  1,
                  first.header->length,
                  {}};
  while (is_data(run.header.type) && at < datagram.bytes && run.last_length == run.header.length &&
         is_genuine(at)) {
    const std::span<const std::byte> next = packet_at(at);
    if (!continues(packet_at(begin), next, run.header.offset + run.packets * run.header.length)) break;
    run.last_length = static_cast<std::uint32_t>(next.size() - kHeaderBytes);
    ++run.packets;
    at += stride;
  }
  return run;
}

/// A packet may have been overtaken on the way, or recorded by somebody and sent again: then it is no news.
/// The operations say so first, because timestamps come around again in 71 minutes.
void Group::note_peer(Time now, const Header& header) {
  Peer& peer = peers_[header.sender];
  note_wishes(now, peer, header.flags);  // to answer once too often does no harm
  const std::uint64_t completed = widen(header.completed, peer.completed);
  if (completed < peer.completed) return;
  const bool news = !peer.heard || completed > peer.completed || not_before(header.timestamp, peer.newest);
  if (config_.elastic() && in_same_view(header) && news) {
    membership_.heard(now, header.sender);
    if ((header.flags & kFlagHearsAll) != 0)
      membership_.told_hearing(now, header.sender, membership_.view().members);
  }
  // Idle for longer than half of the clock's range: the old echo says nothing about the new one.
  if (peer.heard && now - peer.newest_at > Duration::millis(1'000'000)) peer.echoed = false;
  if ((header.flags & kFlagEcho) != 0) note_echo(now, peer, header);
  if (!news) return;
  peer.heard = true;
  peer.last_heard = peer.newest_at = now;
  peer.newest = header.timestamp;
  peer.oldest = header.oldest;
  peer.window.set_incast(header.incast, config_.size - 1u);
  if ((header.flags & kFlagGoOn) != 0) peer.window.on_go_on(peer.echo);
  if (completed <= peer.completed) return;
  peer.completed = std::min(completed, progress_.next_call() + kMaxCallsAhead);
  if (config_.elastic() && in_same_view(header)) membership_.advanced(header.sender, peer.completed);
  forget_old();
  begin_waiting(now);
}

/// What the peer has seen of ours is no longer under way; how long that took tells about queues.
void Group::note_echo(Time now, Peer& peer, const Header& header) {
  const bool sent = not_before(static_cast<std::uint32_t>(clock_.last_timestamp), header.echo);
  if (!sent || (peer.echoed && not_before(peer.echo, header.echo))) return;
  peer.echo = header.echo;
  peer.echoed = true;
  peer.note_answer();
  peer.window.on_arrived(header.echo);
  if (!config_.rows.empty()) peer.window.on_go_on(header.echo);  // nothing comes back in a grid's first stage
  constexpr std::uint16_t kTooLong = 65'535;
  const Duration round_trip = since(header.echo, now) - Duration::micros(header.hold);
  if (header.hold == kTooLong || round_trip.ns <= 0) return;
  peer.window.on_round_trip(now, round_trip);
  peer.rtt.sample(round_trip);
}

void Group::note_wishes(Time now, Peer& peer, std::uint8_t flags) {
  if ((flags & kFlagAnswer) != 0)
    peer.answer_due = std::min(peer.answer_due, now + config_.path.answer_delay);
  if ((flags & kFlagHeld) != 0) peer.go_on_due = std::min(peer.go_on_due, now + config_.path.answer_delay);
  const Time due = std::min(peer.answer_due, peer.go_on_due);
  if (due != Time::never()) timers_.set_earlier({TimerKind::Answer}, due);
}

void Group::handle_run(Time now, const ReceivedRun& run) {
  const Header& header = run.header;
  if (header.type == PacketType::View) return handle_view_piece(now, run);
  if (config_.elastic() && !in_same_view(header)) {
    // A packet counts only in the view in which it was sent.
    stats_.other_view_packets += run.packets;
    const auto distance =
        static_cast<std::int16_t>(header.view - static_cast<std::uint16_t>(membership_.view().number));
    const std::int64_t number = static_cast<std::int64_t>(membership_.view().number) + distance;
    if (number >= 0) changes_.saw_view(now, header.sender, static_cast<std::uint64_t>(number));
    if (header.type == PacketType::Ping)
      controls_.push_back({.type = PacketType::Status, .to = header.sender});
    return;
  }
  switch (header.type) {
    case PacketType::Contribution:
    case PacketType::Decision:
      return handle_data(now, run);
    case PacketType::Request:
      return handle_request(now, run);
    case PacketType::Ping:
      controls_.push_back({.type = PacketType::Status, .to = header.sender});
      return;
    case PacketType::Reject:
      return handle_reject(now, run);
    case PacketType::Goodbye:
      return handle_goodbye(now, header.sender);
    case PacketType::Abstain:
      return handle_abstention(now, run);
    default:
      return;  // the header, which note_peer read, is all they say
  }
}

void Group::handle_data(Time now, const ReceivedRun& run) {
  Operation* const operation = operation_for(now, run);
  if (operation == nullptr || !matches(now, *operation, run)) return;
  if (!operation->fits(run)) {
    stats_.malformed_packets += run.packets;
    return;
  }
  if (!has_room(*operation, run)) {
    stats_.early_dropped += run.packets;
    return;
  }
  if (!may_accept(*operation, run)) {
    stats_.other_view_packets += run.packets;
    return;
  }
  if (!operation->begun()) stats_.early_packets += run.packets;
  deliver(now, *operation, run);
}

/// The operation that a packet belongs to, made if this is the first packet of it. Null: it is over, or there
/// is no room.
Operation* Group::operation_for(Time now, const ReceivedRun& run) {
  const std::uint64_t number = run.operation;
  if (Operation* open = operations_.find_open(number, run.header.scope)) return open;
  if (outcomes_.rejected.contains(number)) {
    tell_rejection(number, run.header.sender);
    return nullptr;
  }
  if (number < progress_.completed()) {
    stats_.stale_packets += run.packets;
    if ((run.header.flags & kFlagResent) == 0) clock_.late_bytes += run.payload_bytes();
    return nullptr;
  }
  const bool grid_scope = run.header.scope != Scope::All;
  const std::size_t bytes =
      std::size_t{run.header.descriptor.elements} * size_of(run.header.descriptor.dtype);
  const bool possible =
      number < progress_.next_call() + kMaxCallsAhead && (number < changes_.reach_end()) &&
      grid_scope == (!config_.rows.empty() && run.header.descriptor.op != ReduceOp::Gather) &&
      bytes <= Schedule::max_bytes(config_.size);
  if (!possible) {
    stats_.early_dropped += run.packets;
    return nullptr;
  }
  Operation& made = make_operation(now, number, run.header.scope, run.header.descriptor, run.header.stream);
  return operations_.find_open(number, run.header.scope) == &made ? &made : nullptr;
}

bool Group::matches(Time now, Operation& operation, const ReceivedRun& run) {
  if (run.header.descriptor == operation.descriptor() && run.header.stream == operation.setup().stream)
    return true;
  if (!operation.begun()) return false;  // the local call will tell who is right
  const RejectBody body{RejectReason::Mismatch, run.header.sender, config_.rank, operation.descriptor(),
                        run.header.descriptor};
  reject(operation.number(), body);
  fail_rejected(now, operation.number(), body);
  return false;
}

/// Packets of operations that the process has not begun take no more than their share of memory: they are
/// asked for again later.
bool Group::has_room(const Operation& operation, const ReceivedRun& run) const {
  if (operation.begun()) return true;
  std::size_t used = pool_.bytes_in_use();
  for (const auto& [_, open] : operations_.open()) used += open->begun() ? 0 : open->engine_bytes();
  const bool decision = run.header.type == PacketType::Decision;
  const bool known = decision && operation.stands_in_for(run.header.shard);
  const std::size_t more =
      !decision || known ? 0 : operation.gather().shard(operation.gather().owner(run.header.shard)).bytes;
  return used + more <= config_.early_bytes;
}

/// The rules of a view change (views.md): what is collected must not grow behind the proposer's back.
bool Group::may_accept(const Operation& operation, const ReceivedRun& run) const {
  if (!config_.elastic()) return true;
  const Rank from = run.header.sender;
  if (changes_.away() || changes_.is_lost() || !membership_.view().contains(from)) return false;
  if (operation.number() >= changes_.reach_end()) return false;
  if (run.header.type == PacketType::Decision) return !has(changes_.deaf(), from);
  const bool waits = !operation.descriptor().bounded && changes_.changing();
  return membership_.serves(from, operation.number()) && !waits;
}

void Group::deliver(Time now, Operation& operation, const ReceivedRun& run) {
  const Rank from = run.header.sender;
  std::uint32_t fresh;
  if (run.header.type == PacketType::Contribution) {
    const bool roomy = pool_.bytes_in_use() <= kCompactAboveBytes;
    const std::uint32_t undecided = operation.scatter().undecided_packets();
    fresh = operation.accept_contribution(now, roomy ? run : compacted(run, pool_));
    if (operation.scatter().undecided_packets() != undecided) progress_.touch(operation.number());
    const Inbox& inbox = operation.scatter().inbox(operation.place_of(from));
    timers_.set_earlier({TimerKind::Request, operation.number()},
                        inbox.request_due(peers_[from].rtt.timers(config_.path.reorder_delay)));
  } else {
    const Rank owner = operation.gather().owner(run.header.shard);
    fresh = operation.accept_decision(now, run, residuals_);
    if (fresh != 0) progress_.touch(operation.number());
    const std::uint32_t last = run.header.offset / config_.path.payload_bytes + run.packets - 1;
    const std::uint32_t sent_at = operation.reduces() && operation.rank_at(owner) == from
                                      ? operation.scatter().outbox(owner).sent_at(last)
                                      : 0;
    if (sent_at != 0 && fresh != 0) {
      peers_[from].window.on_returned(sent_at);
      peers_[from].note_answer();
    }
    if (operation.begun()) {
      const Inbox& inbox = operation.gather().inbox(owner);
      timers_.set_earlier({TimerKind::Request, operation.number()},
                          inbox.request_due(peers_[from].rtt.timers(config_.path.reorder_delay)));
    }
  }
  if (fresh == 0) stats_.duplicate_packets += run.packets;
  if ((run.header.flags & kFlagResent) != 0) {
    operation.repaired_bytes += fresh;
    stats_.repaired_bytes += fresh;
  }
  // Each of these may end the operation, after which it need not exist any more.
  const Operations::Key key{operation.number(), operation.setup().scope};
  if (operation.descriptor().bounded) check_shard(now, key.first);
  if (Operation* open = operations_.find_open(key.first, key.second)) advance(now, *open);
}

void Group::handle_request(Time now, const ReceivedRun& run) {
  ++stats_.requests_received;
  const std::span payload(run.payload(0), run.header.length);
  const auto body = decode_request(payload);
  if (!body) {
    ++stats_.malformed_packets;
    return;
  }
  if (outcomes_.rejected.contains(run.operation)) return tell_rejection(run.operation, run.header.sender);
  const Rank from = run.header.sender;
  Operation* const operation = operations_.find_any(run.operation, run.header.scope);
  const bool contribution = body->wanted == PacketType::Contribution;
  if (operation == nullptr || (contribution && operation->finished())) {
    // Any header says that we are through: enough for who waits for our contribution.
    controls_.push_back({.type = PacketType::Status, .to = from});
    return;
  }
  if (contribution && operation->begun() && operation->call().weight == 0) {
    controls_.push_back(
        {.type = PacketType::Abstain, .to = from, .operation = run.operation, .scope = run.header.scope});
    return;
  }
  const auto min_age =
      static_cast<std::uint32_t>(peers_[from].rtt.timers(config_.path.reorder_delay).retry.ns / 1000);
  const RequestContext context{operation->place_of(from), from, body->newest, as_timestamp(now), min_age};
  bool lost = false;
  for (std::size_t i = 0; i < body->entries; ++i) {
    const RequestEntry entry = decode_entry(payload, i);
    const std::uint64_t packets = operation->to_repair(body->wanted, run.header.shard, entry, context);
    if (packets == 0) continue;
    (contribution ? repairs_.contributions : repairs_.decisions)
        .add({body->wanted, run.header.scope, run.operation, from, run.header.shard, entry.chunk, packets});
    lost = true;
  }
  if (lost && !operation->finished()) peers_[from].window.on_loss(now);
}

}  // namespace optireduce
