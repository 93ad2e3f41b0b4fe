// One rank of a group whose packets carry tags: packets are handed to it, and it is looked at.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "group/group.h"
#include "inspection.h"
#include "sealed.h"

namespace membercase {

using namespace optireduce;
using Bytes = std::vector<std::byte>;

constexpr Time kNow{1'000'000'000};
constexpr SipKey kKey{0x0706'0504'0302'0100u, 0x0f0e'0d0c'0b0a'0908u};
constexpr Rank kRanks = 2;
constexpr std::uint16_t kPayload = 1408;
constexpr std::uint32_t kElements = 20'011;
constexpr Descriptor kDescriptor{kElements, DType::Float32, ReduceOp::Sum};

inline Bytes packet_of(const Header& header, const Seal& seal, Rank to) {
  Bytes packet(kHeaderBytes + header.length, std::byte{0x5a});
  encode(header, seal, std::span(packet).subspan(kHeaderBytes), to, packet.data());
  return packet;
}

/// Has an operation under way.
struct Member {
  explicit Member(Rank rank) : data(kElements * 4, std::byte{1}), group(config_of(rank), pool) {
    group.start(kNow, {.descriptor = kDescriptor, .data = data.data(), .timeout = Duration::millis(60'000)});
  }

  static GroupConfig config_of(Rank rank) {
    GroupConfig config;
    config.rank = rank;
    config.size = kRanks;
    config.path.payload_bytes = kPayload;
    config.seal = Seal(kKey, rank);
    return config;
  }

  void receive(Rank from, const Bytes& bytes, std::size_t segment_bytes) {
    Datagram datagram{from, pool.take(bytes.size()), static_cast<std::uint32_t>(bytes.size()),
                      static_cast<std::uint32_t>(segment_bytes)};
    std::copy(bytes.begin(), bytes.end(), datagram.buffer.data());
    group.handle_datagram(kNow, std::move(datagram));
  }

  /// All that others and its caller can notice of it, but for forged_packets.
  std::string observed() {
    Stats stats = group.stats();
    stats.forged_packets = 0;
    std::string seen(reinterpret_cast<const char*>(&stats), sizeof stats);
    seen += std::to_string(group.heard(1)) + std::to_string(group.idle()) +
            std::to_string(inspect(group).members.size()) + std::to_string(group.poll_timeout().ns);
    seen.append(reinterpret_cast<const char*>(data.data()), data.size());
    return seen;
  }

  Bytes data;
  BufferPool pool;
  Group group;
};

}  // namespace membercase
