#include "proto/grid.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "kernels/reduce.h"
#include "proto/grid_report.h"
#include "proto/quorum_gate.h"

namespace optireduce {
namespace {

constexpr Rank kMostWeight = 0xffff;
/// Where only one stage runs, windows open by answers alone: they come sooner.
constexpr Duration kAnswerDelay = Duration::micros(50);

/// The lane's part of the group's configuration.
EndpointConfig config_of(const EndpointConfig& group, const Lane& lane, std::uint8_t number, Stages stages) {
  EndpointConfig config = group;
  config.rank = lane.places[group.rank];
  config.seal = group.seal.for_part(number, lane.members.front(), config.rank);
  config.multicast = false;
  config.size = static_cast<Rank>(lane.members.size());
  config.members = lane.members;
  config.group = group.size;
  config.lane = number;
  config.stages = stages;
  config.bound.min_ranks = 1;  // the grid looks at the whole group
  if (stages != Stages::Both) config.answer_delay = kAnswerDelay;
  config.grants.clear();
  for (Rank member : lane.members) {
    if (member < group.grants.size()) config.grants.push_back(group.grants[member]);
  }
  return config;
}

Place whole(const Descriptor& descriptor) {
  return {0, descriptor.elements * size_of(descriptor.dtype)};
}

/// Where the rank stands.
std::pair<std::size_t, std::size_t> place_of(Rank rank, const Rows& rows) {
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (std::size_t index = 0; index < rows[row].size(); ++index) {
      if (rows[row][index] == rank) return {row, index};
    }
  }
  throw std::invalid_argument("rank " + std::to_string(rank) + " is in none of the " +
                              std::to_string(rows.size()) + " rows");
}

void check(const Rows& rows, Rank size) {
  std::vector<bool> seen(size, false);
  std::size_t ranks = 0;
  for (const auto& row : rows) {
    if (row.size() != rows[0].size() || row.size() < 2 || rows.size() < 2) {
      throw std::invalid_argument("a row of " + std::to_string(row.size()) + " ranks beside one of " +
                                  std::to_string(rows[0].size()) + " in " + std::to_string(rows.size()) +
                                  " rows: a grid has at least two rows of at least two, all equally long");
    }
    for (Rank rank : row) {
      if (rank >= size || seen[rank])
        throw std::invalid_argument("rank " + std::to_string(rank) +
                                    " must be in exactly one row, and below " + std::to_string(size));
      seen[rank] = true;
      ++ranks;
    }
  }
  if (ranks != size)
    throw std::invalid_argument("the rows have " + std::to_string(ranks) + " ranks, the group has " +
                                std::to_string(size));
}

}  // namespace

std::unique_ptr<Protocol> make_protocol(const EndpointConfig& config, const Rows& rows, BufferPool& pool) {
  std::unique_ptr<Protocol> form;
  if (rows.empty()) form = std::make_unique<Endpoint>(config, pool);
  if (!rows.empty()) form = std::make_unique<Grid>(config, rows, pool);
  return std::make_unique<QuorumGate>(std::move(form), config);
}

Grid::Grid(EndpointConfig config, const Rows& rows, BufferPool& pool)
    : config_(std::move(config)), pool_(pool), absent_in_(config_.size, 0) {
  check(rows, config_.size);
  const auto [row, index] = place_of(config_.rank, rows);
  index_ = static_cast<Rank>(index);
  row_size_ = static_cast<Rank>(rows[row].size());
  column_size_ = static_cast<Rank>(rows.size());
  std::vector<Rank> column, all(config_.size);
  for (const auto& each : rows) column.push_back(each[index]);
  std::iota(all.begin(), all.end(), Rank{0});
  lanes_[kScatter].join(rows[row], config_.size);
  lanes_[kAcross].join(column, config_.size);
  lanes_[kGather].join(rows[row], config_.size);
  lanes_[kFlat].join(all, config_.size);
  const auto add = [&](LaneNumber lane, Stages stages, double weight_unit) {
    EndpointConfig part = config_of(config_, lanes_[lane], lane, stages);
    part.weight_unit = weight_unit;
    lanes_[lane].endpoint = std::make_unique<Endpoint>(std::move(part), pool_);
  };
  add(kScatter, Stages::First, 1);
  add(kAcross, Stages::Both, row_size_);  // a row's piece is divided by its ranks already
  add(kGather, Stages::Second, 1);
}

/// Made when it is needed first: of a large group it is most of the memory.
Endpoint& Grid::flat() {
  Lane& lane = lanes_[kFlat];
  if (!lane.endpoint) {
    EndpointConfig config = config_of(config_, lane, kFlat, Stages::Both);
    config.bound.min_ranks = config_.bound.min_ranks;
    lane.endpoint = std::make_unique<Endpoint>(std::move(config), pool_);
  }
  lane.stirred = true;
  return *lane.endpoint;
}

