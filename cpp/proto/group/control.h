// Packets without bucket data that wait to be sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "wire/packet.h"

namespace optireduce {

struct Control {
  PacketType type = PacketType::Status;
  Rank to = 0;
  std::uint64_t operation = 0;
  Scope scope = Scope::All;
  std::uint8_t flags = 0;
  bool to_group = false;                         // to everybody by multicast instead of `to`
  PacketType wanted = PacketType::Contribution;  // Request
  Rank shard = 0;                                // Request
  std::vector<std::byte> payload = {};           // Reject, View
};

}  // namespace optireduce
