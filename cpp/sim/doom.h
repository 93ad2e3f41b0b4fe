// Which packets come too late, whatever the protocol does.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "proto/packet.h"
#include "proto/protocol.h"
#include "sim/options.h"

namespace optireduce::sim {

class Doom {
 public:
  explicit Doom(const SimOptions& options)
      : options_(options.doom),
        seed_(options.seed),
        payload_bytes_(options.protocol.payload_bytes),
        ranks_(options.ranks) {}

  bool any() const { return options_.share > 0; }

  /// Whether this packet must not reach `to`, whose protocol knows what it has completed.
  bool strikes(std::span<const std::byte> packet, Rank to, const Protocol& protocol);

 private:
  /// Operation, lane and stage, from, to.
  using Stream = std::tuple<std::uint32_t, std::uint8_t, Rank, Rank>;

  bool is_hopeless(PacketType type) const;
  bool in_storm(std::uint32_t operation, Rank to) const;
  std::vector<bool> draw(const Stream& stream, std::uint32_t packets) const;

  DoomOptions options_;
  std::uint64_t seed_;
  std::uint32_t payload_bytes_;
  Rank ranks_;
  std::map<Stream, std::vector<bool>> struck_;  // by packet; of the newest operations
};

}  // namespace optireduce::sim
