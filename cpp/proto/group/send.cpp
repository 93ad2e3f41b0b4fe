// The part of Group that decides what to send next. The order: control packets, packets that were asked for
// again, decisions, contributions; of each the oldest operation first.
#include <algorithm>
#include <utility>

#include "group/group.h"

namespace optireduce {
namespace {

/// Entries of one request: more would be asked for before the first are answered.
constexpr std::size_t kMaxRequestEntries = 96;

}  // namespace

bool Group::poll_transmit(Time now, Transmit& out) {
  out.clear();
  // An operation may be over with the last packet it sends, but only when that has left: its end gives the
  // memory back.
  if (const auto last = std::exchange(clock_.last_sender, std::nullopt)) {
    if (Operation* operation = operations_.find_open(last->first, last->second)) advance(now, *operation);
  }
  if (config_.elastic()) send_view_messages(now);
  if (transmit_control(now, out) || transmit_repair(now, repairs_.decisions, out) ||
      transmit_repair(now, repairs_.contributions, out) || transmit_data(now, out))
    return true;
  note_held_back(now);
  return false;
}

bool Group::transmit_control(Time now, Transmit& out) {
  while (!controls_.empty()) {
    const Control control = std::move(controls_.front());
    controls_.pop_front();
    if (control.type == PacketType::Request) {
      if (fill_request(now, control, out)) return true;
      continue;
    }
    out.control = control.payload;
    fill_control(now, control, out.control.size(), out);
    return true;
  }
  return false;
}

bool Group::fill_request(Time now, const Control& control, Transmit& out) {
  Operation* const operation = operations_.find_open(control.operation, control.scope);
  if (operation == nullptr) return false;
  const bool contribution = control.wanted == PacketType::Contribution;
  const Rank owner =
      contribution ? operation->place_of(control.to) : operation->gather().owner(control.shard);
  Inbox& inbox = contribution ? operation->scatter().inbox(owner) : operation->gather().inbox(owner);
  const Peer& peer = peers_[control.to];
  const std::size_t room = (config_.path.payload_bytes - RequestBody::kFixedBytes) / RequestBody::kEntryBytes;
  scratch_.missing.clear();
  inbox.take_missing(now, peer.rtt.timers(config_.path.reorder_delay), std::min(room, kMaxRequestEntries),
                     scratch_.missing);
  if (scratch_.missing.empty()) return false;
  out.control.resize(RequestBody::kFixedBytes + scratch_.missing.size() * RequestBody::kEntryBytes);
  encode_request({peer.newest, control.wanted, scratch_.missing.size()}, out.control.data());
  for (std::size_t i = 0; i < scratch_.missing.size(); ++i) {
    encode_entry(scratch_.missing[i],
                 out.control.data() + RequestBody::kFixedBytes + i * RequestBody::kEntryBytes);
  }
  ++stats_.requests_sent;
  fill_control(now, control, out.control.size(), out);
  return true;
}

void Group::fill_control(Time now, const Control& control, std::size_t payload_bytes, Transmit& out) {
  Header header = header_for(control.type, control.operation, next_timestamp(now));
  header.scope = control.scope;
  header.shard = control.shard;
  header.length = static_cast<std::uint16_t>(payload_bytes);
  header.flags |= control.flags;
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

bool Group::transmit_repair(Time now, RepairQueue& repairs, Transmit& out) {
  OutgoingBatch& batch = scratch_.batch;
  for (auto next = repairs.begin(); next != repairs.end();) {
    Repair& repair = *next;
    Operation* operation = operations_.find_any(repair.operation, repair.scope);
    if (operation != nullptr && repair.type == PacketType::Contribution && operation->gathers()) {
      // What was decided since the request was made has been overwritten and is not needed.
      const Rank owner = operation->place_of(repair.to);
      repair.packets &= owner == kNoPlace ? 0 : ~operation->gather().inbox(owner).received(repair.chunk);
    }
    const bool over =
        operation == nullptr || (repair.type == PacketType::Contribution && operation->finished());
    if (over || repair.packets == 0 || !operation->fill_repair(repair, batch)) {
      next = repairs.erase(next);
      continue;
    }
    const SendWindow& window = peers_[repair.to].window;
    batch.packets = std::min(batch.packets, window.batch_packets());
    if (!window.admits_repair(batch.type, batch.bytes())) {
      note_held_back(now, repair.to);
      ++next;
      continue;
    }
    if (&repairs == &repairs_.decisions)
      multicast_.health.on_resent(repair.to, repair.operation, batch.packets);
    stats_.resent_bytes += batch.bytes();
    repair.packets &= ~Shard::mask_of(batch.first_packet % batch.shard.chunk_packets, batch.packets);
    if (repair.packets == 0) repairs.erase(next);
    send_batch(now, *operation, out);
    return true;
  }
  return false;
}

bool Group::transmit_data(Time now, Transmit& out) {
  Operation* const sender = next_sender(now);
  if (sender == nullptr) return false;
  send_batch(now, *sender, out);
  clock_.last_sender = {sender->number(), sender->setup().scope};
  return true;
}

/// Decisions first, of any operation: everybody waits for them. And no contribution to a rank overtakes a
/// decision of an earlier step that waits for its window.
Operation* Group::next_sender(Time now) {
  OutgoingBatch& batch = scratch_.batch;
  batch.group = false;
  for (const auto& [_, operation] : operations_.open()) {
    if (operation->next_decision(now, peers_, multicast_.on, batch)) return operation.get();
  }
  scratch_.blocked.assign(config_.size, false);
  std::uint64_t step = 0;
  std::vector<Operation*> earlier;
  for (const auto& [_, operation] : operations_.open()) {
    if (!operation->begun()) continue;
    if (operation->call().step != step) {
      step = operation->call().step;
      for (const Operation* before : earlier) {
        for (Rank rank = 0; rank < config_.size; ++rank)
          scratch_.blocked[rank] = scratch_.blocked[rank] || before->holds_back_decisions(rank);
      }
      earlier.clear();
    }
    if (operation->next_contribution(peers_, scratch_.blocked, batch)) return operation.get();
    earlier.push_back(operation.get());
  }
  return nullptr;
}

void Group::send_batch(Time now, Operation& operation, Transmit& out) {
  OutgoingBatch& batch = scratch_.batch;
  const std::uint32_t timestamp = next_timestamp(now);
  operation.stamp(batch, timestamp);
  note_batch_sent(batch, timestamp);
  fill_data(now, batch, timestamp, out);
}

/// Charges the windows, and asks for an answer where they are full now.
void Group::note_batch_sent(OutgoingBatch& batch, std::uint32_t timestamp) {
  // Where only one stage runs nothing may come back that says what has arrived: it is asked for in time.
  const bool one_way = batch.scope != Scope::All;
  if (one_way && (batch.flags & kFlagLast) != 0) batch.flags |= kFlagAnswer;
  for (Rank rank : batch.to) {
    SendWindow& window = peers_[rank].window;
    if (batch.type == PacketType::Decision) peers_[rank].go_on_due = Time::never();
    if (batch.group) {
      multicast_.health.on_sent(rank, batch.operation, batch.packets);
      // The group did not wait for this one: what finds no room there is not under way, but lost.
      if (!window.admits(batch.type, batch.bytes())) {
        multicast_.health.on_overrun(rank, batch.operation);
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
void Group::note_held_back(Time now) {
  for (Rank rank = 0; rank < config_.size; ++rank) {
    Peer& peer = peers_[rank];
    if (!peer.linked || peer.left) continue;
    // In a multicast group others' windows hold back too.
    const bool shut = !multicast_.on || !peer.window.admits(PacketType::Decision, peer.window.batch_bytes());
    const bool held_back =
        std::any_of(operations_.open().begin(), operations_.open().end(), [&](const auto& entry) {
          const Operation& operation = *entry.second;
          return operation.holds_back_contributions(rank) || (shut && operation.holds_back_decisions(rank));
        });
    if (held_back) note_held_back(now, rank);
  }
}

void Group::note_held_back(Time now, Rank rank) {
  Peer& peer = peers_[rank];
  peer.window.on_held_back();
  if (peer.stuck_since != Time::never()) return;
  peer.stuck_since = now;
  timers_.set_earlier({TimerKind::Stuck}, now + peer.rtt.repair_timeout());
}

void Group::fill_data(Time now, const OutgoingBatch& batch, std::uint32_t timestamp, Transmit& out) {
  Header header = header_for(batch.type, batch.operation, timestamp);
  header.scope = batch.scope;
  header.descriptor = batch.descriptor;
  header.stream = batch.stream;
  header.shard = batch.shard_index;
  header.ack = batch.ack;
  header.detail = batch.detail;
  header.flags |= batch.flags;
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
void Group::add_echo(Time now, const Peer& peer, Header& header) const {
  if (!peer.heard) return;
  header.flags |= kFlagEcho;
  header.echo = peer.newest;
  header.hold = static_cast<std::uint16_t>(std::min<std::int64_t>((now - peer.newest_at).ns / 1000, 65'535));
}

Header Group::header_for(PacketType type, std::uint64_t operation, std::uint32_t timestamp) const {
  Header header;
  header.type = type;
  header.sender = config_.rank;
  header.operation = static_cast<std::uint32_t>(operation);
  header.view = static_cast<std::uint16_t>(membership_.view().number);
  header.timestamp = timestamp;
  header.completed = static_cast<std::uint32_t>(clock_.says_completed.value_or(progress_.completed()));
  header.started = static_cast<std::uint8_t>(
      std::min<std::uint64_t>(progress_.next_call() - waiting_.size() - progress_.completed(), 255));
  header.oldest = clock_.oldest;
  header.incast = incast_.code();
  if (clock_.hears_all) header.flags |= kFlagHearsAll;
  return header;
}

std::uint32_t Group::next_timestamp(Time now) {
  // Counted in full: after a long silence the low 32 bits alone would seem to run backwards.
  clock_.last_timestamp = std::max(now.ns / 1000, clock_.last_timestamp + 1);
  return static_cast<std::uint32_t>(clock_.last_timestamp);
}

void Group::note_sent(const Transmit& out) {
  const std::size_t copies = out.group ? 1 : out.to.size();
  stats_.packets_sent += out.segments.size() * copies;
  for (const Segment& segment : out.segments) {
    stats_.payload_bytes_sent += segment.payload.size() * copies;
    if (out.group) stats_.multicast_bytes_sent += segment.payload.size();
  }
  for (Rank peer : out.to) {
    peers_[peer].told = progress_.completed();
    if (out.to.size() == 1 && !out.group) peers_[peer].answer_due = Time::never();  // it carried an echo
  }
}

}  // namespace optireduce
