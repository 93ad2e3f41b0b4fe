#include "sim/forced_loss.h"

#include <algorithm>
#include <cmath>

#include "geometry/schedule.h"
#include "operation/deadline.h"
#include "sim/random.h"

namespace optireduce::sim {
namespace {

constexpr std::uint32_t kRememberedOperations = 8;
/// Of the receivers of an operation: so many are in a storm.
constexpr double kStormy = 0.1;

std::vector<bool> scattered(std::uint32_t packets, double share, Random& random) {
  std::vector<bool> struck(packets);
  for (std::uint32_t packet = 0; packet < packets; ++packet) struck[packet] = random.chance(share);
  return struck;
}

std::vector<bool> tail(std::uint32_t packets, double share, Random& random) {
  const double wanted = share * packets;
  const auto whole = static_cast<std::uint32_t>(wanted);
  const std::uint32_t lost = whole + (random.chance(wanted - whole) ? 1 : 0);
  std::vector<bool> struck(packets, false);
  for (std::uint32_t packet = packets - lost; packet < packets; ++packet) struck[packet] = true;
  return struck;
}

/// Two states: bursts of a mean length, and gaps between them that make up the share.
std::vector<bool> bursts(std::uint32_t packets, double share, double mean_length, Random& random) {
  std::vector<bool> struck(packets, false);
  const double end_burst = 1 / mean_length;
  const double begin_burst = end_burst * share / (1 - share);
  bool in_burst = random.chance(share);
  for (std::uint32_t packet = 0; packet < packets; ++packet) {
    struck[packet] = in_burst;
    if (random.chance(in_burst ? end_burst : begin_burst)) in_burst = !in_burst;
  }
  return struck;
}

}  // namespace

bool ForcedLoss::strikes(std::span<const std::byte> packet, Rank to, const Group& group) {
  const std::optional<Header> decoded = decode(packet, ranks_);
  if (!decoded) return false;
  const Header& header = *decoded;
  if (header.operation < static_cast<std::uint32_t>(group.completed()))
    return false;  // a simulation has fewer than 2^32
  if (!is_data(header.type) || !header.descriptor.bounded || header.operation < options_.first_operation ||
      header.descriptor.elements < options_.least_elements)
    return false;
  if ((header.flags & kFlagResent) != 0 && !is_hopeless(header.type)) return false;
  if (header.oldest >= kOldestResidual) return false;  // its owner waits for it
  const auto stage = static_cast<std::uint8_t>(header.type);
  const Stream stream{header.operation, stage, header.sender, to};
  auto found = struck_.find(stream);
  if (found == struck_.end()) {
    if (header.operation >= kRememberedOperations)
      struck_.erase(struck_.begin(),
                    struck_.lower_bound({header.operation - kRememberedOperations, 0, 0, 0}));
    const Schedule schedule(header.descriptor, header.operation, ranks_, payload_bytes_, 0);
    found = struck_.emplace(stream, draw(stream, schedule.shard(header.shard).packets())).first;
  }
  const std::uint32_t index = header.offset / payload_bytes_;
  return index < found->second.size() && found->second[index];
}

bool ForcedLoss::is_hopeless(PacketType type) const {
  return options_.hopeless == ForcedLossOptions::Hopeless::Everything ||
         (options_.hopeless == ForcedLossOptions::Hopeless::Contributions &&
          type == PacketType::Contribution);
}

std::vector<bool> ForcedLoss::draw(const Stream& stream, std::uint32_t packets) const {
  const auto& [operation, stage, from, to] = stream;
  Random random(
      seed_ ^ (std::uint64_t{operation} << 32 | std::uint64_t{from} << 17 | std::uint64_t{to} << 2 | stage));
  switch (options_.pattern) {
    case ForcedLossOptions::Pattern::Tail:
      return tail(packets, options_.share, random);
    case ForcedLossOptions::Pattern::Bursts:
      return bursts(packets, options_.share, options_.burst_packets, random);
    case ForcedLossOptions::Pattern::Storms:
      return scattered(packets, in_storm(operation, to) ? std::min(1.0, options_.share / kStormy) : 0,
                       random);
    case ForcedLossOptions::Pattern::Random:
      break;
  }
  return scattered(packets, options_.share, random);
}

bool ForcedLoss::in_storm(std::uint32_t operation, Rank to) const {
  return Random(seed_ ^ (std::uint64_t{operation} << 32 | to)).chance(kStormy);
}

}  // namespace optireduce::sim
