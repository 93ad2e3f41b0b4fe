#include "proto/endpoint.h"

#include <bit>
#include <cstring>

namespace optireduce {
namespace {

/// Nobody answers a goodbye, so it is said more than once: a peer that misses it waits out its linger time.
constexpr int kGoodbyes = 3;
/// Operations may be started at most this far ahead of the slowest rank; packets beyond are nonsense.
constexpr std::uint64_t kMaxAhead = 4096;
/// Failed operations that latecomers are told about.
constexpr std::size_t kMaxRejected = 256;
/// Entries of one request: more would be asked for before the first are answered.
constexpr std::size_t kMaxRequestEntries = 96;
/// Above this much held memory, small runs are moved out of their large receive buffers.
constexpr std::size_t kCompactAboveBytes = 8 * 1024 * 1024;

std::uint32_t as_timestamp(Time now) {
  return static_cast<std::uint32_t>(now.ns / 1000);
}

std::string list(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

}  // namespace

Endpoint::Endpoint(EndpointConfig config, BufferPool& pool)
    : config_(std::move(config)), pool_(pool), peers_(config_.size), early_(config_.early_bytes) {
  for (Rank rank = 0; rank < config_.size; ++rank) {
    const std::size_t grant = rank < config_.grants.size() ? config_.grants[rank] : config_.window_bytes;
    const WindowBounds bounds = WindowBounds::of(config_, config_.size - 1u, grant);
    peers_[rank].window = SendWindow(bounds, config_.payload_bytes, chunk_packets_for(config_.payload_bytes));
    peers_[rank].rtt = RttEstimator(config_);
  }
}

// ----------------------------------------------------------------------------------------------------
// commands

std::uint64_t Endpoint::start(Time now, const Descriptor& descriptor, std::byte* data, Duration timeout) {
  const std::uint64_t number = next_operation_++;
  auto& slot = operations_[number];
  slot = std::make_unique<Operation>(number, descriptor, data, config_, now, timeout);
  Operation& operation = *slot;
  schedule(operation.deadline());
  schedule(now + config_.repair_min);

  if (const auto known = rejected_.find(number); known != rejected_.end()) {
    fail_rejected(now, operation, known->second);
    return number;
  }
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peers_[peer].left && peers_[peer].completed <= number) {
      fail_deserted(now, operation, peer);
      return number;
    }
  }
  finish_if_complete(now, operation);  // a group of one, or nothing to reduce
  for (const Run& run : early_.take(number)) {
    if (find(number) != nullptr) handle_data(now, run);  // the first mismatch ends it
  }
  return number;
}

void Endpoint::ping_silent_peers() {
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer != config_.rank && !peers_[peer].heard) controls_.push_back({PacketType::Ping, peer, 0, {}, {}});
  }
}

void Endpoint::ping_unfinished_peers() {
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer != config_.rank && !peers_[peer].left && peers_[peer].completed < completed_) {
      controls_.push_back({PacketType::Ping, peer, 0, {}, {}});
    }
  }
}

void Endpoint::say_goodbye(Time now) {
  const std::uint64_t completed = completed_;
  while (!operations_.empty()) {
    finish(now, *operations_.begin()->second, ErrorCode::Closed,
           "the group was closed before the operation was complete", {});
  }
  completed_ = completed;  // peers must not take what failed here for complete
  controls_.clear();
  repairs_.clear();
  for (int copy = 0; copy < kGoodbyes; ++copy) {
    for (Rank peer = 0; peer < config_.size; ++peer) {
      if (peer != config_.rank && !peers_[peer].left)
        controls_.push_back({PacketType::Goodbye, peer, 0, {}, {}});
    }
  }
}

bool Endpoint::everyone_caught_up() const {
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer != config_.rank && !peers_[peer].left && peers_[peer].completed < completed_) return false;
  }
  return true;
}

// ---------------------------------------------------------------------------------------------------
// receiving

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

std::uint64_t Endpoint::completed_everywhere() const {
  std::uint64_t everywhere = next_operation_;
  for (Rank rank = 0; rank < config_.size; ++rank) {
    if (rank != config_.rank && !peers_[rank].left) everywhere = std::min(everywhere, peers_[rank].completed);
  }
  return everywhere;
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
  if (ahead) rejected_.emplace(run.operation, *body);
}

void Endpoint::handle_goodbye(Time now, Rank peer) {
  peers_[peer].left = true;
  std::vector<Operation*> deserted;
  for (const auto& [number, operation] : operations_) {
    const bool needed = !operation->owned().flow(peer).complete() || !operation->foreign(peer).complete();
    if (number >= peers_[peer].completed && needed) deserted.push_back(operation.get());
  }
  for (Operation* operation : deserted) fail_deserted(now, *operation, peer);
}

// --------------------------------------------------------------------------------------------------
// operations

Operation* Endpoint::find(std::uint64_t operation) {
  const auto found = operations_.find(operation);
  return found == operations_.end() ? nullptr : found->second.get();
}

void Endpoint::finish_if_complete(Time now, Operation& operation) {
  if (!operation.complete()) return;
  if (completed_everywhere() <= operation.number()) archive_.keep(operation);
  finish(now, operation, ErrorCode::None, "", {});
}

