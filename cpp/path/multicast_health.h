// Whether what is sent to the group gets to everybody, judged by what peers ask for again. A switch may
// forget a group in the middle of a training; then repair carries everything, slowly.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "base/rank.h"

namespace optireduce {

class MulticastHealth {
 public:
  explicit MulticastHealth(Rank size) : peers_(size) {}

  void on_sent(Rank peer, std::uint64_t operation, std::uint64_t packets) {
    if (operation >= peers_[peer].from) peers_[peer].sent += packets;
    sent_any_ = true;
  }
  void on_resent(Rank peer, std::uint64_t operation, std::uint64_t packets) {
    if (operation >= peers_[peer].from) peers_[peer].resent += packets;
  }
  /// The peer did not answer and was sent more than it had room for: what it asks for again of
  /// this operation and earlier ones says nothing about the network. What it has asked for before does: a
  /// peer that nothing reaches does not answer either.
  void on_overrun(Rank peer, std::uint64_t operation) { peers_[peer].from = operation + 1; }

  /// An operation is over. Tells, at the end of each period, a peer that got most of it by repair.
  std::optional<Rank> end_operation() {
    if (!sent_any_) return std::nullopt;
    sent_any_ = false;
    const std::uint64_t most_sent = std::ranges::max(peers_, {}, &Peer::sent).sent;
    if (++operations_ < kOperations || most_sent < kLeastPackets) return std::nullopt;
    std::optional<Rank> unreached;
    for (Rank rank = 0; rank < peers_.size(); ++rank) {
      const Peer& peer = peers_[rank];
      if (peer.sent >= kLeastPackets && peer.resent * 2 > peer.sent) unreached = rank;
    }
    operations_ = 0;
    for (Peer& peer : peers_) peer.sent = peer.resent = 0;
    return unreached;
  }

 private:
  /// Random loss does not take half of so many packets, nor of so many operations.
  static constexpr std::uint32_t kOperations = 8;
  static constexpr std::uint64_t kLeastPackets = 256;

  struct Peer {
    std::uint64_t sent = 0;    // packets to the group that it should have got ...
    std::uint64_t resent = 0;  // ... and those that it asked for again in time
    std::uint64_t from = 0;    // of operations from this one on
  };

  std::vector<Peer> peers_;  // by rank
  std::uint32_t operations_ = 0;
  bool sent_any_ = false;
};

}  // namespace optireduce
