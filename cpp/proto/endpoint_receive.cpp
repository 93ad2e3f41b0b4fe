// The part of Endpoint that takes packets in.
#include "proto/endpoint.h"

namespace optireduce {
namespace {

/// Operations may be started at most this far ahead of the slowest rank; packets beyond are nonsense.
constexpr std::uint64_t kMaxAhead = 4096;
/// Above this much held memory, small runs are moved out of their large receive buffers.
constexpr std::size_t kCompactAboveBytes = 8 * 1024 * 1024;

/// From one packet to the next.
std::uint32_t stride_of(const Datagram& datagram) {
  return std::max<std::uint32_t>(1, std::min(datagram.segment_bytes, datagram.bytes));
}

}  // namespace

void Endpoint::handle_datagram(Time now, Datagram datagram) {
  const std::span packets(datagram.buffer.data() + datagram.begin, datagram.bytes - datagram.begin);
  config_.seal.open_all(packets, stride_of(datagram), genuine_);
  std::uint32_t at = datagram.begin;
  while (at < datagram.bytes) {
    std::optional<Run> run = next_run(datagram, at);
    if (!run) continue;
    run->received_at = now;
    stats_.packets_received += run->packets;
    stats_.payload_bytes_received += run->payload_bytes();
    note_peer(now, run->header);
    if (datagram.group) peers_[run->header.sender].heard_in_group = true;
    handle_run(now, *run);
  }
}

/// Decodes the packet at `at` and those behind it that continue it, and moves `at` past them. Nothing if the
/// packet is bad. No byte of a packet is believed before its seal has been checked.
std::optional<Run> Endpoint::next_run(const Datagram& datagram, std::uint32_t& at) {
  const std::uint32_t stride = stride_of(datagram);
  const auto packet_at = [&](std::uint32_t where) {
    return std::span<const std::byte>(datagram.buffer.data() + where,
                                      std::min(stride, datagram.bytes - where));
  };
  const auto is_genuine = [&](std::uint32_t where) { return genuine_[(where - datagram.begin) / stride]; };
  const std::uint32_t begin = at;
  at += stride;
  const Decoded first = decode_opened(packet_at(begin), is_genuine(begin), config_.size);
  if (!first.header || first.header->sender != datagram.from || first.header->lane != config_.lane) {
    count_bad(first.header ? HeaderError::BadSender : first.error);
    return std::nullopt;
  }
  Run run{*first.header,
          widen(first.header->operation, next_operation_),
          datagram.buffer,
          begin,
          stride,
          1,
          first.header->length,
          {}};
  const bool data = run.header.type == PacketType::Contribution || run.header.type == PacketType::Reduced;
  while (data && at < datagram.bytes && run.last_length == run.header.length && is_genuine(at)) {
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
void Endpoint::note_peer(Time now, const Header& header) {
  Peer& peer = peers_[header.sender];
  note_wishes(now, peer, header.flags);  // to answer once too often does no harm
  const std::uint64_t completed = widen(header.completed, peer.completed);
  if (completed < peer.completed) return;
  if ((header.flags & kFlagEcho) != 0) note_echo(now, peer, header);
  const bool news = !peer.heard || completed > peer.completed || not_before(header.timestamp, peer.newest);
  if (!news) return;
  peer.heard = true;
  peer.last_heard = peer.newest_at = now;
  peer.newest = header.timestamp;
  note_standing(peer, header);
  if (completed > peer.completed) note_completed(now, header.sender, completed);
}

/// What holds until the peer says something else.
void Endpoint::note_standing(Peer& peer, const Header& header) {
  peer.window.set_incast(header.incast, config_.size - 1u);
  if (header.bound != 0) timeouts_.hear(header.sender, header.bound, header.early, header.skew);
  if ((header.flags & kFlagGoOn) != 0) peer.window.on_go_on(peer.echo);
  note_wants(peer, (header.flags & kFlagWants) != 0);
}

/// What the peer has seen of ours is no longer under way; how long that took tells about queues.
void Endpoint::note_echo(Time now, Peer& peer, const Header& header) {
  const bool sent = not_before(static_cast<std::uint32_t>(last_timestamp_), header.echo);
  if (!sent || (peer.echoed && not_before(peer.echo, header.echo))) return;
  peer.echo = header.echo;
  peer.echoed = true;
  peer.note_answer();
  peer.window.on_arrived(header.echo);
  if (config_.stages == Stages::First) peer.window.on_go_on(header.echo);  // nothing comes back reduced
  constexpr std::uint16_t kTooLong = 65'535;
  const Duration round_trip = since(header.echo, now) - Duration::micros(header.hold);
  if (header.hold == kTooLong || round_trip.ns <= 0) return;
  peer.window.on_round_trip(now, round_trip);
  peer.rtt.sample(round_trip);
}

void Endpoint::note_wishes(Time now, Peer& peer, std::uint8_t flags) {
  if ((flags & kFlagAnswer) != 0) peer.answer_due = std::min(peer.answer_due, now + config_.answer_delay);
  if ((flags & kFlagHeld) != 0) peer.go_on_due = std::min(peer.go_on_due, now + config_.answer_delay);
  schedule(std::min(peer.answer_due, peer.go_on_due));
}

void Endpoint::note_completed(Time now, Rank from, std::uint64_t completed) {
  Peer& peer = peers_[from];
  peer.completed = std::min(completed, next_operation_ + kMaxAhead);
  release_archive();
  for (const auto& [number, operation] : operations_) {
    if (number >= peer.completed) break;
    if (!operation->descriptor().bounded) continue;
    operation->peer_is_through(from);
    hurry_after_others(now, *operation);
    schedule(now);  // what it has reduced can be asked for, and perhaps nothing else is missing
  }
  welcome_back(from);
}

void Endpoint::count_bad(HeaderError error) {
  ++(error == HeaderError::BadSeal ? stats_.forged_packets : stats_.invalid_packets);
}

void Endpoint::handle_run(Time now, const Run& run) {
  switch (run.header.type) {
    case PacketType::Contribution:
    case PacketType::Reduced:
      return handle_data(now, run);
    case PacketType::Request:
      return handle_request(now, run);
    case PacketType::Ping:
      controls_.push_back({PacketType::Pong, run.header.sender, 0, {}, {}, 0});
      return;
    case PacketType::Reject:
      return handle_reject(now, run);
    case PacketType::Goodbye:
      return handle_goodbye(now, run.header.sender);
    case PacketType::Abstain:
      return handle_abstention(now, run);
    case PacketType::Gone:
      return handle_gone(now, run);
    case PacketType::Status:
    case PacketType::Pong:
      return;  // the header, which note_peer read, is all they say
  }
}

void Endpoint::handle_data(Time now, const Run& run) {
  if (Operation* operation = find(run.operation)) return deliver(now, *operation, run);
  keep_for_later(now, run);
}

/// Packets of an operation that is over, or has not begun here.
void Endpoint::keep_for_later(Time now, const Run& run) {
  if (rejected_.contains(run.operation)) return answer_rejected(run.operation, run.header.sender);
  if (run.operation < next_operation_) {
    const std::uint32_t wanted = late_.accept(now, run);
    stats_.late_bytes += wanted;
    if (wanted != 0) return schedule(now);
    stats_.stale_packets += run.packets;
    if ((run.header.flags & kFlagResent) == 0) late_bytes_ += run.payload_bytes();
  } else if (run.operation - next_operation_ < kMaxAhead && early_.keep(run, pool_)) {
    stats_.early_packets += run.packets;
  } else {
    stats_.early_dropped += run.packets;
  }
}

void Endpoint::deliver(Time now, Operation& operation, const Run& run) {
  if (operation.handed_over) {
    stats_.stale_packets += run.packets;
    return;
  }
  const Rank from = run.header.sender;
  if (run.header.descriptor != operation.descriptor()) {
    const RejectBody body{RejectReason::Mismatch, config_.name_of(from), config_.name_of(config_.rank),
                          operation.descriptor(), run.header.descriptor};
    tell_rejection(operation.number(), body);
    return fail_rejected(now, operation, body);
  }
  if (!operation.fits(run)) {
    stats_.malformed_packets += run.packets;
    return;
  }
  std::uint32_t fresh;
  if (run.header.type == PacketType::Contribution) {
    const bool roomy = pool_.bytes_in_use() <= kCompactAboveBytes;
    fresh = operation.accept_contribution(now, roomy ? run : compacted(run, pool_));
    schedule(operation.owned().flow(from).request_due(peers_[from].rtt.timers(config_.reorder_delay)));
  } else {
    ForeignShard& shard = operation.foreign(from);
    fresh = operation.accept_reduced(now, run);
    const std::uint32_t last = run.header.offset / config_.payload_bytes + run.packets - 1;
    if (const std::uint32_t sent_at = shard.sent_at(last); sent_at != 0 && fresh != 0) {
      peers_[from].window.on_returned(sent_at);
      peers_[from].note_answer();
    }
    schedule(shard.flow().request_due(peers_[from].rtt.timers(config_.reorder_delay)));
  }
  if (fresh == 0) stats_.duplicate_packets += run.packets;
  if ((run.header.flags & kFlagResent) != 0) {
    operation.repaired_bytes += fresh;
    stats_.repaired_bytes += fresh;
  }
  finish_if_complete(now, operation);
}

void Endpoint::handle_request(Time now, const Run& run) {
  ++stats_.requests_received;
  const std::span payload(run.payload(0), run.header.length);
  const auto body = decode_request(payload);
  if (!body) {
    ++stats_.malformed_packets;
    return;
  }
  if (rejected_.contains(run.operation)) return answer_rejected(run.operation, run.header.sender);
  const Rank from = run.header.sender;
  const auto min_age =
      static_cast<std::uint32_t>(peers_[from].rtt.timers(config_.reorder_delay).retry.ns / 1000);
  const RequestContext context{from, body->newest, as_timestamp(now), min_age};
  const Operation* operation = find(run.operation);
  const bool contribution = body->wanted == PacketType::Contribution;
  if (operation != nullptr && contribution && operation->abstains()) {
    controls_.push_back({PacketType::Abstain, from, run.operation, {}, {}, 0});
    return;
  }
  if (operation == nullptr && run.operation < next_operation_ &&
      (contribution || !archive_.holds(run.operation))) {
    // Any header says that we are through: enough for who waits for our contribution.
    const PacketType answer = contribution ? PacketType::Status : PacketType::Gone;
    controls_.push_back({answer, from, run.operation, {}, {}, 0});
    return;
  }
  bool lost = false;
  for (std::size_t i = 0; i < body->entries; ++i) {
    const RequestEntry entry = decode_entry(payload, i);
    std::uint64_t packets = 0;
    if (operation != nullptr) {
      packets = contribution ? operation->foreign(from).to_repair(entry, context)
                             : operation->owned().to_repair(entry, context);
    } else if (!contribution && archive_.holds(run.operation)) {
      packets = archive_.to_repair(run.operation, entry, context);
    }
    if (packets == 0) continue;
    const bool late = operation == nullptr && peers_[from].completed > run.operation;
    auto& repairs = late ? late_repairs_ : contribution ? contribution_repairs_ : reduced_repairs_;
    repairs.add({body->wanted, run.operation, from, entry.chunk, packets});
    lost = true;
  }
  if (lost && operation != nullptr) peers_[from].window.on_loss(now);
}

void Endpoint::handle_reject(Time now, const Run& run) {
  const auto body = decode_reject(std::span(run.payload(0), run.header.length), config_.group_size());
  if (!body) {
    ++stats_.malformed_packets;
    return;
  }
  if (Operation* operation = find(run.operation)) {
    if (!operation->handed_over) fail_rejected(now, *operation, *body);
    return;
  }
  const bool ahead = run.operation >= next_operation_ && run.operation - next_operation_ < kMaxAhead;
  if (ahead) remember_rejection(run.operation, *body);
}

/// A rank leaves when everybody has what it completed, or does not care: what is still missing from it will
/// not come.
void Endpoint::handle_goodbye(Time now, Rank peer) {
  if (std::exchange(peers_[peer].left, true)) return;  // it is said more than once
  late_.give_up_on(peer);
  std::vector<Operation*> deserted, bounded;
  for (const auto& [_, operation] : operations_) {
    if (operation->handed_over) continue;
    const bool needed = !operation->owned().flow(peer).complete() || !operation->foreign(peer).complete();
    if (needed) (operation->bound() ? bounded : deserted).push_back(operation.get());
  }
  for (Operation* operation : deserted) fail_deserted(now, *operation, peer);
  for (Operation* operation : bounded) {
    operation->exclude(peer);
    finish_if_complete(now, *operation);
  }
}

void Endpoint::handle_abstention(Time now, const Run& run) {
  Operation* operation = find(run.operation);
  if (operation == nullptr) return keep_for_later(now, run);
  operation->note_abstention(run);
  finish_if_complete(now, *operation);
}

/// The sender is through with an operation and has nothing of it left.
void Endpoint::handle_gone(Time now, const Run& run) {
  Operation* operation = find(run.operation);
  if (operation == nullptr) return late_.give_up(run.operation, run.header.sender);
  if (!operation->descriptor().bounded) return;
  operation->peer_is_through(run.header.sender);
  operation->write_off(run.header.sender);
  if (operation->lacks(run.header.sender)) operation->note_closed(ClosedBy::Early);
  finish_if_complete(now, *operation);
}

}  // namespace optireduce
