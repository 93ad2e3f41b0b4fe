// What the engine is told once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/time.h"
#include "group/config.h"
#include "net/udp_socket.h"

namespace optireduce {

/// Faults injected into what this rank sends, for tests on real sockets. Probabilities per packet.
struct ImpairmentOptions {
  double drop = 0;
  double duplicate = 0;
  double reorder = 0;  // held back until after the next packet to the same peer
  std::uint64_t seed = 0;

  bool any() const { return drop > 0 || duplicate > 0 || reorder > 0; }
};

struct EngineOptions {
  GroupConfig group;  // rank, size, seal, grants and payload are filled in
  /// How long a waiting thread looks for packets before it sleeps. Waking up costs about 30 us.
  Duration spin = Duration::micros(50);
  SocketOptions socket;
  ImpairmentOptions impairment;
};

}  // namespace optireduce
