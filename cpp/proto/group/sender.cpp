#include "group/sender.h"

#include <algorithm>
#include <utility>

namespace optireduce {

bool Sender::poll(Time now, Transmit& out) {
  if (transmit_control(now, out) || transmit_repair(now, true, out)) return true;
  if (Operation* const sender = next_sender(now)) {
    send_batch(now, *sender, out);
    last_sender_ = sender->number();
    return true;
  }
  if (transmit_repair(now, false, out)) return true;
  note_held_back(now);
  return false;
}

bool Sender::transmit_control(Time now, Transmit& out) {
  if (core_.controls.empty()) return false;
  Control control = std::move(core_.controls.front());
  core_.controls.pop_front();
  out.control = std::move(control.payload);
  Header header = header_for(control.type, control.operation, next_timestamp(now));
  header.shard = control.shard;
  header.detail = control.detail;
  if (control.type == PacketType::Request) describe(control, header);
  header.length = static_cast<std::uint16_t>(out.control.size());
  header.flags |= control.flags;
  out.group = control.to_group;
  if (control.to_group) {
    header.flags |= kFlagEverybody;
    for (Rank peer = 0; peer < core_.config.size; ++peer) {
      if (peer != core_.config.rank) out.to.push_back(peer);
    }
  } else {
    add_echo(now, control.to, header);
    out.to.assign(1, control.to);
  }
  Segment& segment = out.segments.emplace_back();
  segment.payload = out.control;
  encode_fields(header, segment.header.data());
  core_.config.seal.close(out.segments, control.to);
  note_sent(out);
  return true;
}

/// So that a rank which nothing has told of the operation yet knows what is wanted.
void Sender::describe(const Control& request, Header& header) const {
  const Operation* const operation = core_.operations.find(request.operation);
  if (operation == nullptr) return;
  header.descriptor = operation->descriptor();
  header.stream = operation->setup().stream;
}

bool Sender::transmit_repair(Time now, bool to_members, Transmit& out) {
  auto& repairs = core_.repairs;
  for (auto next = repairs.begin(); next != repairs.end();) {
    Repair& repair = next->second;
    if (members_.is_member(repair.to) != to_members) {
      ++next;
      continue;
    }
    Operation* const operation = core_.operations.find(repair.operation);
    if (is_over(repair, operation) || !operation->exchange().fill_repair(repair, batch_)) {
      next = repairs.erase(next);
      continue;
    }
    Peer& peer = core_.peers[repair.to];
    // What was lost in one piece may have been too large for a queue on the way, which drops batches whole.
    batch_.packets = std::min((batch_.packets + 1) / 2, peer.window.batch_packets());
    if (!peer.window.admits_repair(batch_.stage(), batch_.bytes())) {
      note_held_back(now, peer);
      ++next;
      continue;
    }
    if (batch_.type == PacketType::Decision)
      core_.multicast_health.on_resent(repair.to, repair.operation, batch_.packets);
    core_.stats.resent_bytes += batch_.bytes();
    repair.packets &= ~Shard::mask_of(batch_.first_packet % batch_.shard.chunk_packets, batch_.packets);
    if (repair.packets == 0) repairs.erase(next);
    send_batch(now, *operation, out);
    return true;
  }
  return false;
}

/// Also takes out of the repair what was decided since it was asked for: that has been overwritten and is not
/// needed.
bool Sender::is_over(Repair& repair, const Operation* operation) {
  if (operation == nullptr) return true;
  if (repair.type == PacketType::Contribution) {
    if (operation->finished()) return true;
    const Rank owner = operation->gather().owner(repair.shard);
    repair.packets &= ~operation->gather().inbox(owner).received(repair.chunk);
  }
  return repair.packets == 0;
}

/// Decisions first, of any operation: everybody waits for them. For sums of a row its owner's whole row
/// waits. And no contribution to a rank overtakes a decision of an earlier step that waits for its window.
Operation* Sender::next_sender(Time now) {
  batch_.group = false;
  for (const auto& [_, operation] : core_.operations.open()) {
    if (operation->exchange().next_decision(now, core_.peers, core_.multicast, batch_))
      return operation.get();
  }
  for (const auto& [_, operation] : core_.operations.open()) {
    if (operation->exchange().next_sums(core_.peers, batch_)) return operation.get();
  }
  blocked_.assign(core_.config.size, false);
  same_step_.clear();
  std::uint64_t step = 0;
  for (const auto& [_, operation] : core_.operations.open()) {
    if (!operation->begun()) continue;
    if (operation->call().step != step) {
      step = operation->call().step;
      for (const Operation* before : same_step_) {
        for (Rank rank = 0; rank < core_.config.size; ++rank)
          blocked_[rank] = blocked_[rank] || before->exchange().holds_back(PacketType::Decision, rank);
      }
      same_step_.clear();
    }
    if (operation->exchange().next_contribution(core_.peers, blocked_, batch_)) return operation.get();
    same_step_.push_back(operation.get());
  }
  return nullptr;
}

/// Asks for an answer where the windows are full now.
void Sender::charge_windows(std::uint32_t timestamp) {
  for (Rank rank : batch_.to) {
    SendWindow& window = core_.peers[rank].window;
    if (batch_.type == PacketType::Decision) core_.peers[rank].go_on_due = Time::never();
    if (batch_.group) {
      core_.multicast_health.on_sent(rank, batch_.setup->number, batch_.packets);
      // The group did not wait for this one: what finds no room there is not under way, but lost.
      if (!window.admits(batch_.stage(), batch_.bytes())) {
        core_.multicast_health.on_overrun(rank, batch_.setup->number);
        continue;
      }
    }
    window.on_sent(batch_.stage(), timestamp, batch_.bytes(), batch_.resent());
    // The next one to the group may be larger, and a peer that has no room for it holds back all.
    const std::size_t next = batch_.group ? window.batch_bytes() : batch_.bytes();
    const Wanted wanted = window.wanted(batch_.stage(), next);
    if (wanted.arrival) batch_.flags |= kFlagAnswer;
    if (wanted.decision) batch_.flags |= kFlagHeld;
  }
}

/// Notices what could be sent if the windows let it.
void Sender::note_held_back(Time now) {
  for (Peer& peer : core_.peers) {
    if (!peer.present()) continue;
    // In a multicast group others' windows hold back too.
    const bool shut = !core_.multicast || !peer.window.admits(Stage::Decisions, peer.window.batch_bytes());
    for (const auto& [_, operation] : core_.operations.open()) {
      if (operation->exchange().holds_back(PacketType::Contribution, peer.rank) ||
          (shut && operation->exchange().holds_back(PacketType::Decision, peer.rank))) {
        note_held_back(now, peer);
        break;
      }
    }
  }
}

void Sender::note_held_back(Time now, Peer& peer) {
  peer.window.on_held_back();
  if (peer.stuck_since != Time::never()) return;
  peer.stuck_since = now;
  core_.timers.set_earlier({TimerKind::Stuck}, now + peer.rtt.repair_timeout());
}

void Sender::fill_data(Time now, std::uint32_t timestamp, Transmit& out) {
  Header header = header_for(batch_.type, batch_.setup->number, timestamp);
  header.descriptor = batch_.setup->descriptor;
  header.stream = batch_.setup->stream;
  header.shard = batch_.shard_index;
  header.detail = batch_.detail;
  header.flags |= batch_.flags;
  if (batch_.to.size() == 1 && !batch_.group) add_echo(now, batch_.to.front(), header);
  for (std::uint32_t packet = batch_.first_packet; packet < batch_.first_packet + batch_.packets; ++packet) {
    header.offset = batch_.shard.offset_of(packet);
    header.length = static_cast<std::uint16_t>(batch_.shard.length_of(packet));
    Segment& segment = out.segments.emplace_back();
    encode_fields(header, segment.header.data());
    segment.payload = batch_.payload(packet);
  }
  core_.config.seal.close(out.segments, batch_.to.front());
  out.to.assign(batch_.to.begin(), batch_.to.end());
  out.group = batch_.group;
  note_sent(out);
}

/// Tells one peer what we have seen of it, and how long ago.
void Sender::add_echo(Time now, Rank to, Header& header) const {
  const Peer& peer = core_.peers[to];
  if (!peer.heard) return;
  header.flags |= kFlagEcho;
  header.echo = peer.newest;
  header.hold = static_cast<std::uint16_t>(std::min<std::int64_t>((now - peer.newest_at).ns / 1000, 65'535));
}

Header Sender::header_for(PacketType type, std::uint64_t operation, std::uint32_t timestamp) const {
  Header header;
  header.type = type;
  header.sender = core_.config.rank;
  header.operation = static_cast<std::uint32_t>(operation);
  header.view = static_cast<std::uint16_t>(members_.view().number);
  header.timestamp = timestamp;
  header.completed = static_cast<std::uint32_t>(core_.progress.told());
  header.oldest = core_.oldest_residual;
  header.incast = core_.incast.code();
  if (members_.hears_all()) header.flags |= kFlagHearsAll;
  return header;
}

std::uint32_t Sender::next_timestamp(Time now) {
  // Counted in full: after a long silence the low 32 bits alone would seem to run backwards.
  core_.last_timestamp = std::max(now.ns / 1000, core_.last_timestamp + 1);
  return static_cast<std::uint32_t>(core_.last_timestamp);
}

void Sender::note_sent(const Transmit& out) {
  const std::size_t copies = out.group ? 1 : out.to.size();
  core_.stats.packets_sent += out.segments.size() * copies;
  for (const Segment& segment : out.segments) {
    core_.stats.payload_bytes_sent += segment.payload.size() * copies;
    if (out.group) core_.stats.multicast_bytes_sent += segment.payload.size();
  }
  for (Rank rank : out.to) {
    Peer& peer = core_.peers[rank];
    peer.told = core_.progress.completed();
    if (out.to.size() == 1 && !out.group) peer.answer_due = Time::never();  // it carried an echo
  }
  set_answer_timer();
}

/// Also to later: to wake a thread for an answer that went along with data costs more than to look here.
void Sender::set_answer_timer() {
  Time next = Time::never();
  for (const Peer& peer : core_.peers) next = std::min({next, peer.answer_due, peer.go_on_due});
  core_.timers.set({TimerKind::Answer}, next);
}

void Sender::answer_peers(Time now) {
  const bool roomy = core_.pool.bytes_in_use() < core_.config.early_bytes / 2;
  for (Peer& peer : core_.peers) {
    const bool go_on = peer.go_on_due <= now;
    if (go_on || peer.answer_due <= now) {
      core_.tell(PacketType::Status, peer.rank, go_on && roomy ? kFlagGoOn : std::uint8_t{0});
      peer.answer_due = Time::never();
      if (go_on) peer.go_on_due = Time::never();
    }
  }
  set_answer_timer();
}

/// It answers what is asked: that our packets have come does not say that we may go on, and what asked for
/// that, or its answer, may be lost.
void Sender::ping_stuck(const Peer& peer) {
  const Wanted wanted = peer.window.wanted(Stage::Contributions, peer.window.batch_bytes());
  core_.tell(PacketType::Ping, peer.rank, wanted.decision ? kFlagHeld : std::uint8_t{0});
}

void Sender::check_stuck_peers(Time now) {
  Time next = Time::never();
  for (Peer& peer : core_.peers) {
    if (peer.check_stuck(now)) ping_stuck(peer);
    next = std::min(next, peer.stuck_until(now));
  }
  core_.timers.set({TimerKind::Stuck}, next);
}

}  // namespace optireduce