// ---- Operations

std::uint64_t Grid::start(Time now, const Descriptor& descriptor, std::byte* data,
                          const StartOptions& options) {
  if (descriptor.op == ReduceOp::Gather) return start_flat(now, descriptor, data, options);
  if (options.weight > kMostWeight / row_size_) {
    throw std::invalid_argument("weight " + std::to_string(options.weight) + " is more than " +
                                std::to_string(kMostWeight / row_size_) + ", the most that rows of " +
                                std::to_string(row_size_) + " ranks can add up");
  }
  // Its stages read the data itself: a lane reduces only a small part of what the caller has.
  if (const Wide wide(options.wide, descriptor.dtype); wide) wide.narrow(whole(descriptor), data);
  const std::uint64_t sequence = entered_[kScatter];
  const Schedule schedule(descriptor, sequence, row_size_, config_.payload_bytes,
                          config_.bound.shuffle && descriptor.bounded ? config_.seal.shared_number() : 0);
  const Rank piece = schedule.shard_of(index_);
  UnderWay& operation = operations_[sequence];
  operation = {next_number_++, descriptor, data, options, now,   now,         schedule.shard(piece),
               piece,          kScatter,   {},   {},      false, std::nullopt};
  operation.report.operation = operation.number;
  operation.report.bytes = schedule.bytes();
  operation.report.bounded = true;  // unless a stage is not
  const std::uint64_t number = operation.number;
  if (too_few(operation)) {
    ++entered_[kScatter];
    lanes_[kScatter].endpoint->pass_over(now, std::nullopt);
    fail(now, sequence, operation);
  } else {
    enter(now, kScatter, operation);
  }
  advance(now);
  return number;
}

std::uint64_t Grid::start_flat(Time now, const Descriptor& descriptor, std::byte* data,
                               const StartOptions& options) {
  const std::uint64_t number = next_number_++;
  flat_numbers_[flat().start(now, descriptor, data, options)] = number;
  advance(now);
  return number;
}

bool Grid::advance(Time now) {
  bool moved = false;
  for (bool more = true; more;) {
    more = take_completions(now);
    more = enter_next(now, kAcross) || more;
    more = enter_next(now, kGather) || more;
    moved = moved || more;
  }
  take_events();
  return moved;
}

bool Grid::take_completions(Time now) {
  bool any = false;
  for (const LaneNumber lane : {kScatter, kAcross, kGather}) {
    while (const auto report = lanes_[lane].endpoint->poll_completion()) {
      leave(now, lane, *report);
      any = true;
    }
  }
  while (lanes_[kFlat].endpoint) {
    auto report = lanes_[kFlat].endpoint->poll_completion();
    if (!report) break;
    auto number = flat_numbers_.extract(report->operation);
    report->operation = number.mapped();
    completions_.push_back(std::move(*report));
  }
  return any;
}

/// Lets the next operation into a lane, if it has come that far.
bool Grid::enter_next(Time now, LaneNumber lane) {
  const auto next = operations_.find(entered_[lane]);
  if (next == operations_.end() || next->second.may_enter < lane) return false;
  UnderWay& operation = next->second;
  if (!operation.failed) {
    enter(now, lane, operation);
    return true;
  }
  ++entered_[lane];
  lanes_[lane].endpoint->pass_over(now, operation.rejection);
  lanes_[lane].stirred = true;
  if (lane == kGather) operations_.erase(next);
  return true;
}

void Grid::enter(Time now, LaneNumber lane, UnderWay& operation) {
  ++entered_[lane];
  Descriptor descriptor = operation.descriptor;
  std::byte* data = operation.data;
  StartOptions options = operation.options;
  options.timeout = time_left(now, lane, operation);
  options.wide = {};
  // Its turn may come later than its data: that belongs to how long it may take.
  operation.report.policy.bound = operation.report.policy.bound + (now - operation.left_lane);
  if (lane == kAcross) {
    descriptor.elements = operation.piece.bytes / static_cast<std::uint32_t>(size_of(descriptor.dtype));
    data += operation.piece.begin;
    const std::uint64_t weight = operation.report.weight;
    options.weight = static_cast<std::uint16_t>(descriptor.op == ReduceOp::Mean ? weight : weight != 0);
    options.patience_bytes /= row_size_;
    // Pieces move from rank to rank: what comes late waits until this one is back.
    if (options.stream != 0) options.stream = options.stream * row_size_ + operation.piece_index;
  } else if (lane == kGather) {
    options.weight = 1;
    options.lacking = std::move(operation.lacking);
  }
  lanes_[lane].stirred = true;
  lanes_[lane].endpoint->start(now, descriptor, data, options);
}

