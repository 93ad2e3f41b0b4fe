// Which packets come too late, whatever the protocol does.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "group/group.h"
#include "sim/options.h"
#include "wire/packet.h"

namespace optireduce::sim {

class ForcedLoss {
 public:
  explicit ForcedLoss(const SimOptions& options)
      : options_(options.forced_loss),
        seed_(options.seed),
        payload_bytes_(options.protocol.path.payload_bytes),
        ranks_(options.ranks) {}

  bool any() const { return options_.share > 0; }

  /// Whether this packet must not reach `to`, whose group knows what it has completed.
  bool strikes(std::span<const std::byte> packet, Rank to, const Group& group);

 private:
  /// Operation, stage, from, to.
  using Stream = std::tuple<std::uint32_t, std::uint8_t, Rank, Rank>;

  bool is_hopeless(PacketType type) const;
  bool in_storm(std::uint32_t operation, Rank to) const;
  std::vector<bool> draw(const Stream& stream, std::uint32_t packets) const;

  ForcedLossOptions options_;
  std::uint64_t seed_;
  std::uint32_t payload_bytes_;
  Rank ranks_;
  std::map<Stream, std::vector<bool>> struck_;  // by packet; of the newest operations
};

}  // namespace optireduce::sim
