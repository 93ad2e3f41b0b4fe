#include "operation/ledger.h"

#include <algorithm>
#include <map>

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

/// Calls visit(owner, packet, detail) for every packet whose detail is not the usual one.
template <typename Visit>
void for_each_unusual(const Operation& operation, Visit visit) {
  for (Rank owner = 0; owner < operation.places(); ++owner) {
    const Decided& decided = operation.exchange().details(owner);
    const std::uint32_t packets = decided.all_usual() ? 0 : operation.gather().shard(owner).packets();
    for (std::uint32_t packet = 0; packet < packets; ++packet) {
      if (decided.detail(packet) != decided.usual()) visit(owner, packet, decided.detail(packet));
    }
  }
}

Time median(std::vector<Time> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

/// Who contributed last, and how much later than the median.
void fill_waited(const Operation& operation, Lateness& late) {
  std::vector<Time> times;
  Rank last = kNoPlace;
  for (Rank place = 0; place < operation.places(); ++place) {
    const Time at = operation.scatter().complete_at(place);
    if (at == Time::never()) continue;
    times.push_back(at);
    if (last == kNoPlace || at > operation.scatter().complete_at(last)) last = place;
  }
  if (last == kNoPlace) return;
  late.waited_for = operation.rank_at(last);
  late.waited = operation.scatter().complete_at(last) - median(times);
}

void fill_behind(const Operation& operation, Lateness& late) {
  std::vector<Time> others;
  for (Rank place = 0; place < operation.places(); ++place) {
    const bool other = place != operation.setup().me;
    if (other && operation.begun_at(place) != Time::never()) others.push_back(operation.begun_at(place));
  }
  if (!others.empty() && operation.begun()) late.behind = operation.call().called_at - median(others);
}

void fill_excluded(const Operation& operation, Report& report) {
  const OperationSetup& setup = operation.setup();
  std::map<Rank, std::uint64_t> excluded;
  std::uint64_t lost = 0;
  for_each_unusual(operation, [&](Rank owner, std::uint32_t packet, std::uint64_t detail) {
    const std::uint32_t length = operation.gather().shard(owner).length_of(packet);
    lost += setup.best_effort ? detail * length : 0;
    if (!setup.carries()) return;
    report.void_bytes += detail == 0 ? length : 0;
    for (Rank rank : setup.members) {
      if ((detail >> (rank & 63u) & 1) == 0) excluded[rank] += length;
    }
  });
  for (const auto& [rank, bytes] : excluded) report.excluded.push_back({rank, bytes});
  report.lost.contribution_bytes = (lost + setup.places() - 1u) / setup.places();
}

/// Best effort.
void fill_holes(const Operation& operation, Losses& lost) {
  for (Rank owner = 0; owner < operation.places(); ++owner) {
    const Shard& shard = operation.gather().shard(owner);
    operation.gather().inbox(owner).for_each_missing([&](std::uint32_t packet) {
      const Place place = place_of(shard, packet);
      lost.holes.push_back({PacketType::Decision, operation.rank_at(owner), place.begin, place.bytes});
      lost.decision_bytes += place.bytes;
    });
  }
  for (const auto& [whose, packet] : operation.scatter().missing()) {
    const Place place = place_of(operation.scatter().shard(), packet);
    lost.holes.push_back({PacketType::Contribution, operation.rank_at(whose), place.begin, place.bytes});
  }
  lost.holes = merged(std::move(lost.holes));
}

/// How the contributions of one place came.
struct Course {
  Time complete;           // never: something is missing
  Time closed;             // by a deadline
  std::uint32_t excluded;  // packets
  std::uint32_t packets;   // of all
};

Arrival arrival_of(Time from, Time began, const Course& course, Time now) {
  const bool whole = course.complete != Time::never();
  const Time ended = whole ? course.complete : std::min(now, course.closed);
  const double missing = whole ? 0.0 : course.excluded / static_cast<double>(course.packets);
  return {began == Time::never() ? ended - from : began - from, ended - from, missing};
}

}  // namespace

