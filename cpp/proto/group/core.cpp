#include "group/core.h"

#include <utility>

#include "base/codec.h"

namespace optireduce {

Core::Core(GroupConfig given, BufferPool& buffers)
    : config(std::move(given)),
      grid(config.rank, config.size, config.rows),
      pool(buffers),
      peers(config.size),
      multicast{config.multicast, MulticastHealth(config.size)},
      incast(config.size),
      best_effort(config.best_effort) {
  std::size_t others = 0;
  for (Rank rank = 0; rank < config.size; ++rank) others += grid.links(rank) ? 1 : 0;
  for (Rank rank = 0; rank < config.size; ++rank) {
    const std::size_t grant = rank < config.grants.size() ? config.grants[rank] : config.path.window_bytes;
    const WindowBounds bounds = WindowBounds::of(config.path, others, grant);
    const std::uint32_t payload = config.path.payload_bytes;
    Peer& peer = peers[rank];
    peer.rank = rank;
    peer.linked = grid.links(rank);
    peer.window = SendWindow(bounds, payload, chunk_packets_for(payload));
    peer.rtt = RttEstimator(config.path);
  }
}

void Core::tell_rejection(std::uint64_t operation, const RejectBody& body, Rank to) {
  controls.push_back(
      {.type = PacketType::Reject, .to = to, .operation = operation, .payload = to_bytes(body)});
}

}  // namespace optireduce
