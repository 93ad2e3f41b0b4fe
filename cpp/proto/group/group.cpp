// The part of Group that takes calls, begins them when they may begin, and ends them in order.
#include "group/group.h"

#include <algorithm>
#include <stdexcept>

namespace optireduce {
namespace {

View first_view(const GroupConfig& config) {
  return View::initial(config.size);
}

MembershipConfig membership_config(const GroupConfig& config) {
  // A busy machine does not run a process for 100 ms at a time: such a rank must not be removed.
  return {.rank = config.rank, .silence = {.least = Duration::millis(200), .exact = config.exact_silence}};
}

/// Where this rank is in the grid: its row and its column, as lists of ranks.
std::vector<Rank> scope_members(const GroupConfig& config, Scope scope) {
  if (scope == Scope::All) {
    std::vector<Rank> all(config.size);
    for (Rank rank = 0; rank < config.size; ++rank) all[rank] = rank;
    return all;
  }
  for (const std::vector<Rank>& row : config.rows) {
    const auto found = std::find(row.begin(), row.end(), config.rank);
    if (found == row.end()) continue;
    if (scope != Scope::Column) return row;
    std::vector<Rank> column;
    for (const auto& each : config.rows)
      column.push_back(each[static_cast<std::size_t>(found - row.begin())]);
    return column;
  }
  throw std::invalid_argument("rank " + std::to_string(config.rank) + " is in no row of the grid");
}

/// Whether we ever exchange anything with that rank. Gathers go to everybody, in a grid too.
bool are_linked(const GroupConfig& config, Rank rank) {
  if (rank == config.rank) return false;
  if (config.rows.empty()) return true;
  const auto row = scope_members(config, Scope::Row), column = scope_members(config, Scope::Column);
  const auto in = [rank](const std::vector<Rank>& ranks) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  return in(row) || in(column);
}

/// Every rank stands in one row, and all rows are equally long: a column has a place in each.
GroupConfig checked(GroupConfig config) {
  if (config.rows.empty()) return config;
  std::vector<bool> seen(config.size, false);
  for (const std::vector<Rank>& row : config.rows) {
    for (const Rank rank : row) {
      if (rank >= config.size || seen[rank])
        throw std::invalid_argument("rank " + std::to_string(rank) + " of the rows is not one of " +
                                    std::to_string(config.size) + " ranks, or stands in two places");
      seen[rank] = true;
    }
  }
  for (Rank rank = 0; rank < config.size; ++rank) {
    if (!seen[rank])
      throw std::invalid_argument("rank " + std::to_string(rank) + " is in no row of the grid");
  }
  for (const std::vector<Rank>& row : config.rows) {
    if (row.size() != config.rows.front().size())
      throw std::invalid_argument("rows have " + std::to_string(config.rows.front().size()) + " and " +
                                  std::to_string(row.size()) + " ranks, must be equally long");
  }
  return config;
}

}  // namespace

Group::Group(GroupConfig config, BufferPool& pool)
    : config_(checked(std::move(config))),
      pool_(pool),
      peers_(config_.size),
      times_(config_.exclude_at_most),
      best_effort_(config_.best_effort),
      incast_(config_.size),
      membership_(membership_config(config_), first_view(config_)),
      changes_({.min_ranks = config_.min_ranks}, membership_, journal()),
      pieces_(config_.size),
      multicast_{config_.multicast, MulticastHealth(config_.size)} {
  std::size_t others = 0;
  for (Rank rank = 0; rank < config_.size; ++rank) {
    peers_[rank].linked = are_linked(config_, rank);
    others += peers_[rank].linked ? 1 : 0;
  }
  for (Rank rank = 0; rank < config_.size; ++rank) {
    const std::size_t grant = rank < config_.grants.size() ? config_.grants[rank] : config_.path.window_bytes;
    const WindowBounds bounds = WindowBounds::of(config_.path, others, grant);
    peers_[rank].window =
        SendWindow(bounds, config_.path.payload_bytes, chunk_packets_for(config_.path.payload_bytes));
    peers_[rank].rtt = RttEstimator(config_.path);
  }
}

// ---- Calls

void Group::check(const Call& call) const {
  const Descriptor& what = call.descriptor;
  const Rank owners = config_.rows.empty() ? config_.size : static_cast<Rank>(config_.rows.front().size());
  const std::size_t most =
      std::min<std::size_t>(0xffff'ffff, Schedule::max_bytes(owners) / size_of(what.dtype));
  if (what.elements > most) {
    throw std::invalid_argument("elements " + std::to_string(what.elements) +
                                " is more than one operation of " + std::to_string(owners) +
                                " owners can hold (" + std::to_string(most) + ")");
  }
  if (what.op == ReduceOp::Gather && what.elements % config_.size != 0) {
    throw std::invalid_argument("elements " + std::to_string(what.elements) +
                                " of a gather is not a multiple of " + std::to_string(config_.size) +
                                " ranks");
  }
  const WideMemory& wide = call.wide;
  if (wide.values != nullptr &&
      (what.op == ReduceOp::Gather || !can_stand_for(what.dtype, what.elements, wide.count))) {
    throw std::invalid_argument(std::to_string(what.elements) + " " + name_of(what.dtype) + " (" +
                                name_of(what.op) + ") cannot stand for " + std::to_string(wide.count) +
                                " float32");
  }
  if (what.bounded && config_.delivery == Delivery::Carry && call.stream == 0)
    throw std::invalid_argument("stream is 0: a bounded call needs one, under which its residuals are kept");
}

std::uint64_t Group::start(Time now, const Call& call) {
  check(call);
  const std::uint64_t number = progress_.take_number(call.step);
  waiting_.push_back({number, call, now});
  // Decisions name at most 64 ranks, and none of a grid's: there operations are exact.
  const bool bounded =
      config_.delivery == Delivery::BestEffort || (config_.rows.empty() && config_.size <= 64);
  waiting_.back().call.descriptor.bounded = call.descriptor.bounded && bounded;
  timers_.set({TimerKind::Fail, number}, now + call.timeout);
  if (const auto known = outcomes_.rejected.find(number); known != outcomes_.rejected.end()) {
    fail_rejected(now, number, known->second);
    return number;
  }
  if (changes_.left_behind()) {
    leave_behind(now);
    return number;
  }
  const bool exact = config_.elastic() && !waiting_.back().call.descriptor.bounded;
  if (const View* view = membership_.history().failed_by(number, exact)) {
    fail_rank_lost(now, number, *view);
    return number;
  }
  begin_waiting(now);
  note_owing(now);
  check_quorum(now);
  return number;
}

void Group::begin_waiting(Time now) {
  while (!waiting_.empty() && may_begin(waiting_.front())) {
    const Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    begin(now, next);
  }
}

bool Group::may_begin(const Waiting& waiting) const {
  const bool views = config_.elastic();
  if (views && (changes_.away() || changes_.is_lost() || waiting.number >= changes_.reach_end()))
    return false;
  const std::uint64_t behind = progress_.step_of(least_completed());
  return least_completed() >= waiting.number || progress_.step_of(waiting.number) <= behind + config_.max_lag;
}

void Group::begin(Time now, const Waiting& waiting) {
  const Call& call = waiting.call;
  const bool grid = !config_.rows.empty() && call.descriptor.op != ReduceOp::Gather;
  const Scope scope = grid ? Scope::Row : Scope::All;
  Operation* operation = operations_.find_open(waiting.number, scope);
  if (operation == nullptr)
    operation = &make_operation(now, waiting.number, scope, call.descriptor, call.stream);
  if (operation->descriptor() != call.descriptor || operation->setup().stream != call.stream) {
    Rank other = config_.rank;  // whose packets came first
    for (Rank place = 0; place < operation->places(); ++place)
      if (operation->begun_at(place) != Time::never()) other = operation->rank_at(place);
    const RejectBody body{RejectReason::Mismatch, other, config_.rank, call.descriptor,
                          operation->descriptor()};
    reject(waiting.number, body);
    return fail_rejected(now, waiting.number, body);
  }
  for (Rank rank = 0; rank < config_.size; ++rank) {
    const bool needed = operation->place_of(rank) != kNoPlace && rank != config_.rank;
    if (needed && peers_[rank].left && !config_.elastic() && !call.descriptor.bounded)
      return fail_deserted(now, *operation, rank);
  }
  progress_.touch(waiting.number);
  LocalCall local{.data = call.data,
                  .wide = call.wide,
                  .weight = call.weight,
                  .step = progress_.step_of(waiting.number),
                  .scale = call.scale,
                  .contributes = membership_.fixed() || membership_.serves(config_.rank, waiting.number),
                  .stays_readable = call.stays_readable,
                  .called_at = waiting.called_at,
                  .fails_at = waiting.called_at + call.timeout};
  if (grid && call.wide.values != nullptr) {
    // The stages of a grid exchange the narrow data itself.
    Bucket whole(call.descriptor.dtype, operation->bytes(), 1);
    whole.begin(call.data, call.wide);
    whole.round({0, operation->bytes()});
    local.wide = {};
    local.grid_wide = call.wide;
  }
  operation->begin(now, local, residuals_);
  if (call.weight == 0 && operation->reduces()) {
    for (Rank place = 0; place < operation->places(); ++place) {
      const Rank to = operation->rank_at(place);
      if (to != config_.rank)
        controls_.push_back(
            {.type = PacketType::Abstain, .to = to, .operation = waiting.number, .scope = scope});
    }
  }
  if (config_.delivery == Delivery::BestEffort) begin_best_effort(now, *operation);
  if (operations_.find_open(waiting.number, scope) != operation) return;  // its time was over at once
  schedule_requests(now, *operation);
  advance(now, *operation);
}

OperationSetup Group::setup_for(std::uint64_t number, Scope scope, const Descriptor& descriptor,
                                std::uint32_t stream) const {
  OperationSetup setup{
      .number = number,
      .scope = scope,
      .descriptor = descriptor,
      .stream = stream,
      .rank = config_.rank,
      .members = {},
      .best_effort = config_.delivery == Delivery::BestEffort,
      .payload_bytes = config_.path.payload_bytes,
      .order_seed = config_.shuffle && descriptor.bounded ? config_.seal.shared_number() : 0};
  const bool views = config_.elastic() && scope == Scope::All;
  setup.members = views ? membership_.owners(number) : scope_members(config_, scope);
  setup.serves = !views || membership_.serves(config_.rank, number);
  setup.reduces = scope != Scope::RowResult;
  setup.gathers = scope != Scope::Row;
  if (scope == Scope::Row) setup.fixed_divisor = static_cast<double>(setup.members.size());
  if (scope == Scope::Column) setup.weight_unit = static_cast<double>(config_.rows.front().size());
  return setup;
}

Operation& Group::make_operation(Time now, std::uint64_t number, Scope scope, const Descriptor& descriptor,
                                 std::uint32_t stream) {
  Operation& operation =
      operations_.add(std::make_unique<Operation>(setup_for(number, scope, descriptor, stream), now));
  if (config_.elastic()) apply_fates(now, operation);
  return operation;
}

// ---- Getters

Report Group::report_of(Time now, const Operation& operation) const {
  Report report;
  operation.fill(now, report);
  if (const Operation* row = const_cast<Operations&>(operations_).find_open(operation.number(), Scope::Row)) {
    report.bytes = row->bytes();
    report.elapsed = now - row->call().called_at;
  }
  report.view = membership_.view().number;
  report.oldest_steps = residuals_.oldest(progress_.step_of(operation.number()));
  report.policy = policy(operation.bytes());
  if (operation.setup().best_effort) {
    report.policy.deadline = operation.limits.hard.value_or(Duration{});
    report.policy.usual = best_effort_.early(operation.bytes());
  } else if (operation.descriptor().bounded) {
    report.policy.deadline = times_.deadline(operation.setup().stream).value_or(Duration{});
    report.policy.usual = times_.usual(operation.setup().stream).value_or(Duration{});
  }
  return report;
}

PolicySnapshot Group::policy(std::size_t bytes) const {
  PolicySnapshot snapshot;
  if (config_.delivery == Delivery::BestEffort) {
    snapshot.deadline = best_effort_.bound(bytes);
    snapshot.early = best_effort_.early(bytes);
    snapshot.early_fraction = best_effort_.early_fraction();
  }
  snapshot.incast = incast_.value();
  snapshot.window_bytes = config_.path.window_bytes;
  for (Rank rank = 0; rank < config_.size; ++rank) {
    if (!peers_[rank].linked || peers_[rank].left) continue;
    const SendWindow& window = peers_[rank].window;
    snapshot.window_bytes = std::min<std::uint64_t>(snapshot.window_bytes, window.limit());
    snapshot.rtt = std::max(snapshot.rtt, window.round_trip());
    const double seconds = window.round_trip().seconds();
    if (seconds > 0) snapshot.bytes_per_second += static_cast<double>(window.limit()) / seconds;
  }
  return snapshot;
}

bool Group::everyone_caught_up() const {
  for (Rank rank = 0; rank < config_.size; ++rank) {
    const bool counts = peers_[rank].linked && !peers_[rank].left &&
                        (!config_.elastic() || has(membership_.view().members, rank));
    if (counts && peers_[rank].completed < progress_.completed()) return false;
  }
  return true;
}

Inspection Group::inspect() const {
  Inspection seen{.view = membership_.view().number,
                  .members = {},
                  .away = changes_.away(),
                  .left_behind = changes_.left_behind(),
                  .completed = progress_.completed(),
                  .residual_bytes = residuals_.bytes(),
                  .engine_bytes = 0,
                  .waiting_repairs = repairs_.decisions.size() + repairs_.contributions.size()};
  for (Rank rank = 0; rank < config_.size; ++rank) {
    if (membership_.view().contains(rank)) seen.members.push_back(rank);
  }
  for (const auto* map : {&operations_.open(), &operations_.log()}) {
    for (const auto& [_, operation] : *map) seen.engine_bytes += operation->engine_bytes();
  }
  return seen;
}

std::optional<Report> Group::poll_completion() {
  if (outcomes_.completions.empty()) return std::nullopt;
  Report report = std::move(outcomes_.completions.front());
  outcomes_.completions.pop_front();
  return report;
}

std::optional<MembershipEvent> Group::poll_event() {
  if (outcomes_.events.empty()) return std::nullopt;
  const MembershipEvent event = outcomes_.events.front();
  outcomes_.events.pop_front();
  return event;
}

}  // namespace optireduce