Report ledger_of(const Operation& operation, Time now) {
  Report report;
  report.operation = operation.number();
  report.bytes = operation.bytes();
  report.bounded = operation.descriptor().bounded;
  report.closed_by = operation.closed_by();
  report.members = operation.setup().members;
  report.repaired_bytes = operation.repaired_bytes;
  report.own = operation.own();
  if (operation.begun()) report.elapsed = now - operation.call().called_at;
  for (Rank place : operation.exchange().non_finite()) report.non_finite.push_back(operation.rank_at(place));
  fill_waited(operation, report.late);
  fill_behind(operation, report.late);
  fill_excluded(operation, report);
  if (operation.setup().best_effort) fill_holes(operation, report.lost);
  return report;
}

std::uint64_t digest_of(const Operation& operation) {
  std::uint64_t hash = hashed(kFnvBasis, operation.number());
  for_each_unusual(operation, [&](Rank owner, std::uint32_t packet, std::uint64_t detail) {
    const std::uint64_t index = operation.gather().index(owner);
    hash = hashed(hashed(hash, index << 32 | packet), detail);
  });
  return hash;
}

std::vector<Arrival> arrivals_of(const Operation& operation, Time now) {
  const Time from = operation.half_begun_at();
  const OperationSetup& setup = operation.setup();
  const ReduceScatter& scatter = operation.scatter();
  std::vector<Arrival> arrivals;
  for (Rank place = 0; place < operation.places(); ++place) {
    const Time began = operation.begun_at(place), complete = scatter.complete_at(place);
    if (place == setup.me) {  // there at once, and known also after the deadline
      if (began != Time::never()) arrivals.push_back({began - from, began - from, 0});
      continue;
    }
    if (!scatter.takes_from(place)) continue;
    const std::size_t ranks = setup.speaks_for_row(place) ? setup.routes->row_size() : 1;
    const Course course{complete, operation.closed_at(), scatter.excluded_packets(place),
                        scatter.shard().packets()};
    arrivals.insert(arrivals.end(), ranks, arrival_of(from, began, course, now));
  }
  return arrivals;
}

std::vector<Arrival> row_arrivals_of(const Operation& operation, Time now) {
  const Time from = operation.half_row_begun_at();
  std::vector<Arrival> arrivals;
  for (Rank place = 0; place < operation.places(); ++place) {
    if (!operation.setup().gives_to(place)) continue;
    Course course{Time{}, operation.relays_closed_at(), 0, 0};
    for (const Relay& relay : operation.exchange().relays()) {
      const ReduceScatter& sums = relay.sums();
      if (sums.shard().packets() == 0) continue;
      course.complete = std::max(course.complete, sums.complete_at(place));
      course.excluded += sums.excluded_packets(place);
      course.packets += sums.shard().packets();
    }
    if (course.packets != 0) arrivals.push_back(arrival_of(from, operation.begun_at(place), course, now));
  }
  const Time began = operation.setup().serves() ? operation.begun_at(operation.setup().me) : Time::never();
  if (!arrivals.empty() && began != Time::never()) arrivals.push_back({began - from, began - from, 0});
  return arrivals;
}

std::vector<Rank> waiting_for(const Operation& operation) {
  std::vector<Rank> furthest_behind, owners;
  std::uint32_t most_missing = 1;
  for (Rank place = 0; place < operation.places(); ++place) {
    if (place == operation.setup().me) continue;
    const std::uint32_t missing = operation.exchange().missing_from(place);
    if (missing > most_missing) furthest_behind.clear();
    if (missing >= most_missing) furthest_behind.push_back(operation.rank_at(place));
    most_missing = std::max(most_missing, missing);
    if (operation.exchange().lacks_decisions_from(place)) owners.push_back(operation.rank_at(place));
  }
  return furthest_behind.empty() ? owners : furthest_behind;
}

std::string describe_wait(const Operation& operation, Rank rank) {
  const bool contribution = operation.exchange().lacks(operation.place_of(rank));
  return "rank " + std::to_string(rank) + (contribution ? " (its contribution)" : " (its decisions)");
}

}  // namespace optireduce
