// The packet format. docs/protocol.md describes it for people; this file is what it is.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "kernels/dtype.h"
#include "wire/seal.h"

namespace optireduce {

constexpr std::uint8_t kProtocolVersion = 5;
constexpr std::size_t kSealAt = 56;  // from the end of the fields to the end of the header
constexpr std::size_t kHeaderBytes = kSealAt + sizeof(std::uint64_t);

// Header flags.
constexpr std::uint8_t kFlagResent = 1;       // was sent before, is sent again because the receiver missed it
constexpr std::uint8_t kFlagAnswer = 2;       // the sender may send no more until it knows what has arrived
constexpr std::uint8_t kFlagLast = 4;         // among the last percent of what the sender has for this stage
constexpr std::uint8_t kFlagEcho = 8;         // `echo` and `hold` mean something
constexpr std::uint8_t kFlagHeld = 16;        // the sender may send no more until this has been decided ...
constexpr std::uint8_t kFlagGoOn = 32;        // ... Status: it need not wait for that, there is room
constexpr std::uint8_t kFlagHearsAll = 64;    // the sender has heard all members of its view lately
constexpr std::uint8_t kFlagEverybody = 128;  // no decision, and yet sent to a multicast group

enum class PacketType : std::uint8_t {
  Contribution = 1,  // stage 1: a piece of the sender's bucket, for the shard's owner
  Decision = 2,      // stage 2: a piece of the reduced shard, to every member
  Request = 3,       // packets that the sender of this one misses
  Status = 4,        // nothing but the header
  Ping = 5,          // answer me with a Status
  Reject = 6,        // the operation has failed here; the payload says why
  Goodbye = 7,       // the sender leaves the group
  Abstain = 8,       // the sender contributes nothing to this operation
  View = 9,          // a message about membership (views/view_messages.h)
  Check = 10,        // a hash of the sender's parameters, between two steps
  Gone = 11,         // the sender has completed the operation, and no longer has this shard's decisions
  First = Contribution,
  Last = Gone
};

constexpr bool is_data(PacketType type) {
  return type == PacketType::Contribution || type == PacketType::Decision;
}

/// What an operation reduces. All ranks must agree; every data packet carries it, so that a rank that
/// disagrees is found by the first packet.
struct Descriptor {
  std::uint32_t elements = 0;
  DType dtype = DType::Float32;
  ReduceOp op = ReduceOp::Sum;
  bool bounded = false;   // decisions have a deadline
  std::uint8_t zero = 0;  // always: fills the last of its 8 bytes in a header

  bool operator==(const Descriptor&) const = default;
  /// A gather has no sum that could lack somebody.
  bool is_known() const {
    return dtype <= DType::Last && op <= ReduceOp::Last && zero == 0 && !(bounded && op == ReduceOp::Gather);
  }
  static void fields(auto& codec, auto& descriptor) {
    codec.all(descriptor.elements, descriptor.dtype, descriptor.op, descriptor.bounded);
  }
};

/// Everything but the seal, as it lies on the wire: the order of the fields is the format.
struct Header {
  std::uint8_t version = kProtocolVersion;
  PacketType type = PacketType::Status;
  Rank sender = 0;
  std::uint32_t operation = 0;  // low 32 bits of the operation's number
  Descriptor descriptor;
  std::uint32_t offset = 0;  // of the payload in its shard, in bytes
  std::uint16_t length = 0;  // bytes of payload
  std::uint16_t shard = 0;
  std::uint32_t timestamp = 0;  // sender's clock in microseconds, strictly increasing from batch to batch
  std::uint32_t completed = 0;  // the sender has finished all operations below this one (low 32 bits)
  std::uint32_t stream = 0;     // Contribution, Decision: the bucket whose residuals the operation carries
  std::uint32_t echo = 0;       // the newest timestamp that the sender has seen from the receiver ...
  std::uint16_t hold = 0;       // ... and how long ago that was, in microseconds (65535: too long)
  std::uint16_t view = 0;       // low bits of the sender's view number
  std::uint8_t zero = 0;
  std::uint8_t flags = 0;
  std::uint8_t oldest = 0;  // age of the sender's oldest residual in steps, 0: it has none
  std::uint8_t incast = 0;  // how many senders at once the sender of this packet takes (0: any number)
  // Decision, and in a grid the sum of a row with a deadline: a bit for each rank that is included.
  // Contribution: its weight, and in the upper half how many chunks of the decisions on that shard the sender
  // has from the first on: who takes it need not keep those. Check: the hash; `operation` is the first one
  // that has no part in what was hashed.
  std::uint64_t detail = 0;