void Endpoint::finish(Time now, Operation& operation, ErrorCode code, std::string message,
                      std::vector<Rank> ranks) {
  if (!message.empty()) {
    message = "all-reduce " + std::to_string(operation.number()) + " of " + describe(operation.descriptor()) +
              ": " + message;
  }
  completions_.push_back({operation.number(), operation.bytes(), now - operation.started(),
                          operation.repaired_bytes, 0, code, std::move(message), std::move(ranks)});
  ++stats_.operations;
  stats_.bucket_bytes += operation.bytes();
  if (code != ErrorCode::None) ++stats_.failed_operations;
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer != config_.rank) peers_[peer].window.on_credit(operation.foreign(peer).outstanding_bytes());
  }
  operations_.erase(operation.number());
  completed_ = operations_.empty() ? next_operation_ : operations_.begin()->first;
  status_due_ = now + config_.ack_delay;
  schedule(status_due_);
}

void Endpoint::fail_rejected(Time now, Operation& operation, const RejectBody& body) {
  rejected_.emplace(operation.number(), body);
  while (rejected_.size() > kMaxRejected) rejected_.erase(rejected_.begin());
  const std::string reporter = "rank " + std::to_string(body.reporter);
  const std::string culprit = "rank " + std::to_string(body.culprit);
  if (body.reason == RejectReason::Mismatch) {
    finish(now, operation, ErrorCode::Mismatch,
           reporter + " reduces " + describe(body.expected) + " but " + culprit + " reduces " +
               describe(body.found) +
               "; all ranks must call the same operations with the same size, type and reduction in the same "
               "order",
           {body.reporter, body.culprit});
  } else {
    finish(now, operation, ErrorCode::Timeout, reporter + " gave up waiting for " + culprit, {body.culprit});
  }
}

void Endpoint::fail_deserted(Time now, Operation& operation, Rank peer) {
  finish(now, operation, ErrorCode::Closed,
         "rank " + std::to_string(peer) + " left the group before it was complete", {peer});
}

void Endpoint::fail_late(Time now, Operation& operation) {
  const std::vector<Rank> late = operation.waiting_for();
  std::vector<std::string> parts;
  for (Rank peer : late) {
    const Peer& state = peers_[peer];
    const std::string seen =
        state.heard ? "last packet from it " + std::to_string((now - state.last_heard).seconds()) + " s ago"
                    : "never heard";
    parts.push_back(operation.describe_wait(peer) + ", " + seen);
  }
  if (!late.empty()) {
    const RejectBody body{RejectReason::Timeout, late.front(), config_.rank, operation.descriptor(),
                          operation.descriptor()};
    tell_rejection(operation.number(), body);
    rejected_.emplace(operation.number(), body);
    while (rejected_.size() > kMaxRejected) rejected_.erase(rejected_.begin());
  }
  const double waited = (now - operation.started()).seconds();
  finish(now, operation, ErrorCode::Timeout,
         "not complete after " + std::to_string(waited) + " s, waiting for " + list(parts), late);
}

void Endpoint::tell_rejection(std::uint64_t operation, const RejectBody& body) {
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer != config_.rank) controls_.push_back({PacketType::Reject, peer, operation, {}, body});
  }
}

void Endpoint::answer_rejected(std::uint64_t operation, Rank peer) {
  controls_.push_back({PacketType::Reject, peer, operation, {}, rejected_.at(operation)});
}

std::optional<Report> Endpoint::poll_completion() {
  if (completions_.empty()) return std::nullopt;
  Report report = std::move(completions_.front());
  completions_.pop_front();
  return report;
}

// ------------------------------------------------------------------------------------------------------
// timers

void Endpoint::handle_timeout(Time now) {
  if (now < next_timeout_) return;
  next_timeout_ = Time::never();
  std::vector<Operation*> late;
  for (const auto& [number, operation] : operations_) {
    const Time gives_up_at = give_up_time(*operation);
    if (gives_up_at <= now) {
      late.push_back(operation.get());
    } else {
      schedule(gives_up_at);
      request_missing(now, *operation);
    }
  }
  for (Operation* operation : late) fail_late(now, *operation);
  send_status_if_due(now);
}

/// Who waits for reduced shards only cannot know whose contribution their owners lack: it hears the owners'
/// verdict before its own.
Time Endpoint::give_up_time(const Operation& operation) const {
  return operation.waits_for_contributions() ? operation.deadline()
                                             : operation.deadline() + config_.repair_max;
}

void Endpoint::request_missing(Time now, Operation& operation) {
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer == config_.rank) continue;
    request_flow(now, operation, peer, PacketType::Contribution);
    request_flow(now, operation, peer, PacketType::Reduced);
  }
}

void Endpoint::request_flow(Time now, Operation& operation, Rank peer, PacketType wanted) {
  const InboundFlow& flow =
      wanted == PacketType::Contribution ? operation.owned().flow(peer) : operation.foreign(peer).flow();
  const Time due = flow.request_due(peers_[peer].rtt.repair_timeout(), config_.reorder_delay);
  if (due <= now) {
    controls_.push_back({PacketType::Request, peer, operation.number(), wanted, {}});
    schedule(now + peers_[peer].rtt.repair_timeout());
  } else {
    schedule(due);
  }
}

void Endpoint::send_status_if_due(Time now) {
  if (now < status_due_) return schedule(status_due_);
  status_due_ = Time::never();
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer != config_.rank && !peers_[peer].left && peers_[peer].told < completed_) {
      controls_.push_back({PacketType::Status, peer, 0, {}, {}});
    }
  }
}

// -----------------------------------------------------------------------------------------------------
// sending

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
