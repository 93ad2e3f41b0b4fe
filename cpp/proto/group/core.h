// What the parts of a group share: its settings, its peers, its operations, and what waits to be sent.
#pragma once

#include <deque>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/codec.h"
#include "group/config.h"
#include "group/operations.h"
#include "group/outcomes.h"
#include "group/timers.h"
#include "path/multicast_health.h"
#include "path/peer.h"
#include "recovery/residual.h"

namespace optireduce {

/// A packet without bucket data that waits to be sent.
struct Control {
  PacketType type = PacketType::Status;
  Rank to = 0;
  std::uint64_t operation = 0;
  std::uint8_t flags = 0;
  bool to_group = false;                // to everybody by multicast instead of `to`
  Rank shard = 0;                       // Request
  std::uint64_t detail = 0;             // Check
  std::vector<std::byte> payload = {};  // Request, Reject, View
};

/// In which order packets are sent again: decisions first, then the oldest operation. By whether it is a
/// contribution, operation, asker, shard and chunk.
using RepairKey = std::tuple<bool, std::uint64_t, Rank, Rank, std::uint32_t>;

struct Core {
  Core(GroupConfig given, BufferPool& buffers)
      : config(std::move(given)),
        routes(config.size, config.rows),
        pool(buffers),
        peers(config.size),
        multicast(config.multicast),
        multicast_health(config.size),
        incast(config.size),
        best_effort(config.best_effort) {
    for (Rank rank = 0; rank < config.size; ++rank) peers[rank] = new_peer(rank, 0);
    // It has not what no operation at all amounts to for the others.
    if (config.incarnation != 0) progress.restart({0, ~std::uint64_t{0}}, 0);
  }

  /// Nothing is known yet of this process.
  Peer new_peer(Rank rank, std::uint32_t incarnation) const {
    std::size_t others = 0;
    for (Rank other = 0; other < config.size; ++other) others += routes.links(config.rank, other) ? 1 : 0;
    const std::size_t grant = rank < config.grants.size() ? config.grants[rank] : config.path.window_bytes;
    const WindowBounds bounds = WindowBounds::of(config.path, others, grant);
    const std::uint32_t payload = config.path.payload_bytes;
    Peer peer;
    peer.rank = rank;
    peer.incarnation = incarnation;
    // How far ranks are, and how old their residuals, counts also for those who exchange no data with them.
    peer.linked = rank != config.rank && (config.size <= kMostNamed || routes.links(config.rank, rank));
    peer.window = SendWindow(bounds, payload, chunk_packets_for(payload));
    peer.rtt = RttEstimator(config.path);
    return peer;
  }

  /// Sends a packet that is nothing but a header.
  void tell(PacketType type, Rank to, std::uint8_t flags = 0) {
    controls.push_back({.type = type, .to = to, .flags = flags});
  }
  /// The same to every peer that is wanted.
  template <typename Wanted>
  void tell_all(PacketType type, Wanted wanted) {
    for (const Peer& peer : peers) {
      if (wanted(peer)) tell(type, peer.rank);
    }
  }
  void tell_rejection(std::uint64_t operation, const RejectBody& body, Rank to) {
    controls.push_back(
        {.type = PacketType::Reject, .to = to, .operation = operation, .payload = to_bytes(body)});
  }
  /// This rank has no contribution to the operation.
  void tell_abstention(const Operation& operation, Rank to) {
    controls.push_back({.type = PacketType::Abstain, .to = to, .operation = operation.number()});
  }
  /// Of a bucket. Where members may be removed, one may be left to own all of it.
  std::size_t most_bytes() const { return Schedule::max_bytes(config.elastic() ? Rank{1} : config.size); }
  /// Nothing was called that is not over.
  bool idle() const { return operations.open().empty() && waiting.empty(); }
  RepairTimers repair_timers(Rank rank) const { return peers[rank].rtt.timers(config.path.reorder_delay); }

  GroupConfig config;
  Routes routes;
  BufferPool& pool;
  Stats stats;
  std::vector<Peer> peers;  // by rank; our own stays untouched
  Progress progress;
  Operations operations;
  std::deque<LocalCall> waiting;  // calls that have not begun, oldest first
  Residuals residuals;
  Timers timers;
  std::deque<Control> controls;
  std::map<RepairKey, Repair> repairs;
  bool multicast = false;
  MulticastHealth multicast_health;
  IncastPolicy incast;
  BestEffort best_effort;
  Outcomes outcomes;
  std::int64_t last_timestamp = 0;   // of our packets, in microseconds
  std::uint8_t oldest_residual = 0;  // age of ours, in steps
};

}  // namespace optireduce
