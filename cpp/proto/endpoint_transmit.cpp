// The part of Endpoint that decides what to send next.
#include <algorithm>
#include <utility>

#include "proto/endpoint.h"

namespace optireduce {
namespace {

/// Entries of one request: more would be asked for before the first are answered.
constexpr std::size_t kMaxRequestEntries = 96;

}  // namespace

bool Endpoint::poll_transmit(Time now, Transmit& out) {
  out.clear();
  finish_last_sender(now);
  if (transmit_control(now, out) || transmit_repair(now, reduced_repairs_, out) ||
      transmit_repair(now, contribution_repairs_, out) || transmit_data(now, out))
    return true;
  note_held_back(now);
  return transmit_repair(now, late_repairs_, out);
}

bool Endpoint::transmit_control(Time now, Transmit& out) {
  while (!controls_.empty()) {
    const Control control = controls_.front();
    controls_.pop_front();
    if (control.type == PacketType::Request) {
      if (fill_request(now, control, out)) return true;
      continue;
    }
    if (control.type == PacketType::Reject) {
      out.control.resize(RejectBody::kBytes);
      encode_reject(control.reject, out.control.data());
    }
    fill_control(now, control, out.control.size(), out);
    return true;
  }
  return false;
}

/// What a request is about; nothing if it has become pointless.
InboundFlow* Endpoint::flow_of(const Control& request) {
  Operation* operation = find(request.operation);
  if (operation == nullptr) return late_.find(request.operation, request.to);
  return request.wanted == PacketType::Contribution ? &operation->owned().flow(request.to)
                                                    : &operation->foreign(request.to).flow();
}

bool Endpoint::fill_request(Time now, const Control& control, Transmit& out) {
  InboundFlow* const wanted = flow_of(control);
  if (wanted == nullptr) return false;
  InboundFlow& flow = *wanted;
  const Peer& peer = peers_[control.to];
  const std::size_t room = (config_.payload_bytes - RequestBody::kFixedBytes) / RequestBody::kEntryBytes;
  missing_.clear();
  flow.take_missing(now, peer.rtt.timers(config_.reorder_delay), std::min(room, kMaxRequestEntries),
                    missing_);
  if (missing_.empty()) return false;
  out.control.resize(RequestBody::kFixedBytes + missing_.size() * RequestBody::kEntryBytes);
  encode_request({peer.newest, control.wanted, missing_.size()}, out.control.data());
  for (std::size_t i = 0; i < missing_.size(); ++i) {
    encode_entry(missing_[i], out.control.data() + RequestBody::kFixedBytes + i * RequestBody::kEntryBytes);
  }
  ++stats_.requests_sent;
  fill_control(now, control, out.control.size(), out);
  return true;
}

void Endpoint::fill_control(Time now, const Control& control, std::size_t payload_bytes, Transmit& out) {
  Header header = header_for(control.type, control.operation, next_timestamp(now));
  header.length = static_cast<std::uint16_t>(payload_bytes);
  header.flags = control.flags | standing_flags();
  if (!control.to_group) add_echo(now, peers_[control.to], header);
  Segment& segment = out.segments.emplace_back();
  segment.payload = std::span<const std::byte>(out.control.data(), payload_bytes);
  if (control.to_group) header.flags |= kFlagEverybody;
  encode(header, config_.seal, segment.payload, control.to, segment.header.data());
  out.group = control.to_group;
  for (Rank peer = 0; control.to_group && peer < config_.size; ++peer) {
    if (peer != config_.rank) out.to.push_back(peer);
  }
  if (!control.to_group) out.to.assign(1, control.to);
  note_sent(out);
}

bool Endpoint::transmit_repair(Time now, RepairQueue& repairs, Transmit& out) {
  batch_.group = false;
  for (auto next = repairs.begin(); next != repairs.end();) {
    Repair& repair = *next;
    Operation* operation = find(repair.operation);
    if (operation != nullptr && repair.type == PacketType::Contribution) {
      // What came back reduced since the request was made has been overwritten and is not needed.
      repair.packets &= ~operation->foreign(repair.to).flow().received(repair.chunk);
    }
    const bool available =
        repair.packets != 0 && (operation != nullptr || repair.type == PacketType::Reduced);
    if (operation != nullptr && available) operation->fill_repair(repair, batch_);
    if (!available || (operation == nullptr && !archive_.fill_repair(repair, batch_))) {
      next = repairs.erase(next);
      continue;
    }
    const SendWindow& window = peers_[repair.to].window;
    batch_.packets = std::min(batch_.packets, window.batch_packets());
    if (!window.admits_repair(batch_.type, batch_.bytes())) {
      note_held_back(now, peers_[repair.to]);
      ++next;
      continue;
    }
    const std::uint32_t timestamp = next_timestamp(now);
    operation != nullptr ? operation->stamp(batch_, timestamp) : archive_.stamp(batch_, timestamp);
    note_batch_sent(batch_, timestamp);
    fill_data(now, batch_, timestamp, out);
    stats_.resent_bytes += batch_.bytes();
    if (&repairs == &reduced_repairs_) health_.on_resent(repair.to, repair.operation, batch_.packets);
    repair.packets &= ~Shard::mask_of(batch_.first_packet % batch_.shard.chunk_packets, batch_.packets);
    if (repair.packets == 0) repairs.erase(next);
    return true;
  }
  return false;
}

bool Endpoint::transmit_data(Time now, Transmit& out) {
  Operation* sender = nullptr;
  batch_.group = false;
  // Reduced packets first, of any operation: everybody waits for them.
  for (const auto& [number, operation] : operations_) {
    if (!operation->next_reduced(now, peers_, multicast_, batch_)) continue;
    sender = operation.get();
    break;
  }
  if (sender == nullptr) blocked_.assign(config_.size, false);
  for (auto next = operations_.begin(); sender == nullptr && next != operations_.end(); ++next) {
    if (next->second->next_contribution(peers_, blocked_, batch_)) sender = next->second.get();
  }
  if (sender == nullptr) return false;
  const std::uint32_t timestamp = next_timestamp(now);
  sender->stamp(batch_, timestamp);
  note_batch_sent(batch_, timestamp);
  fill_data(now, batch_, timestamp, out);
  last_sender_ = sender->number();
  return true;
}

/// An operation may be over with the last packet it sends. But only when that has left: its end changes the
/// data.
void Endpoint::finish_last_sender(Time now) {
  if (!last_sender_) return;
  Operation* operation = find(*std::exchange(last_sender_, std::nullopt));
  if (operation != nullptr) finish_if_complete(now, *operation);
}

/// Charges the windows, and asks for an answer where they are full now.
void Endpoint::note_batch_sent(OutgoingBatch& batch, std::uint32_t timestamp) {
  // Where only one stage runs nothing may come back that says what has arrived: it is asked for in time.
  const bool one_way = config_.stages != Stages::Both;
  if (one_way && (batch.flags & kFlagLast) != 0) batch.flags |= kFlagAnswer;
  for (Rank rank : batch.to) {
    SendWindow& window = peers_[rank].window;
    if (batch.type == PacketType::Reduced) peers_[rank].go_on_due = Time::never();
    if (batch.group) {
      health_.on_sent(rank, batch.operation, batch.packets);
      // The group did not wait for this one: what finds no room there is not under way, but lost.
      if (!window.admits(batch.type, batch.bytes())) {
        health_.on_overrun(rank, batch.operation);
        continue;
      }
    }
    window.on_sent(batch.type, timestamp, batch.bytes(), batch.resent());
    // The next one to the group may be larger, and whoever has no room for it holds back all.
    const std::size_t next = batch.group || one_way ? window.batch_bytes() : batch.bytes();
    batch.flags |= window.wanted_answers(batch.type, next);
  }
}

/// Notices what could be sent if the windows let it.
void Endpoint::note_held_back(Time now) {
  for (Rank rank = 0; rank < config_.size; ++rank) {
    Peer& peer = peers_[rank];
    if (rank == config_.rank || !peer.present()) continue;
    // In a group others' windows hold back too.
    const bool shut = !multicast_ || !peer.window.admits(PacketType::Reduced, peer.window.batch_bytes());
    const bool held_back = std::any_of(operations_.begin(), operations_.end(), [&](const auto& entry) {
      const Operation& operation = *entry.second;
      return operation.holds_back_contributions(rank) || (shut && operation.holds_back_reduced(rank));
    });
    if (held_back) note_held_back(now, peer);
  }
}

void Endpoint::note_held_back(Time now, Peer& peer) {
  peer.window.on_held_back();
  if (peer.stuck_since != Time::never()) return;
  peer.stuck_since = now;
  schedule(now + peer.rtt.repair_timeout());
}

void Endpoint::fill_data(Time now, const OutgoingBatch& batch, std::uint32_t timestamp, Transmit& out) {
  Header header = header_for(batch.type, batch.operation, timestamp);
  header.descriptor = batch.descriptor;
  header.shard = batch.shard_index;
  header.ack = batch.ack;
  header.count = batch.count;
  header.flags = batch.flags | standing_flags();
  if (batch.to.size() == 1 && !batch.group) add_echo(now, peers_[batch.to.front()], header);
  for (std::uint32_t packet = batch.first_packet; packet < batch.first_packet + batch.packets; ++packet) {
    header.offset = batch.shard.offset_of(packet);
    header.length = static_cast<std::uint16_t>(batch.shard.length_of(packet));
    Segment& segment = out.segments.emplace_back();
    encode_fields(header, segment.header.data());
    segment.payload = batch.payload(packet);
  }
  config_.seal.close(out.segments, batch.to.front());
  out.to.assign(batch.to.begin(), batch.to.end());
  out.group = batch.group;
  note_sent(out);
}

/// Tells one peer what we have seen of it, and how long ago.
void Endpoint::add_echo(Time now, const Peer& peer, Header& header) const {
  if (!peer.heard) return;
  header.flags |= kFlagEcho;
  header.echo = peer.newest;
  header.hold = static_cast<std::uint16_t>(std::min<std::int64_t>((now - peer.newest_at).ns / 1000, 65'535));
}

Header Endpoint::header_for(PacketType type, std::uint64_t operation, std::uint32_t timestamp) const {
  Header header;
  header.type = type;
  header.lane = config_.lane;
  header.sender = config_.rank;
  header.operation = static_cast<std::uint32_t>(operation);
  header.timestamp = timestamp;
  header.completed = static_cast<std::uint32_t>(completed_);
  header.bound = timeouts_.bound_code();
  header.early = timeouts_.early_code();
  header.skew = timeouts_.skew_code();
  header.incast = incast_.code();
  return header;
}

std::uint32_t Endpoint::next_timestamp(Time now) {
  // Counted in full: after a long silence the low 32 bits alone would seem to run backwards.
  last_timestamp_ = std::max(now.ns / 1000, last_timestamp_ + 1);
  return static_cast<std::uint32_t>(last_timestamp_);
}

void Endpoint::note_sent(const Transmit& out) {
  const std::size_t copies = out.group ? 1 : out.to.size();
  stats_.packets_sent += out.segments.size() * copies;
  for (const Segment& segment : out.segments) {
    stats_.payload_bytes_sent += segment.payload.size() * copies;
    if (out.group) stats_.multicast_bytes_sent += segment.payload.size();
  }
  for (Rank peer : out.to) {
    peers_[peer].told = completed_;
    if (out.to.size() == 1 && !out.group) peers_[peer].answer_due = Time::never();  // it carried an echo
  }
}

}  // namespace optireduce
