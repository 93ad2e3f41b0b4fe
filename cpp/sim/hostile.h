// Packets that a correct group must ignore, made from genuine ones.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "group/config.h"
#include "sim/options.h"
#include "sim/random.h"

namespace optireduce::sim {

struct HostilePacket {
  std::vector<std::byte> bytes;
  Duration delay;  // beside the link's
};

/// The packets that the options want beside this genuine one, which is on its way to `to`.
std::vector<HostilePacket> sabotage(std::span<const std::byte> genuine, Rank to, const SimOptions& options,
                                    Random& random);

}  // namespace optireduce::sim
