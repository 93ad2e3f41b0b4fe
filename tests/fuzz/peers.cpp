#include "peers.h"

#include <algorithm>

#include "../cpp/inspection.h"
#include "base/codec.h"

namespace fuzz {
namespace {

/// Which fields of a header are not what an honest rank would write.
enum Twist : std::uint8_t {
  kCompleted = 1,
  kStream = 2,
  kPolicies = 4,
  kTimes = 8,
  kPlace = 16,
  kIdentity = 32,
  kDescriptor = 64,
  kWeight = 128
};

constexpr std::size_t kMostBytes = 60'000;

/// Mostly near what was started, before or after; sometimes anywhere.
std::uint64_t pick_operation(Input& input, std::uint64_t started) {
  const std::uint8_t choice = input.byte();
  if (choice >= 248) return input.take<std::uint32_t>();
  if (choice >= 192) return started + choice % 8;
  return started - std::min<std::uint64_t>(started, 1u + choice % 8);
}

Descriptor any_descriptor(Input& input) {
  Descriptor descriptor;
  descriptor.elements = input.take<std::uint32_t>();
  descriptor.dtype = static_cast<DType>(input.below(static_cast<unsigned>(DType::Last) + 1));
  descriptor.op = static_cast<ReduceOp>(input.below(4));
  descriptor.bounded = input.below(2) == 1;
  return descriptor;
}

}  // namespace

Peers::Volley Peers::speak(Input& input, const Subject& subject, Secret secret) {
  Header header;
  header.sender = peer(input);
  header.type = static_cast<PacketType>(1 + input.below(9));
  const std::uint64_t operation = pick_operation(input, subject.started().size());
  header.operation = static_cast<std::uint32_t>(operation);
  if (operation < subject.started().size()) {
    header.descriptor = subject.started()[operation].descriptor;
    header.stream = subject.started()[operation].stream;
  } else if (!subject.started().empty()) {
    header.descriptor = subject.started().back().descriptor;
    header.stream = subject.started().back().stream;
  }
  header.flags = input.byte();
  header.view = static_cast<std::uint16_t>(inspect(subject.group()).view);
  header.detail = 1;
  if (header.type == PacketType::Decision)
    header.detail = header.descriptor.bounded ? first_ranks(config_.size) : 0;
  header.timestamp = newest_[header.sender] += 1 + input.below(4) * 50;
  header.echo = subject.timestamp();
  header.completed = completed_[header.sender] =
      std::max(completed_[header.sender], static_cast<std::uint32_t>(input.below(4) == 0 ? operation : 0));
  std::uint32_t packet = 0;
  Shard shard;
  place(input, header, operation, packet, shard);
  Bytes payload(header.length);
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i + packet);
  if (header.type == PacketType::Request) payload = request(input, subject);
  if (header.type == PacketType::Reject) payload = reject(input);
  if (header.type == PacketType::View) payload = view_message(input, subject);
  header.length = static_cast<std::uint16_t>(payload.size());
  const std::uint32_t packets = is_data(header.type) ? 1 + input.below(8) : 1;
  const Rank from = header.sender;  // the socket knows, whatever the header says
  twist(input, header);
  Volley volley{from, static_cast<std::uint32_t>(kHeaderBytes + payload.size()), {}};
  for (std::uint32_t i = 0; i < packets && volley.bytes.size() + volley.segment_bytes <= kMostBytes; ++i) {
    if (i > 0 && packet + i >= shard.packets()) break;
    if (i > 0) header.offset += header.length;
    if (i > 0) payload.resize(std::min<std::size_t>(payload.size(), shard.length_of(packet + i)));
    if (i > 0) header.length = static_cast<std::uint16_t>(payload.size());
    const Bytes one = sealed(header, payload, secret);
    volley.bytes.insert(volley.bytes.end(), one.begin(), one.end());
  }
  return volley;
}

/// Where an honest packet lies that this peer sends to rank 0, or reduces.
void Peers::place(Input& input, Header& header, std::uint64_t operation, std::uint32_t& packet,
                  Shard& shard) const {
  const std::uint8_t which = input.byte();
  if (!is_data(header.type)) return;
  const std::uint64_t seed = config_.shuffle && header.descriptor.bounded ? config_.seal.shared_number() : 0;
  const Schedule schedule(header.descriptor, operation, config_.size, config_.path.payload_bytes, seed);
  header.shard = schedule.shard_of(header.type == PacketType::Contribution ? config_.rank : header.sender);
  shard = schedule.shard(header.shard);
  if (shard.packets() == 0) return;
  packet = which % shard.packets();
  header.offset = shard.offset_of(packet);
  header.length = static_cast<std::uint16_t>(shard.length_of(packet));
}

