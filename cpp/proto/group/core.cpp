#include "group/core.h"

#include <algorithm>
#include <utility>

#include "group/grid.h"

namespace optireduce {

Core::Core(GroupConfig given, BufferPool& buffers)
    : config(checked(std::move(given))),
      pool(buffers),
      peers(config.size),
      multicast{config.multicast, MulticastHealth(config.size)},
      incast(config.size) {
  for (Rank rank = 0; rank < config.size; ++rank) peers[rank].linked = are_linked(config, rank);
  const auto others = std::count_if(peers.begin(), peers.end(), [](const Peer& peer) { return peer.linked; });
  for (Rank rank = 0; rank < config.size; ++rank) {
    const std::size_t grant = rank < config.grants.size() ? config.grants[rank] : config.path.window_bytes;
    const auto bounds = WindowBounds::of(config.path, static_cast<std::size_t>(others), grant);
    const std::uint32_t payload = config.path.payload_bytes;
    peers[rank].window = SendWindow(bounds, payload, chunk_packets_for(payload));
    peers[rank].rtt = RttEstimator(config.path);
  }
}

void Core::tell_rejection(std::uint64_t operation, const RejectBody& body, Rank to) {
  Control control{.type = PacketType::Reject, .to = to, .operation = operation};
  control.payload.resize(RejectBody::kBytes);
  encode_reject(body, control.payload.data());
  controls.push_back(std::move(control));
}

}  // namespace optireduce
