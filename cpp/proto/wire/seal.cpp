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

void Seal::close(std::span<Segment> batch, Rank to) const {
  if (kind_ == Kind::Token) {
    for (Segment& segment : batch) write(segment.header.data(), token_);
    return;
  }
  if (batch.empty()) return;
  // They differ in place and length only.
  const bool everybody = is_for_everybody(batch[0].header.data());
  const SipKey key = everybody ? everybody_ : derive_key(session_, Purpose::Receiver, to);
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

void Seal::open_all(std::span<const std::byte> packets, std::size_t stride,
                    std::vector<bool>& genuine) const {
  genuine.assign((packets.size() + stride - 1) / stride, false);
  const auto packet = [&](std::size_t i) {
    return packets.subspan(i * stride, std::min(stride, packets.size() - i * stride));
  };
  // Seals are compared as one word: no early exit that could be timed.
  if (kind_ == Kind::Token) {
    for (std::size_t i = 0; i < genuine.size(); ++i)
      genuine[i] = packet(i).size() >= kHeaderBytes && written(packet(i).data()) == token_;
    return;
  }
  std::array<SipMessage, kGroup> messages;
  std::array<std::uint64_t, kGroup> tags;
  for (std::size_t first = 0; first < genuine.size(); first += kGroup) {
    std::size_t group = 0;
    for (std::size_t i = first; i < std::min(first + kGroup, genuine.size()); ++i) {
      if (packet(i).size() < kHeaderBytes) break;  // only the last, or all of them
      const std::byte* header = packet(i).data();
      const SipKey& key = is_for_everybody(header) ? everybody_ : mine_;
      messages[group++] = message_of(key, header, packet(i).subspan(kHeaderBytes));
    }
    siphash(std::span(messages).first(group), tags.data());
    for (std::size_t i = 0; i < group; ++i) genuine[first + i] = written(messages[i].head.data()) == tags[i];
  }
}

}  // namespace optireduce
