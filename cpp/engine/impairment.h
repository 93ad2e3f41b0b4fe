// Drops, duplicates and reorders outgoing packets of one peer, from a seed. Only in tests.
#pragma once

#include <cstddef>
#include <functional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "engine/options.h"

namespace optireduce {

class Impairment {
 public:
  Impairment(const ImpairmentOptions& options, std::uint64_t stream)
      : options_(options), random_(options.seed * 1000003 + stream) {}

  void send(std::span<const std::byte> packet, const std::function<void(std::span<const std::byte>)>& out) {
    if (chance(options_.drop)) return;
    const std::vector<std::byte> overtaken = std::exchange(held_, {});
    if (overtaken.empty() && chance(options_.reorder)) {
      held_.assign(packet.begin(), packet.end());
      return;
    }
    out(packet);
    if (chance(options_.duplicate)) out(packet);
    if (!overtaken.empty()) out(overtaken);
  }

 private:
  bool chance(double probability) { return std::uniform_real_distribution<>(0, 1)(random_) < probability; }

  ImpairmentOptions options_;
  std::mt19937_64 random_;
  std::vector<std::byte> held_;
};

}  // namespace optireduce
