// The part of Endpoint that decides what to send next.
#include "proto/endpoint.h"

namespace optireduce {
namespace {

/// Entries of one request: more would be asked for before the first are answered.
constexpr std::size_t kMaxRequestEntries = 96;

}  // namespace

bool Endpoint::poll_transmit(Time now, Transmit& out) {
  out.clear();
  return transmit_control(now, out) || transmit_repair(now, out) || transmit_data(now, out);
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

bool Endpoint::fill_request(Time now, const Control& control, Transmit& out) {
  Operation* operation = find(control.operation);
  if (operation == nullptr) return false;
  InboundFlow& flow = control.wanted == PacketType::Contribution ? operation->owned().flow(control.to)
                                                                 : operation->foreign(control.to).flow();
  const Peer& peer = peers_[control.to];
  const std::size_t room = (config_.payload_bytes - RequestBody::kFixedBytes) / RequestBody::kEntryBytes;
  missing_.clear();
  flow.take_missing(now, peer.rtt.repair_timeout(), std::min(room, kMaxRequestEntries), missing_);
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
  Segment& segment = out.segments.emplace_back();
  encode(header, config_.token, segment.header.data());
  segment.payload = std::span<const std::byte>(out.control.data(), payload_bytes);
  out.to.assign(1, control.to);
  note_sent(out);
}

bool Endpoint::transmit_repair(Time now, Transmit& out) {
  while (!repairs_.empty()) {
    Repair& repair = repairs_.front();
    Operation* operation = find(repair.operation);
    if (operation != nullptr && repair.type == PacketType::Contribution) {
      // What came back reduced since the request was made has been overwritten and is not needed.
      repair.packets &= ~operation->foreign(repair.to).flow().received(repair.chunk);
    }
    const bool available =
        repair.packets != 0 && (operation != nullptr || repair.type == PacketType::Reduced);
    if (operation != nullptr && available) operation->fill_repair(repair, batch_);
    if (!available || (operation == nullptr && !archive_.fill_repair(repair, batch_))) {
      repairs_.pop_front();
      continue;
    }
    const std::uint32_t timestamp = next_timestamp(now);
    operation != nullptr ? operation->stamp(batch_, timestamp) : archive_.stamp(batch_, timestamp);
    fill_data(batch_, timestamp, out);
    for (const Segment& segment : out.segments) stats_.resent_bytes += segment.payload.size();
    repair.packets &= ~Shard::mask_of(batch_.first_packet % batch_.shard.chunk_packets, batch_.packets);
    if (repair.packets == 0) repairs_.pop_front();
    return true;
  }
  return false;
}

bool Endpoint::transmit_data(Time now, Transmit& out) {
  Operation* sender = nullptr;
  // Reduced packets first, of any operation: everybody waits for them.
  for (const auto& [number, operation] : operations_) {
    if (!operation->next_reduced(batch_)) continue;
    sender = operation.get();
    break;
  }
  blocked_.assign(config_.size, false);
  for (auto next = operations_.begin(); sender == nullptr && next != operations_.end(); ++next) {
    if (!next->second->next_contribution(peers_, blocked_, batch_)) continue;
    sender = next->second.get();
    const std::uint32_t last = batch_.first_packet + batch_.packets - 1;
    peers_[batch_.to.front()].window.on_sent(batch_.shard.offset_of(last) + batch_.shard.length_of(last) -
                                             batch_.shard.offset_of(batch_.first_packet));
  }
  if (sender == nullptr) return false;
  const std::uint32_t timestamp = next_timestamp(now);
  sender->stamp(batch_, timestamp);
  fill_data(batch_, timestamp, out);
  finish_if_complete(now, *sender);
  return true;
}

void Endpoint::fill_data(const OutgoingBatch& batch, std::uint32_t timestamp, Transmit& out) {
  Header header = header_for(batch.type, batch.operation, timestamp);
  header.descriptor = batch.descriptor;
  header.shard = batch.shard_index;
  header.ack = batch.ack;
  header.flags = batch.resent ? kFlagResent : std::uint8_t{0};
  const std::uint32_t origin = batch.shard.offset_of(batch.first_packet);
  for (std::uint32_t packet = batch.first_packet; packet < batch.first_packet + batch.packets; ++packet) {
    header.offset = batch.shard.offset_of(packet);
    header.length = static_cast<std::uint16_t>(batch.shard.length_of(packet));
    Segment& segment = out.segments.emplace_back();
    encode(header, config_.token, segment.header.data());
    segment.payload = std::span(batch.data + (header.offset - origin), header.length);
  }
  out.to.assign(batch.to.begin(), batch.to.end());
  note_sent(out);
}

Header Endpoint::header_for(PacketType type, std::uint64_t operation, std::uint32_t timestamp) const {
  Header header;
  header.type = type;
  header.sender = config_.rank;
  header.operation = static_cast<std::uint32_t>(operation);
  header.timestamp = timestamp;
  header.completed = static_cast<std::uint32_t>(completed_);
  return header;
}

std::uint32_t Endpoint::next_timestamp(Time now) {
  // Counted in full: after a long silence the low 32 bits alone would seem to run backwards.
  last_timestamp_ = std::max(now.ns / 1000, last_timestamp_ + 1);
  return static_cast<std::uint32_t>(last_timestamp_);
}

void Endpoint::note_sent(const Transmit& out) {
  stats_.packets_sent += out.segments.size() * out.to.size();
  for (const Segment& segment : out.segments)
    stats_.payload_bytes_sent += segment.payload.size() * out.to.size();
  for (Rank peer : out.to) peers_[peer].told = completed_;
}

}  // namespace optireduce