/// The ranks of a row know better than those that wait for them in a column whom to blame, so that they speak
/// first.
Duration Grid::time_left(Time now, LaneNumber lane, const UnderWay& operation) const {
  const Duration used = now - operation.started;
  return std::max(Duration{0}, operation.options.timeout - used) + config_.repair_max * (2 * lane);
}

void Grid::leave(Time now, LaneNumber lane, const Report& report) {
  const std::uint64_t sequence = report.operation;
  UnderWay& operation = operations_.at(sequence);
  operation.left_lane = now;
  operation.may_enter = static_cast<std::uint8_t>(lane + 1);
  add_stage(operation.report, report, lane == kAcross ? operation.piece.begin : 0);
  if (report.error != ErrorCode::None) {
    operation.rejection = lanes_[lane].endpoint->rejection(sequence);
    return fail(now, sequence, operation);
  }
  if (lane == kScatter) {
    operation.report.weight = report.weight;
    operation.report.non_finite = report.non_finite;
    operation.report.behind = report.behind;
    operation.lacking = lanes_[kScatter].endpoint->owned(sequence).lost();
  } else if (lane == kAcross) {
    operation.report.contributions_lost_bytes = report.contributions_lost_bytes;
    add_lacking(operation.lacking, operation.piece, report, config_.size);
  } else {
    // Of all pieces; but a piece that is nearly all zeros cannot say what else it lacks.
    std::uint64_t& lost = operation.report.contributions_lost_bytes;
    lost = std::max(lost, report.contributions_lost_bytes);
    widen(operation);
    finish(now, operation);
    lanes_[kScatter].endpoint->release(now, sequence);
    operations_.erase(sequence);
  }
}

void Grid::widen(const UnderWay& operation) {
  const Wide wide(operation.options.wide, operation.descriptor.dtype);
  if (!wide) return;
  wide.widen(whole(operation.descriptor), operation.data);
  finish_streaming();
}

/// Our caller hears of it at once. The lanes that it has not entered follow in their turn.
void Grid::fail(Time now, std::uint64_t sequence, UnderWay& operation) {
  ++own_.failed_operations;
  operation.failed = true;
  const bool through = operation.may_enter == kFlat;
  operation.may_enter = kGather;
  lanes_[kScatter].endpoint->release(now, sequence);
  lanes_[kScatter].stirred = true;
  finish(now, operation);
  if (through) operations_.erase(sequence);
}

void Grid::finish(Time now, UnderWay& operation) {
  Report& report = operation.report;
  report.elapsed = now - operation.started;
  ++own_.operations;
  own_.bucket_bytes += report.bytes;
  own_.lost_bytes += report.contributions_lost_bytes + report.reduced_lost_bytes;
  completions_.push_back(std::move(report));
}

// ---- Who takes part

Rank Grid::known_present() const {
  return static_cast<Rank>(std::count(absent_in_.begin(), absent_in_.end(), std::uint8_t{0}));
}

Rank Grid::least_ranks() const {
  return config_.bound.min_ranks != 0 ? config_.bound.min_ranks : static_cast<Rank>(config_.size / 2 + 1);
}

bool Grid::has_quorum() const {
  return !lanes_[kScatter].endpoint->warmed_up() || known_present() >= least_ranks();
}

bool Grid::too_few(UnderWay& operation) const {
  if (!operation.descriptor.bounded || has_quorum()) return false;
  Report& report = operation.report;
  report.error = ErrorCode::TooFewRanks;
  report.message = "all-reduce " + std::to_string(operation.number) + " of " +
                   describe(operation.descriptor) + ": only " + std::to_string(known_present()) + " of " +
                   std::to_string(config_.size) + " ranks take part, min_ranks is " +
                   std::to_string(least_ranks());
  for (Rank rank = 0; rank < config_.size; ++rank) {
    if (absent(rank)) report.ranks.push_back(rank);
  }
  return true;
}

/// A rank is absent as long as any lane does without it.
void Grid::take_events() {
  for (std::uint8_t lane = 0; lane < kLanes; ++lane) {
    while (lanes_[lane].endpoint) {
      const auto event = lanes_[lane].endpoint->poll_event();
      if (!event) break;
      std::uint8_t& lanes = absent_in_[event->rank];
      const auto bit = static_cast<std::uint8_t>(1u << lane);
      const bool before = lanes != 0;
      const bool goes = event->kind == MembershipEvent::Kind::Absent;
      lanes = static_cast<std::uint8_t>(goes ? lanes | bit : lanes & ~bit);
      if (before == (lanes != 0)) continue;
      if (goes) ++own_.absences;
      events_.push_back({event->kind, event->rank, next_number_});
    }
  }
}

}  // namespace optireduce
