// What an operation says about itself: who was included where, and who came last.
#include <algorithm>
#include <bit>

#include "operation/operation.h"

namespace optireduce {
namespace {

constexpr std::uint64_t kFnvPrime = 0x0000'0100'0000'01b3u;
constexpr std::uint64_t kFnvBasis = 0xcbf2'9ce4'8422'2325u;

std::uint64_t hashed(std::uint64_t hash, std::uint64_t word) {
  return (hash ^ word) * kFnvPrime;
}

/// Sorted holes with neighbours of the same kind as one.
std::vector<Hole> merged(std::vector<Hole> holes) {
  std::sort(holes.begin(), holes.end());
  std::vector<Hole> merged;
  for (const Hole& hole : holes) {
    Hole* last = merged.empty() ? nullptr : &merged.back();
    const bool continues = last != nullptr && last->stage == hole.stage && last->peer == hole.peer &&
                           last->begin + last->bytes == hole.begin;
    if (continues) {
      last->bytes += hole.bytes;
    } else {
      merged.push_back(hole);
    }
  }
  return merged;
}

/// Calls visit(place, detail, bytes) for every packet of a shard whose detail is not the usual one.
template <typename Visit>
void for_each_unusual(const Shard& shard, const Decided& decided, Visit visit) {
  if (decided.all_usual()) return;
  for (std::uint32_t packet = 0; packet < shard.packets(); ++packet) {
    if (decided.detail(packet) != decided.usual()) visit(packet, decided.detail(packet));
  }
}

void note_excluded(std::vector<Excluded>& all, Rank rank, std::uint64_t bytes) {
  for (Excluded& known : all) {
    if (known.rank == rank) {
      known.bytes += bytes;
      return;
    }
  }
  all.push_back({rank, bytes});
}

Time median(std::vector<Time> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

/// Who contributed last, and how much later than the median.
void fill_waited(const Operation& operation, Report& report) {
  std::vector<Time> times;
  Rank last = kNoPlace;
  for (Rank place = 0; place < operation.places(); ++place) {
    const Time at = operation.scatter().complete_at(place);
    if (at == Time::never()) continue;
    times.push_back(at);
    if (last == kNoPlace || at > operation.scatter().complete_at(last)) last = place;
  }
  if (last == kNoPlace) return;
  report.waited_for = operation.rank_at(last);
  report.waited = operation.scatter().complete_at(last) - median(times);
}

}  // namespace

void Operation::fill(Time now, Report& report) const {
  report.operation = number();
  report.bytes = bytes();
  report.bounded = descriptor().bounded;
  report.closed_by = closed_by_;
  report.members = setup_.members;
  report.repaired_bytes = repaired_bytes;
  report.carried_bytes = carried_bytes_;
  report.residual_bytes = residual_bytes_;
  report.dropped_bytes = dropped_bytes_;
  if (begun()) report.elapsed = now - call_->called_at;
  if (scatter_ && setup_.reduces) fill_waited(*this, report);
  for (Rank place : scatter_ ? scatter_->non_finite() : std::vector<Rank>{})
    report.non_finite.push_back(rank_at(place));
  std::vector<Time> others;
  for (Rank place = 0; place < places(); ++place) {
    if (place != me_ && begun_at_[place] != Time::never()) others.push_back(begun_at_[place]);
  }
  if (!others.empty() && begun()) report.behind = call_->called_at - median(others);
  if (gather_) fill_ledger(report);
}

void Operation::fill_ledger(Report& report) const {
  std::uint64_t lost = 0;
  for (Rank owner = 0; owner < places(); ++owner) {
    const Shard& shard = gather_->shard(owner);
    for_each_unusual(shard, details(owner), [&](std::uint32_t packet, std::uint64_t detail) {
      const std::uint32_t length = shard.length_of(packet);
      lost += setup_.best_effort ? detail * length : 0;
      if (!carries()) return;
      report.void_bytes += detail == 0 ? length : 0;
      for (Rank rank : setup_.members) {
        if ((detail >> (rank & 63u) & 1) == 0) note_excluded(report.excluded, rank, length);
      }
    });
    if (setup_.best_effort && owner != me_) fill_holes(owner, report);
  }
  for (const auto& [place, packet] :
       scatter_ ? scatter_->missing() : std::vector<std::pair<Rank, std::uint32_t>>{}) {
    const Place where = optireduce::place_of(scatter_->shard(), packet);
    report.holes.push_back({PacketType::Contribution, rank_at(place), where.begin, where.bytes});
  }
  std::sort(report.excluded.begin(), report.excluded.end(),
            [](const Excluded& a, const Excluded& b) { return a.rank < b.rank; });
  report.lost_contribution_bytes = (lost + places() - 1u) / places();
  report.holes = merged(std::move(report.holes));
}

void Operation::fill_holes(Rank owner, Report& report) const {
  const Shard& shard = gather_->shard(owner);
  gather_->inbox(owner).for_each_hole([&](std::uint32_t first, std::uint32_t packets) {
    for (std::uint32_t packet = first; packet < first + packets; ++packet) {
      const Place place = optireduce::place_of(shard, packet);
      report.holes.push_back({PacketType::Decision, rank_at(owner), place.begin, place.bytes});
      report.lost_decision_bytes += place.bytes;
    }
  });
}

void Operation::zero_missing() {
  for (Rank owner = 0; gather_ && owner < places(); ++owner) {
    if (owner == me_) continue;
    const Shard& shard = gather_->shard(owner);
    gather_->inbox(owner).for_each_hole([&](std::uint32_t first, std::uint32_t packets) {
      for (std::uint32_t packet = first; packet < first + packets; ++packet)
        bucket_.zero(gather_->index(owner), shard, packet);
    });
  }
}

std::uint64_t Operation::digest() const {
  std::uint64_t hash = hashed(kFnvBasis, number());
  for (Rank owner = 0; gather_ && owner < places(); ++owner) {
    const Shard& shard = gather_->shard(owner);
    for_each_unusual(shard, details(owner), [&](std::uint32_t packet, std::uint64_t detail) {
      hash = hashed(hashed(hash, std::uint64_t{gather_->index(owner)} << 32 | packet), detail);
    });
  }
  return hash;
}

bool Operation::waits_for_contributions() const {
  for (Rank place = 0; scatter_ && place < places(); ++place) {
    if (scatter_->lacks(place)) return true;
  }
  return false;
}

std::vector<Rank> Operation::waiting_for() const {
  std::vector<Rank> furthest_behind, owners;
  std::uint32_t most_missing = 1;
  for (Rank place = 0; place < places(); ++place) {
    if (place == me_) continue;
    const std::uint32_t missing =
        scatter_ && scatter_->lacks(place) ? scatter_->inbox(place).missing_packets() : 0;
    if (missing > most_missing) furthest_behind.clear();
    if (missing >= most_missing) furthest_behind.push_back(rank_at(place));
    most_missing = std::max(most_missing, missing);
    if (gather_ && !gather_->complete(place)) owners.push_back(rank_at(place));
  }
  return furthest_behind.empty() ? owners : furthest_behind;
}

std::string Operation::describe_wait(Rank rank) const {
  const auto progress = [](const Inbox& inbox, const Shard& shard) {
    if (inbox.empty()) return std::string("nothing");
    return std::to_string(shard.packets() - inbox.missing_packets()) + " of " +
           std::to_string(shard.packets()) + " packets";
  };
  const std::string name = "rank " + std::to_string(rank);
  const Rank place = place_of(rank);
  if (scatter_ && scatter_->lacks(place))
    return name + " (received of its contribution: " + progress(scatter_->inbox(place), scatter_->shard()) +
           ")";
  if (!gather_) return name;
  return name + " (received of its decisions: " + progress(gather_->inbox(place), gather_->shard(place)) +
         ")";
}

}  // namespace optireduce
