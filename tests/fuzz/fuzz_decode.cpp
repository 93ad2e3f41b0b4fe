// Everything that reads bytes of a packet before anything is known about it.
#include <algorithm>

#include "base/codec.h"
#include "input.h"
#include "seal.h"
#include "views/view_messages.h"

using namespace optireduce;

namespace {

/// What was believed can be written again, and means the same.
void check_round_trip(const Header& header, std::span<const std::byte> packet) {
  const fuzz::Bytes again = fuzz::sealed(header, packet.subspan(kHeaderBytes), fuzz::kSecret);
  fuzz::require(fuzz::received(again, 0xffff) == header, "a decoded header survives a round trip");
}

template <typename Body>
void read_body(std::span<const std::byte> payload, Rank size) {
  const auto body = from_bytes<Body>(payload, size);
  if (!body) return;
  fuzz::require(std::ranges::equal(to_bytes(*body), payload), "a body survives a round trip");
}

void read_view_message(std::span<const std::byte> bytes, Rank size) {
  PieceCollector pieces;
  static_cast<void>(pieces.add(bytes));
  const auto message = decode_view_message(bytes, size);
  if (!message) return;
  const auto again = decode_view_message(encode(*message), size);
  fuzz::require(again && encode(*again) == encode(*message), "a view message survives a round trip");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const auto ranks = static_cast<Rank>(1 + input.byte());
  const std::uint8_t how = input.byte();
  // Exactly as long as the packet: the sanitizer sees every byte read beyond it.
  const std::size_t bytes = size > 2 ? std::min<std::size_t>(size - 2, 65'507) : 0;
  fuzz::Bytes packet(bytes);
  input.fill(packet);
  if ((how & 1) == 0) fuzz::seal_raw(packet, fuzz::kSecret);
  if (const std::optional<Header> header = fuzz::received(packet, ranks)) {
    fuzz::require(header->sender < ranks && header->shard < ranks, "ranks are of the group");
    fuzz::require(header->length + kHeaderBytes == packet.size(), "the length is the packet's");
    check_round_trip(*header, packet);
    const fuzz::Bytes next(packet.begin(), packet.begin() + how % (packet.size() + 1));
    continues(*header, next, header->offset);
    fuzz::require(continues(*header, packet, header->offset), "a packet has its own header");
  }
  const std::span<const std::byte> all = packet;
  for (const auto body : {all, all.subspan(std::min(all.size(), kHeaderBytes))}) {
    read_body<RequestBody>(body, ranks);
    read_body<RejectBody>(body, ranks);
    read_view_message(body, std::min<Rank>(ranks, 64));
  }
  return 0;
}
