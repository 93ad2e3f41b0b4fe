#include "wire/seal.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "wire/packet.h"

namespace optireduce {
namespace {

/// Hashed at once, from the stack: as many as the widest kernel takes.
constexpr std::size_t kGroup = 16;

/// What keys and numbers are derived for; each has a message of its own.
enum class Purpose : std::uint8_t { Receiver = 1, Everybody = 2, SharedNumber = 3 };

std::uint64_t derive(const SipKey& session, Purpose purpose, Rank rank, std::uint8_t half) {
  const std::array<std::byte, 4> message{std::byte(purpose), std::byte(half), std::byte(rank & 0xffu),
                                         std::byte(rank >> 8)};
  static_assert(sizeof message < kSealAt, "a packet could look like it");
  return siphash({session, {}, message});
}

SipKey derive_key(const SipKey& session, Purpose purpose, Rank rank) {
  return {derive(session, purpose, rank, 0), derive(session, purpose, rank, 1)};
}

/// Whether the same bytes may go to several ranks. An echo is for one rank, so they have none.
bool is_for_everybody(const std::byte* header) {
  const bool to_group = type_of(header) == PacketType::Decision || (flags_of(header) & kFlagEverybody) != 0;
  return to_group && (flags_of(header) & kFlagEcho) == 0;
}

std::uint64_t written(const std::byte* header) {
  std::uint64_t seal;
  std::memcpy(&seal, header + kSealAt, sizeof seal);
  return seal;
}

void write(std::byte* header, std::uint64_t seal) {
  std::memcpy(header + kSealAt, &seal, sizeof seal);
}

/// One word: no early exit that could be timed.
bool equal(std::uint64_t a, std::uint64_t b) {
  return (a ^ b) == 0;
}

SipMessage message_of(const SipKey& key, const std::byte* header, std::span<const std::byte> payload) {
  return {key, {header, kSealAt}, payload};
}

}  // namespace

Seal::Seal(const SipKey& session, Rank me)
    : kind_(Kind::Tag),
      shared_number_(derive(session, Purpose::SharedNumber, 0, 0)),
      session_(session),
      mine_(derive_key(session, Purpose::Receiver, me)),
      everybody_(derive_key(session, Purpose::Everybody, 0)) {}

const SipKey& Seal::opening_key(const std::byte* header) const {
  return is_for_everybody(header) ? everybody_ : mine_;
}

SipKey Seal::closing_key(const std::byte* header, Rank to) const {
  return is_for_everybody(header) ? everybody_ : derive_key(session_, Purpose::Receiver, to);
}

void Seal::close(std::byte* header, std::span<const std::byte> payload, Rank to) const {
  const bool token = kind_ == Kind::Token;
  write(header, token ? token_ : siphash(message_of(closing_key(header, to), header, payload)));
}

void Seal::close(std::span<Segment> batch, Rank to) const {
  if (kind_ == Kind::Token) {
    for (Segment& segment : batch) write(segment.header.data(), token_);
    return;
  }
  if (batch.empty()) return;
  const SipKey key = closing_key(batch[0].header.data(), to);  // they differ in place and length only
  std::array<SipMessage, kGroup> messages;
  std::array<std::uint64_t, kGroup> tags;
  while (!batch.empty()) {
    const auto group = batch.first(std::min(batch.size(), kGroup));
    for (std::size_t i = 0; i < group.size(); ++i)
      messages[i] = message_of(key, group[i].header.data(), group[i].payload);
    siphash(std::span(messages).first(group.size()), tags.data());
    for (std::size_t i = 0; i < group.size(); ++i) write(group[i].header.data(), tags[i]);
    batch = batch.subspan(group.size());
  }
}

bool Seal::opens(std::span<const std::byte> packet) const {
  if (packet.size() < kHeaderBytes) return false;
  const std::byte* header = packet.data();
  if (kind_ == Kind::Token) return equal(written(header), token_);
  return equal(written(header),
               siphash(message_of(opening_key(header), header, packet.subspan(kHeaderBytes))));
}

void Seal::open_all(std::span<const std::byte> packets, std::size_t stride,
                    std::vector<bool>& genuine) const {
  genuine.assign((packets.size() + stride - 1) / stride, false);
  const auto packet = [&](std::size_t i) {
    return packets.subspan(i * stride, std::min(stride, packets.size() - i * stride));
  };
  if (kind_ == Kind::Token) {
    for (std::size_t i = 0; i < genuine.size(); ++i) genuine[i] = opens(packet(i));
    return;
  }
  std::array<SipMessage, kGroup> messages;
  std::array<std::uint64_t, kGroup> tags;
  for (std::size_t first = 0; first < genuine.size(); first += kGroup) {
    std::size_t group = 0;
    for (std::size_t i = first; i < std::min(first + kGroup, genuine.size()); ++i) {
      if (packet(i).size() < kHeaderBytes) break;  // only the last, or all of them
      const std::byte* header = packet(i).data();
      messages[group++] = message_of(opening_key(header), header, packet(i).subspan(kHeaderBytes));
    }
    siphash(std::span(messages).first(group), tags.data());
    for (std::size_t i = 0; i < group; ++i)
      genuine[first + i] = equal(written(messages[i].head.data()), tags[i]);
  }
}

}  // namespace optireduce
