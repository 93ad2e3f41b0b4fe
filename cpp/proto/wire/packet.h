// The packet format. docs/protocol.md describes it for people; this file is what it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/rank.h"
#include "kernels/dtype.h"
#include "wire/seal.h"

namespace optireduce {

constexpr std::uint8_t kProtocolVersion = 5;
constexpr std::size_t kHeaderBytes = 64;
constexpr std::size_t kSealAt = 56;  // to the end of the header

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
  View = 9,          // a message about membership (wire/view_messages.h)
};

constexpr bool is_data(PacketType type) {
  return type == PacketType::Contribution || type == PacketType::Decision;
}

/// Which part of the group an operation's packet is exchanged in: everybody, or a row or column of a grid.
enum class Scope : std::uint8_t { All = 0, Row = 1, Column = 2, RowResult = 3 };
constexpr std::size_t kScopes = 4;

/// What an operation reduces. All ranks must agree; every data packet carries it, so that a rank that
/// disagrees is found by the first packet.
struct Descriptor {
  std::uint32_t elements = 0;
  DType dtype = DType::Float32;
  ReduceOp op = ReduceOp::Sum;
  bool bounded = false;  // decisions have a deadline

  bool operator==(const Descriptor&) const = default;
};

struct Header {
  PacketType type = PacketType::Status;
  Scope scope = Scope::All;
  Rank sender = 0;
  std::uint32_t operation = 0;  // low 32 bits of the operation's number
  Descriptor descriptor;
  std::uint8_t flags = 0;
  std::uint16_t length = 0;  // bytes of payload
  std::uint32_t offset = 0;  // of the payload in its shard, in bytes
  std::uint16_t shard = 0;
  std::uint16_t view = 0;       // low bits of the sender's view number
  std::uint32_t timestamp = 0;  // sender's clock in microseconds, strictly increasing from batch to batch
  std::uint32_t completed = 0;  // the sender has finished all operations below this one (low 32 bits)
  std::uint8_t oldest = 0;      // age of the sender's oldest residual in steps, 0: it has none
  std::uint8_t incast = 0;      // how many senders at once the sender of this packet takes (0: any number)
  std::uint32_t echo = 0;       // the newest timestamp that the sender has seen from the receiver ...
  std::uint16_t hold = 0;       // ... and how long ago that was, in microseconds (65535: too long)
  std::uint32_t stream = 0;     // Contribution, Decision: the bucket whose residuals the operation carries
  std::uint64_t detail = 0;     // Contribution: its weight. Decision: a bit for each rank that is included

  bool operator==(const Header&) const = default;
};

/// Writes the kSealAt bytes before the seal.
void encode_fields(const Header& header, std::byte* out);

/// Writes kHeaderBytes bytes: the header of a packet to `to` with this payload.
void encode(const Header& header, const Seal& seal, std::span<const std::byte> payload, Rank to,
            std::byte* out);

/// Fields of any header, genuine or not, that its seal depends on.
PacketType type_of(const std::byte* header);
std::uint8_t flags_of(const std::byte* header);

/// Of a packet whose seal has been checked: nothing, unless every field is right that can be checked without
/// knowing the operation.
std::optional<Header> decode(std::span<const std::byte> packet, Rank size);

/// Whether `next` has the header of `first`, which was decoded, but for an offset of `offset`, its own length
/// and its seal, which was checked. Many packets arrive at once; comparing is cheaper than decoding each.
bool continues(std::span<const std::byte> first, std::span<const std::byte> next, std::uint32_t offset);

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
};

/// A Request's payload: `newest` is the latest timestamp seen from the packet's receiver, which tells it what
/// can no longer be under way. The header's shard says of which shard packets are missing.
struct RequestBody {
  static constexpr std::size_t kFixedBytes = 8;
  static constexpr std::size_t kEntryBytes = 12;

  std::uint32_t newest = 0;
  PacketType wanted = PacketType::Contribution;
  std::size_t entries = 0;
};

void encode_request(const RequestBody& body, std::byte* out);
void encode_entry(const RequestEntry& entry, std::byte* out);
std::optional<RequestBody> decode_request(std::span<const std::byte> payload);
RequestEntry decode_entry(std::span<const std::byte> payload, std::size_t index);

/// A Reject's payload.
enum class RejectReason : std::uint8_t { Mismatch = 1, Timeout = 2, Left = 3 };

struct RejectBody {
  static constexpr std::size_t kBytes = 20;

  RejectReason reason = RejectReason::Timeout;
  Rank culprit = 0;     // the rank that is late, has left, or disagrees with `reporter`
  Rank reporter = 0;    // the rank that found out
  Descriptor expected;  // the reporter's
  Descriptor found;     // the culprit's

  bool operator==(const RejectBody&) const = default;
};

void encode_reject(const RejectBody& body, std::byte* out);
std::optional<RejectBody> decode_reject(std::span<const std::byte> payload, Rank size);

}  // namespace optireduce