void Peers::twist(Input& input, Header& header) const {
  const std::uint8_t twists = input.byte();
  if (twists & kCompleted) header.completed = input.take<std::uint32_t>();
  if (twists & kStream) header.stream = input.take<std::uint32_t>();
  if (twists & kPolicies) {
    header.view = input.take<std::uint16_t>();
    header.oldest = input.byte();
    header.incast = input.byte();
  }
  if (twists & kTimes) {
    header.echo = input.take<std::uint32_t>();
    header.hold = input.take<std::uint16_t>();
    header.timestamp = input.take<std::uint32_t>();
  }
  if (twists & kPlace) header.offset = input.take<std::uint32_t>();
  if (twists & kIdentity) {
    header.sender = input.byte();
    header.shard = input.byte();
  }
  if (twists & kDescriptor) header.descriptor = any_descriptor(input);
  if (twists & kWeight) header.detail = input.take<std::uint16_t>();
}

Bytes Peers::request(Input& input, const Subject& subject) const {
  const std::uint8_t many = input.byte();
  const std::size_t entries = many == 255 ? kMostBytes / RequestBody::kEntryBytes : many % 8;
  RequestBody body;
  body.newest = input.below(2) == 0 ? subject.timestamp() : input.take<std::uint32_t>();
  body.wanted = static_cast<PacketType>(1 + input.below(2));
  for (std::size_t i = 0; i < entries; ++i) {
    RequestEntry entry{input.byte(), ~std::uint64_t{0}};
    if (entry.chunk == 255) entry = {input.take<std::uint32_t>(), input.take<std::uint64_t>()};
    body.entries.push_back(entry);
  }
  return to_bytes(body);
}

Bytes Peers::reject(Input& input) const {
  if (input.below(4) == 0) {
    Bytes payload = to_bytes(RejectBody{});
    input.fill(payload);
    return payload;
  }
  RejectBody body;
  body.reason = static_cast<RejectReason>(input.below(3));
  body.culprit = static_cast<Rank>(input.below(config_.size));
  body.reporter = static_cast<Rank>(input.below(config_.size));
  return to_bytes(body);
}

/// A message about the view, about as a member would send it, or any bytes.
Bytes Peers::view_message(Input& input, const Subject& subject) {
  const Inspection seen = inspect(subject.group());
  const std::uint32_t kind = input.below(10);
  const RankMask some = input.byte() & first_ranks(config_.size);
  const Ballot ballot{1 + input.below(4), peer(input)};
  const Join request{0, seen.view + input.below(3), input.below(8), input.below(2)};
  ViewMessage message{.incarnation = input.below(8) == 7 ? 1u : 0u,
                      .view = seen.view,
                      .completed = seen.completed + input.below(3),
                      .body = Adopted{}};
  View next = View::initial(config_.size);
  next.number = seen.view + 1;
  next.members = some | 1;
  next.removed = first_ranks(config_.size) & ~next.members;
  next.cut = seen.completed + input.below(4);
  next.base = seen.completed;
  if (kind == 0) message.body = Propose{ballot, some, {}};
  if (kind == 1)
    message.body = State{.ballot = ballot, .completed = seen.completed, .reach_end = seen.completed + 4};
  if (kind == 2) message.body = Adopt{ballot, next};
  if (kind == 3) message.body = Adopted{ballot};
  if (kind == 4) message.body = Install{{next}};
  if (kind == 5) message.body = request;
  if (kind == 6) message.body = Refusal{request};
  if (kind == 7)
    message.body = Status{some, input.below(4) == 3, input.below(4) == 3, input.below(2) == 1, 0};
  if (kind == 8) {
    Bytes payload(input.byte());
    input.fill(payload);
    return payload;
  }
  const auto pieces =
      cut_view_message(encode(message), message_id(0, ++view_messages_), config_.path.payload_bytes);
  return pieces.empty() ? Bytes() : pieces[input.below(static_cast<std::uint32_t>(pieces.size()))];
}

Peers::Volley Peers::babble(Input& input, Secret secret) {
  Volley volley{peer(input), 0, Bytes(input.take<std::uint16_t>() % 512)};
  input.fill(volley.bytes);
  volley.segment_bytes = input.take<std::uint16_t>();
  const std::size_t stride =
      std::max<std::size_t>(1, std::min<std::size_t>(volley.segment_bytes, volley.bytes.size()));
  for (std::size_t at = 0; at < volley.bytes.size(); at += stride) {
    const std::span packet(volley.bytes.data() + at, std::min(stride, volley.bytes.size() - at));
    if (packet.size() < kHeaderBytes) continue;
    packet[offsetof(Header, version)] = std::byte{kProtocolVersion};
    packet[offsetof(Header, sender)] = static_cast<std::byte>(volley.from);
    packet[offsetof(Header, sender) + 1] = std::byte{0};
    seal_raw(packet, secret);
  }
  return volley;
}

}  // namespace fuzz