  bool operator==(const Header&) const = default;
};

/// Of a contribution.
inline std::uint32_t weight_of(const Header& header) {
  return static_cast<std::uint32_t>(header.detail);
}

/// Writes the kSealAt bytes before the seal.
void encode_fields(const Header& header, std::byte* out);

/// Fields of any header, genuine or not, that its seal depends on.
inline PacketType type_of(const std::byte* header) {
  return static_cast<PacketType>(header[offsetof(Header, type)]);
}
inline std::uint8_t flags_of(const std::byte* header) {
  return static_cast<std::uint8_t>(header[offsetof(Header, flags)]);
}

/// Of a packet whose seal has been checked: nothing, unless every field is right that can be checked without
/// knowing the operation.
std::optional<Header> decode(std::span<const std::byte> packet, Rank size);

/// Whether `next`, whose seal was checked, has the header of the packet before it, but for an offset of
/// `offset` and its own length. Many packets arrive at once; comparing is cheaper than decoding each.
bool continues(const Header& first, std::span<const std::byte> next, std::uint32_t offset);

/// The largest payload that fits the path, or 0 if not even a useful packet fits.
std::uint32_t payload_for_mtu(std::size_t mtu, bool ipv6);

/// The full operation number whose low 32 bits are `low`, nearest to `near`.
constexpr std::uint64_t widen(std::uint32_t low, std::uint64_t near) {
  const auto distance = static_cast<std::int32_t>(low - static_cast<std::uint32_t>(near));
  const auto wide = static_cast<std::int64_t>(near) + distance;
  return wide < 0 ? low : static_cast<std::uint64_t>(wide);
}

/// One entry of a Request's payload: packets `missing` (a bit each) of chunk `chunk`.
struct RequestEntry {
  std::uint32_t chunk = 0;
  std::uint64_t missing = 0;

  static void fields(auto& codec, auto& entry) { codec.all(entry.chunk, entry.missing); }
};

/// A Request's payload: `newest` is the latest timestamp seen from the packet's receiver, which tells it what
/// can no longer be under way. The header's shard says of which shard packets are missing.
struct RequestBody {
  static constexpr std::size_t kFixedBytes = 9;
  static constexpr std::size_t kEntryBytes = 12;

  std::uint32_t newest = 0;
  PacketType wanted = PacketType::Contribution;
  std::vector<RequestEntry> entries;

  static void fields(auto& codec, auto& body) {
    codec.all(body.newest, body.wanted, body.entries);
    codec.require(is_data(body.wanted));
  }
};

enum class RejectReason : std::uint8_t { Mismatch = 0, Timeout = 1, Left = 2, Silent = 3, Last = Silent };

/// A Reject's payload.
struct RejectBody {
  RejectReason reason = RejectReason::Timeout;
  Rank culprit = 0;     // the rank that is late, has left, is silent, or disagrees with `reporter`
  Rank reporter = 0;    // the rank that found out
  Descriptor expected;  // the reporter's
  Descriptor found;     // the culprit's

  bool operator==(const RejectBody&) const = default;
  static void fields(auto& codec, auto& body) {
    codec.all(body.reason, body.culprit, body.reporter, body.expected, body.found);
  }
};

// ---- Packets out

struct Segment {
  std::array<std::byte, kHeaderBytes> header;
  std::span<const std::byte> payload;  // valid until the group is called again

  std::size_t bytes() const { return kHeaderBytes + payload.size(); }
};

/// A batch of packets for one or several peers, or for the whole group: what the protocol wants sent.
///
/// All segments but the last are equally long, so that one GSO send can carry them. The same bytes go to
/// every destination. Reused from call to call: clear() keeps the memory.
struct Transmit {
  std::vector<Rank> to;
  bool group = false;  // multicast: sent once, for all of them
  std::vector<Segment> segments;
  std::vector<std::byte> control;  // backs the payload of control packets

  void clear() {
    to.clear();
    group = false;
    segments.clear();
    control.clear();
  }
};

}  // namespace optireduce
