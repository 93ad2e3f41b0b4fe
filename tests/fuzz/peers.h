// The other ranks of the group, as the script makes them: they know the session's secret and how operations
// are cut, and say what the input wants them to say.
#pragma once

#include <cstdint>
#include <vector>

#include "subject.h"

namespace fuzz {

class Peers {
 public:
  explicit Peers(const GroupConfig& config)
      : config_(config), newest_(config.size), completed_(config.size) {}

  /// One or several packets of the same kind, side by side, the last perhaps shorter.
  struct Volley {
    Rank from = 0;
    std::uint32_t segment_bytes = 0;
    Bytes bytes;
  };
  Volley speak(Input& input, const Subject& subject, Secret secret);

  /// Nothing about it is right but the seal.
  Volley babble(Input& input, Secret secret);

 private:
  Rank peer(Input& input) const { return static_cast<Rank>(1 + input.below(config_.size - 1u)); }
  void twist(Input& input, Header& header) const;
  void place(Input& input, Header& header, std::uint64_t operation, std::uint32_t& packet,
             Shard& shard) const;
  Bytes request(Input& input, const Subject& subject) const;
  Bytes reject(Input& input) const;
  Bytes view_message(Input& input, const Subject& subject);

  GroupConfig config_;
  std::vector<std::uint32_t> newest_;     // by rank: the timestamp it sent last
  std::vector<std::uint32_t> completed_;  // by rank: what it says it has completed
  std::uint32_t view_messages_ = 0;       // of all
};

}  // namespace fuzz
