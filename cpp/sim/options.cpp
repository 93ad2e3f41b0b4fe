#include "sim/options.h"

#include <cmath>
#include <stdexcept>
#include <string>

#include "sim/serialiser.h"
#include "sim/wire.h"
#include "wire/packet.h"

namespace optireduce::sim {
namespace {

constexpr double kMaxDrift = 500'000;  // a clock that runs half as fast again; real ones stay below 100

[[noreturn]] void bad_option(const std::string& what) {
  throw std::invalid_argument(what);
}

std::string seconds(Duration value) {
  return std::to_string(value.seconds()) + " s";
}

void check_share(const char* name, double value) {
  if (!(value >= 0 && value <= 1))
    bad_option(std::string(name) + " is " + std::to_string(value) + ", must be in [0, 1]");
}

void check_not_negative(const char* name, Duration value) {
  if (value.ns < 0) bad_option(std::string(name) + " is " + seconds(value) + ", must not be negative");
}

void check_rate(const std::string& name, double bits_per_second) {
  if (!(bits_per_second >= 0)) {
    bad_option(name + " is " + std::to_string(bits_per_second) + ", must be 0 (unlimited) or more");
  }
}

void check_rank(const char* name, Rank rank, Rank ranks) {
  if (rank >= ranks) {
    bad_option(std::string(name) + " is rank " + std::to_string(rank) + ", must be below " +
               std::to_string(ranks));
  }
}

void check_not_before_begin(const char* name, Time at, Time begin) {
  if (at < begin) {
    bad_option(std::string(name) + " is at " + seconds({at.ns}) +
               ", must not be before the network's beginning at " + seconds({begin.ns}));
  }
}

void check(const LinkOptions& link) {
  check_rate("bits_per_second", link.bits_per_second);
  check_not_negative("delay", link.delay);
  check_not_negative("jitter", link.jitter);
  check_not_negative("reorder_delay", link.reorder_delay);
  check_not_negative("spike_delay", link.spike_delay);
  check_share("loss", link.loss);
  check_share("reorder", link.reorder);
  check_share("duplicate", link.duplicate);
  check_share("spike", link.spike);
}

void check_links(const SimOptions& options) {
  check(options.link);
  for (const auto& [pair, link] : options.other_links) {
    check_rank("a link's sender", pair.first, options.ranks);
    check_rank("a link's receiver", pair.second, options.ranks);
    check(link);
  }
  for (const LinkCut& cut : options.cuts) {
    check_rank("a cut's sender", cut.from, options.ranks);
    check_rank("a cut's receiver", cut.to, options.ranks);
  }
  for (const GroupOutage& outage : options.group_outages)
    check_rank("a group outage", outage.rank, options.ranks);
}

void check_port(const std::string& name, const PortOptions& port, std::size_t packet_bytes) {
  check_rate(name + "'s bits_per_second", port.bits_per_second);
  const std::size_t wire_bytes = packet_bytes + kWireOverheadBytes;
  if (port.queue_bytes > 0 && port.queue_bytes < wire_bytes) {
    bad_option(name + "'s queue_bytes is " + std::to_string(port.queue_bytes) +
               ", must be 0 (no limit) or at least a packet's " + std::to_string(wire_bytes));
  }
}

void check_ports(const SimOptions& options) {
  const std::size_t packet_bytes = options.protocol.path.payload_bytes + kHeaderBytes;
  check_port("egress", options.egress, packet_bytes);
  check_port("ingress", options.ingress, packet_bytes);
  for (const auto& [rank, port] : options.other_egress) {
    check_rank("an egress port", rank, options.ranks);
    check_port("egress of rank " + std::to_string(rank), port, packet_bytes);
  }
  for (const auto& [rank, port] : options.other_ingress) {
    check_rank("an ingress port", rank, options.ranks);
    check_port("ingress of rank " + std::to_string(rank), port, packet_bytes);
  }
}

void check(const Background& background, const SimOptions& options) {
  check_rank("a background", background.rank, options.ranks);
  const std::string name = "background of rank " + std::to_string(background.rank);
  const double rate = background.bits_per_second;
  if (!(rate > 0) || std::isinf(rate)) {
    bad_option(name + " has bits_per_second " + std::to_string(rate) + ", must be above 0 and finite");
  }
  if (background.end < background.begin) {
    bad_option(name + " ends at " + seconds({background.end.ns}) + ", must not be before it begins at " +
               seconds({background.begin.ns}));
  }
  if (ingress_of(options, background.rank).bits_per_second <= 0) {
    bad_option(name + " needs an ingress port with a rate, its bits_per_second is 0 (unlimited)");
  }
}

void check_clocks(const SimOptions& options) {
  for (const auto& [rank, offset] : options.clock_offset) {
    check_rank("a clock_offset", rank, options.ranks);
    if (options.begin.ns + offset.ns < 0) {
      bad_option("clock_offset of rank " + std::to_string(rank) + " is " + seconds(offset) +
                 ", must not be below minus the network's beginning at " + seconds({options.begin.ns}));
    }
  }
  for (const auto& [rank, drift] : options.clock_drift) {
    check_rank("a clock_drift", rank, options.ranks);
    if (!(std::abs(drift) <= kMaxDrift)) {
      bad_option("clock_drift of rank " + std::to_string(rank) + " is " + std::to_string(drift) +
                 " parts per million, must be in [-500000, 500000]");
    }
  }
}

void check_ranks(const SimOptions& options) {
  for (const Pause& pause : options.pauses) check_rank("a pause", pause.rank, options.ranks);
  for (const Departure& departure : options.departures) {
    check_rank("a departure", departure.rank, options.ranks);
    check_not_before_begin("a departure", departure.at, options.begin);
  }
  for (const Crash& crash : options.crashes) {
    check_rank("a crash", crash.rank, options.ranks);
    check_not_before_begin("a crash", crash.at, options.begin);
  }
  for (const Restart& restart : options.restarts) {
    check_rank("a restart", restart.rank, options.ranks);
    check_not_before_begin("a restart", restart.at, options.begin);
  }
}

}  // namespace

Seal seal_of(const SimOptions& options, Rank rank) {
  return options.seal == Seal::Kind::Tag ? Seal(kSessionKey, rank) : Seal(kToken);
}

const LinkOptions& link_of(const SimOptions& options, Rank from, Rank to) {
  if (options.other_links.empty()) return options.link;
  const auto found = options.other_links.find({from, to});
  return found == options.other_links.end() ? options.link : found->second;
}

const PortOptions& egress_of(const SimOptions& options, Rank rank) {
  const auto found = options.other_egress.find(rank);
  return found == options.other_egress.end() ? options.egress : found->second;
}

const PortOptions& ingress_of(const SimOptions& options, Rank rank) {
  const auto found = options.other_ingress.find(rank);
  return found == options.other_ingress.end() ? options.ingress : found->second;
}

SimOptions checked(SimOptions options) {
  if (options.ranks == 0) bad_option("ranks is 0, must be at least 1");
  const std::uint32_t payload = options.protocol.path.payload_bytes;
  if (payload % 16 != 0 || payload == 0 || payload + kHeaderBytes > WireBatch::kMaxBytes) {
    bad_option("payload_bytes is " + std::to_string(payload) +
               ", must be a multiple of 16 that fits a datagram");
  }
  check_links(options);
  check_ports(options);
  for (const Background& background : options.backgrounds) check(background, options);
  check_ranks(options);
  check_clocks(options);
  check_share("forge", options.hostile.forge);
  check_share("truncate", options.hostile.truncate);
  check_share("mangle", options.hostile.mangle);
  check_share("replay", options.hostile.replay);
  check_share("tamper", options.hostile.tamper);
  if (options.hostile.tamper > 0 && options.seal != Seal::Kind::Tag)
    bad_option("tamper needs packets with tags: without them nobody can tell");
  check_share("forced loss", options.forced_loss.share);
  check_share("coalesce", options.coalesce);
  check_not_negative("wake_delay", options.wake_delay);
  return options;
}

}  // namespace optireduce::sim
