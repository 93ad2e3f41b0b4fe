#include "proto/grid_report.h"

#include <algorithm>

namespace optireduce {
namespace {

void add_losses(std::vector<PeerLoss>& total, const std::vector<PeerLoss>& more) {
  for (const PeerLoss& loss : more) {
    const auto same = [&](const PeerLoss& each) { return each.peer == loss.peer; };
    const auto found = std::find_if(total.begin(), total.end(), same);
    if (found == total.end()) {
      total.push_back(loss);
      continue;
    }
    found->contribution_bytes += loss.contribution_bytes;
    found->reduced_bytes += loss.reduced_bytes;
  }
}

bool overlaps(const Hole& hole, std::size_t begin, std::size_t bytes) {
  return hole.begin < begin + bytes && begin < hole.begin + hole.bytes;
}

}  // namespace

void add_stage(Report& total, const Report& stage, std::size_t begin) {
  total.bounded = total.bounded && stage.bounded;
  total.repaired_bytes += stage.repaired_bytes;
  total.closed_by = std::max(total.closed_by, stage.closed_by);
  total.reduced_lost_bytes += stage.reduced_lost_bytes;
  total.corrected_bytes += stage.corrected_bytes;
  for (Hole hole : stage.holes) {
    hole.begin += begin;
    total.holes.push_back(hole);
  }
  std::sort(total.holes.begin(), total.holes.end());
  add_losses(total.lost_by_peer, stage.lost_by_peer);
  for (Rank rank : stage.absent) {
    if (std::find(total.absent.begin(), total.absent.end(), rank) == total.absent.end())
      total.absent.push_back(rank);
  }
  add_policy(total.policy, stage.policy);
  total.error = stage.error;
  total.message = stage.message;
  total.ranks = stage.ranks;
}

void add_lacking(std::vector<std::uint16_t>& lacking, const Shard& piece, const Report& across,
                 Rank group_size) {
  const bool hollow = across.reduced_lost_bytes != 0;
  if (!hollow && across.contributions_lost_bytes == 0) return;
  lacking.resize(piece.packets(), 0);
  for (std::uint32_t packet = 0; hollow && packet < piece.packets(); ++packet) {
    const auto lost = [&](const Hole& hole) {
      return hole.stage == PacketType::Reduced &&
             overlaps(hole, piece.place_of(packet), piece.length_of(packet));
    };
    if (std::any_of(across.holes.begin(), across.holes.end(), lost)) lacking[packet] = kHollow;
  }
  // The column knows how much it lacks, not where in the piece: the first packets stand for it.
  std::uint64_t left = across.contributions_lost_bytes * group_size;
  for (std::uint32_t packet = 0; packet < piece.packets() && left != 0; ++packet) {
    if (lacking[packet] == kHollow) continue;
    const std::uint32_t bytes = piece.length_of(packet);
    const std::uint64_t most = group_size - std::min<std::uint64_t>(lacking[packet], group_size);
    const std::uint64_t ranks = std::min<std::uint64_t>((left + bytes - 1) / bytes, most);
    lacking[packet] = static_cast<std::uint16_t>(lacking[packet] + ranks);
    left -= std::min(left, ranks * bytes);
  }
}

void add_policy(PolicySnapshot& total, const PolicySnapshot& stage) {
  total.bound = total.bound + stage.bound;
  total.early = total.early + stage.early;
  total.early_fraction = std::max(total.early_fraction, stage.early_fraction);
  total.incast = total.incast == 0 ? stage.incast : std::min(total.incast, stage.incast);
  total.window_bytes =
      total.window_bytes == 0 ? stage.window_bytes : std::min(total.window_bytes, stage.window_bytes);
  total.rtt = std::max(total.rtt, stage.rtt);
  total.bytes_per_second = std::max(total.bytes_per_second, stage.bytes_per_second);
}

void add_stats(Stats& total, const Stats& lane, bool operations) {
  constexpr std::uint64_t Stats::* kPackets[] = {
      &Stats::packets_sent,           &Stats::payload_bytes_sent, &Stats::packets_received,
      &Stats::payload_bytes_received, &Stats::requests_sent,      &Stats::requests_received,
      &Stats::resent_bytes,           &Stats::repaired_bytes,     &Stats::late_bytes,
      &Stats::corrected_bytes,        &Stats::duplicate_packets,  &Stats::stale_packets,
      &Stats::early_packets,          &Stats::early_dropped,      &Stats::invalid_packets,
      &Stats::forged_packets,         &Stats::malformed_packets};
  constexpr std::uint64_t Stats::* kOperations[] = {&Stats::operations, &Stats::failed_operations,
                                                    &Stats::bucket_bytes, &Stats::lost_bytes};
  for (const auto counter : kPackets) total.*counter += lane.*counter;
  for (const auto counter : kOperations) total.*counter += operations ? lane.*counter : 0;
}

}  // namespace optireduce
