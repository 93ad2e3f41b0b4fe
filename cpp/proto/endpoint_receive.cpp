// The part of Endpoint that takes packets in.
#include "proto/endpoint.h"

namespace optireduce {
namespace {

/// Operations may be started at most this far ahead of the slowest rank; packets beyond are nonsense.
constexpr std::uint64_t kMaxAhead = 4096;
/// Above this much held memory, small runs are moved out of their large receive buffers.
constexpr std::size_t kCompactAboveBytes = 8 * 1024 * 1024;

}  // namespace

void Endpoint::handle_datagram(Time now, Datagram datagram) {
  std::uint32_t at = 0;
  while (at < datagram.bytes) {
    const std::optional<Run> run = next_run(datagram, at);
    if (!run) continue;
    stats_.packets_received += run->packets;
    stats_.payload_bytes_received += run->payload_bytes();
    note_peer(now, run->header);
    handle_run(now, *run);
  }
}

/// Decodes the packet at `at` and those behind it that continue it, and moves `at` past them. Nothing if the
/// packet is bad.
std::optional<Run> Endpoint::next_run(const Datagram& datagram, std::uint32_t& at) {
  const std::uint32_t stride = std::max<std::uint32_t>(1, std::min(datagram.segment_bytes, datagram.bytes));
  const auto packet_at = [&](std::uint32_t where) {
    return std::span<const std::byte>(datagram.buffer.data() + where,
                                      std::min(stride, datagram.bytes - where));
  };
  const std::uint32_t begin = at;
  at += stride;
  const Decoded first = decode(packet_at(begin), config_.token, config_.size);
  if (!first.header || first.header->sender != datagram.from) {
    count_bad(first.header ? HeaderError::BadSender : first.error);
    return std::nullopt;
  }
  Run run{
      *first.header,       widen(first.header->operation, next_operation_), datagram.buffer, begin, stride, 1,
      first.header->length};
  const bool data = run.header.type == PacketType::Contribution || run.header.type == PacketType::Reduced;
  while (data && at < datagram.bytes && run.last_length == run.header.length) {
    const std::span<const std::byte> next = packet_at(at);
    if (!continues(packet_at(begin), next, run.header.offset + run.packets * run.header.length)) break;
    run.last_length = static_cast<std::uint32_t>(next.size() - kHeaderBytes);
    ++run.packets;
    at += stride;
  }
  return run;
}

void Endpoint::note_peer(Time now, const Header& header) {
  Peer& peer = peers_[header.sender];
  if (!peer.heard || not_before(header.timestamp, peer.newest)) peer.newest = header.timestamp;
  peer.heard = true;
  peer.last_heard = now;
  const std::uint64_t completed = widen(header.completed, peer.completed);
  if (completed <= peer.completed) return;
  peer.completed = std::min(completed, next_operation_ + kMaxAhead);
  archive_.forget_below(completed_everywhere());
}

void Endpoint::count_bad(HeaderError error) {
  ++(error == HeaderError::BadToken ? stats_.forged_packets : stats_.invalid_packets);
}

void Endpoint::handle_run(Time now, const Run& run) {
  switch (run.header.type) {
    case PacketType::Contribution:
    case PacketType::Reduced:
      return handle_data(now, run);
    case PacketType::Request:
      return handle_request(now, run);
    case PacketType::Ping:
      controls_.push_back({PacketType::Pong, run.header.sender, 0, {}, {}});
      return;
    case PacketType::Reject:
      return handle_reject(now, run);
    case PacketType::Goodbye:
      return handle_goodbye(now, run.header.sender);
    case PacketType::Status:
    case PacketType::Pong:
      return;  // the header, which note_peer read, is all they say
  }
}

void Endpoint::handle_data(Time now, const Run& run) {
  if (Operation* operation = find(run.operation)) return deliver(now, *operation, run);
  if (rejected_.contains(run.operation)) return answer_rejected(run.operation, run.header.sender);
  if (run.operation < next_operation_) {
    stats_.stale_packets += run.packets;
  } else if (run.operation - next_operation_ < kMaxAhead && early_.keep(run, pool_)) {
    stats_.early_packets += run.packets;
  } else {
    stats_.early_dropped += run.packets;
  }
}

void Endpoint::deliver(Time now, Operation& operation, const Run& run) {
  const Rank from = run.header.sender;
  if (run.header.descriptor != operation.descriptor()) {
    const RejectBody body{RejectReason::Mismatch, from, config_.rank, operation.descriptor(),
                          run.header.descriptor};
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
    schedule(
        operation.owned().flow(from).request_due(peers_[from].rtt.repair_timeout(), config_.reorder_delay));
  } else {
    ForeignShard& shard = operation.foreign(from);
    fresh = operation.accept_reduced(now, run);
    peers_[from].window.on_credit(fresh);
    const std::uint32_t chunk = run.header.offset / config_.payload_bytes / shard.shard().chunk_packets;
    if (const auto sent_at = shard.clean_sent_at(chunk); sent_at && fresh != 0) {
      peers_[from].rtt.sample(Duration::micros(static_cast<std::int32_t>(as_timestamp(now) - *sent_at)));
    }
    schedule(shard.flow().request_due(peers_[from].rtt.repair_timeout(), config_.reorder_delay));
  }
  if (fresh == 0) stats_.duplicate_packets += run.packets;
  if ((run.header.flags & kFlagResent) != 0) {
    operation.repaired_bytes += fresh;
    stats_.repaired_bytes += fresh;
    // What the peer sends us for its shard is clocked by what we send it.
    if (fresh != 0 && run.header.type == PacketType::Reduced)
      peers_[from].window.on_loss(now, peers_[from].rtt);
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
  const auto min_age = static_cast<std::uint32_t>(peers_[from].rtt.repair_timeout().ns / 2000);
  const RequestContext context{from, body->newest, as_timestamp(now), min_age};
  const Operation* operation = find(run.operation);
  for (std::size_t i = 0; i < body->entries; ++i) {
    const RequestEntry entry = decode_entry(payload, i);
    std::uint64_t packets = 0;
    if (operation != nullptr) {
      packets = body->wanted == PacketType::Reduced ? operation->owned().to_repair(entry, context)
                                                    : operation->foreign(from).to_repair(entry, context);
    } else if (body->wanted == PacketType::Reduced && archive_.holds(run.operation)) {
      packets = archive_.to_repair(run.operation, entry, context);
    }
    if (packets == 0) continue;
    repairs_.push_back({body->wanted, run.operation, from, entry.chunk, packets});
    if (body->wanted == PacketType::Contribution) peers_[from].window.on_loss(now, peers_[from].rtt);
  }
}

void Endpoint::handle_reject(Time now, const Run& run) {
  const auto body = decode_reject(std::span(run.payload(0), run.header.length), config_.size);
  if (!body) {
    ++stats_.malformed_packets;
    return;
  }
  if (Operation* operation = find(run.operation)) return fail_rejected(now, *operation, *body);
  const bool ahead = run.operation >= next_operation_ && run.operation - next_operation_ < kMaxAhead;
  if (ahead) remember_rejection(run.operation, *body);
}

/// A rank leaves when everybody has what it completed, or does not care: what is still missing from it will
/// not come.
void Endpoint::handle_goodbye(Time now, Rank peer) {
  peers_[peer].left = true;
  std::vector<Operation*> deserted;
  for (const auto& [_, operation] : operations_) {
    const bool needed = !operation->owned().flow(peer).complete() || !operation->foreign(peer).complete();
    if (needed) deserted.push_back(operation.get());
  }
  for (Operation* operation : deserted) fail_deserted(now, *operation, peer);
}

}  // namespace optireduce
