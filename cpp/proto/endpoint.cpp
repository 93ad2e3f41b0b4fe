#include "proto/endpoint.h"

#include <cmath>

namespace optireduce {
namespace {

/// Nobody answers a goodbye, so it is said more than once: a peer that misses it waits out its linger time.
constexpr int kGoodbyes = 3;

}  // namespace

Endpoint::Endpoint(EndpointConfig config, BufferPool& pool)
    : config_(std::move(config)),
      pool_(pool),
      peers_(config_.size),
      archive_(config_.archive_bytes),
      early_(config_.early_bytes, config_.size),
      late_(config_.correction_bytes),
      multicast_(config_.multicast),
      health_(config_.size),
      timeouts_(config_.bound, config_.rank, config_.size),
      incast_(config_.size) {
  for (Rank rank = 0; rank < config_.size; ++rank) {
    const std::size_t grant = rank < config_.grants.size() ? config_.grants[rank] : config_.window_bytes;
    const WindowBounds bounds = WindowBounds::of(config_, config_.size - 1u, grant);
    peers_[rank].window = SendWindow(bounds, config_.payload_bytes, chunk_packets_for(config_.payload_bytes));
    peers_[rank].rtt = RttEstimator(config_);
  }
}

std::uint64_t Endpoint::start(Time now, const Descriptor& descriptor, std::byte* data,
                              const StartOptions& options) {
  const std::uint64_t number = next_operation_++;
  std::size_t bytes_ahead = 0;
  for (const auto& [_, older] : operations_) bytes_ahead += older->handed_over ? 0 : older->bytes();
  auto& slot = operations_[number];
  slot = std::make_unique<Operation>(number, descriptor, data, config_, now, options);
  Operation& operation = *slot;
  operation.bytes_ahead = bytes_ahead;
  schedule(operation.deadline());
  schedule(now + config_.repair_min);

  if (const auto known = rejected_.find(number); known != rejected_.end()) {
    fail_rejected(now, operation, known->second);
    return number;
  }
  const bool has_deadline = descriptor.bounded && std::isfinite(options.slack);
  if (has_deadline && timeouts_.warmed_up()) set_bound(operation);
  if (!admit_participants(now, operation)) return number;
  const bool too_few = lacks_ranks(operation);
  if (!too_few) finish_if_complete(now, operation);  // a group of one, or nothing to reduce
  for (const Run& run : early_.take(number)) {
    if (find(number) != nullptr) handle_run(now, run);  // the first mismatch ends it
  }
  // The others may have done it without us, and left: a latecomer takes their result.
  if (too_few && find(number) != nullptr) fail_too_few(now, operation);
  ping_absent_peers(now);
  return number;
}

void Endpoint::ping_silent_peers() {
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer != config_.rank && !peers_[peer].heard)
      controls_.push_back({PacketType::Ping, peer, 0, {}, {}, 0});
  }
}

void Endpoint::ping_unfinished_peers() {
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer != config_.rank && peers_[peer].present() && peers_[peer].completed < completed_) {
      controls_.push_back({PacketType::Ping, peer, 0, {}, {}, 0});
    }
  }
}

void Endpoint::say_goodbye(Time now) {
  const std::uint64_t completed = completed_;
  while (!operations_.empty()) {
    Operation& operation = *operations_.begin()->second;
    if (operation.handed_over) {
      remove(now, operation);
    } else {
      fail(now, operation, ErrorCode::Closed, "the group was closed before the operation was complete", {});
    }
  }
  completed_ = completed;  // peers must not take what failed here for complete
  controls_.clear();
  reduced_repairs_.clear();
  contribution_repairs_.clear();
  late_repairs_.clear();
  for (int copy = 0; copy < kGoodbyes; ++copy) {
    for (Rank peer = 0; peer < config_.size; ++peer) {
      if (peer != config_.rank && !peers_[peer].left)
        controls_.push_back({PacketType::Goodbye, peer, 0, {}, {}, 0});
    }
  }
}

bool Endpoint::everyone_caught_up() const {
  for (Rank peer = 0; peer < config_.size; ++peer) {
    const bool behind = peers_[peer].present() && peers_[peer].completed < completed_;
    if (peer != config_.rank && behind) return false;
  }
  return true;
}

Operation* Endpoint::find(std::uint64_t operation) {
  const auto found = operations_.find(operation);
  return found == operations_.end() ? nullptr : found->second.get();
}

std::uint64_t Endpoint::completed_everywhere() const {
  std::uint64_t everywhere = next_operation_;
  for (Rank rank = 0; rank < config_.size; ++rank) {
    if (rank != config_.rank && !peers_[rank].left) everywhere = std::min(everywhere, peers_[rank].completed);
  }
  return everywhere;
}

void Endpoint::finish_if_complete(Time now, Operation& operation) {
  if (operation.complete() && !operation.handed_over) conclude(now, operation);
}

void Endpoint::conclude(Time now, Operation& operation) {
  if (config_.stages == Stages::First) return hand_over(now, operation);
  if (completed_everywhere() <= operation.number() || anybody_wants())
    archive_.keep(operation, next_timestamp(now));
  Report report = report_of(now, operation);
  if (operation.descriptor().bounded) {
    const bool mends = config_.bound.repair && config_.bound.late_repair && !operation.is_gather();
    if (mends) late_.want(operation);
    operation.settle_losses(report);
    if (mends) late_.lend(operation);
    learn(now, operation, report);
    report.corrected_bytes =
        late_.correct(operation);  // ours alone: what others get has left, or is archived
    stats_.corrected_bytes += report.corrected_bytes;
    schedule(now);
  }
  finish(now, operation, std::move(report));
}

void Endpoint::fail(Time now, Operation& operation, ErrorCode code, std::string message,
                    std::vector<Rank> ranks) {
  Report report = report_of(now, operation);
  report.error = code;
  report.message = "all-reduce " + std::to_string(operation.number()) + " of " +
                   describe(operation.descriptor()) + ": " + message;
  report.ranks = std::move(ranks);
  ++stats_.failed_operations;
  finish(now, operation, std::move(report));
}

void Endpoint::hand_over(Time now, Operation& operation) {
  Report report = report_of(now, operation);
  if (operation.descriptor().bounded) {
    operation.settle_losses(report);
    learn(now, operation, report);
  }
  operation.owned().level();
  report.weight = operation.owned().contributed_weight();
  operation.handed_over = true;
  complete(std::move(report));
}

void Endpoint::release(Time now, std::uint64_t operation) {
  if (Operation* handed_over = find(operation)) remove(now, *handed_over);
}

void Endpoint::pass_over(Time now, const std::optional<RejectBody>& why) {
  const std::uint64_t number = next_operation_++;
  static_cast<void>(early_.take(number));
  if (why && !rejected_.contains(number)) {
    remember_rejection(number, *why);
    tell_rejection(number, *why);
  }
  note_removed(now);
}

std::optional<RejectBody> Endpoint::rejection(std::uint64_t operation) const {
  const auto found = rejected_.find(operation);
  return found == rejected_.end() ? std::nullopt : std::optional(found->second);
}

void Endpoint::finish(Time now, Operation& operation, Report report) {
  complete(std::move(report));
  remove(now, operation);
}

/// From here on ranks have the group's names.
void Endpoint::complete(Report report) {
  ++stats_.operations;
  stats_.bucket_bytes += report.bytes;
  stats_.lost_bytes += report.contributions_lost_bytes + report.reduced_lost_bytes;
  for (Hole& hole : report.holes) hole.peer = config_.name_of(hole.peer);
  for (PeerLoss& loss : report.lost_by_peer) loss.peer = config_.name_of(loss.peer);
  for (Rank& rank : report.absent) rank = config_.name_of(rank);
  for (Rank& rank : report.non_finite) rank = config_.name_of(rank);
  completions_.push_back(std::move(report));
}

void Endpoint::remove(Time now, Operation& operation) {
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer == config_.rank) continue;
    if (const auto last = operation.foreign(peer).last_sent_at()) peers_[peer].window.on_go_on(*last);
  }
  operations_.erase(operation.number());
  check_group();
  note_removed(now);
}

void Endpoint::note_removed(Time now) {
  completed_ = operations_.empty() ? next_operation_ : operations_.begin()->first;
  status_due_ = now + config_.ack_delay;
  schedule(status_due_);
}

void Endpoint::check_group() {
  for (Rank rank = 0; rank < config_.size; ++rank) {
    if (!peers_[rank].present()) health_.on_overrun(rank, next_operation_);
  }
  const std::optional<Rank> unreached = health_.end_operation();
  if (!unreached || !multicast_) return;
  multicast_ = false;
  ++stats_.multicast_fallbacks;
  events_.push_back({MembershipEvent::Kind::Unreached, *unreached, next_operation_});
}

Report Endpoint::report_of(Time now, const Operation& operation) const {
  Report report;
  report.operation = operation.number();
  report.bytes = operation.bytes();
  report.elapsed = now - operation.started();
  report.repaired_bytes = operation.repaired_bytes;
  report.bounded = operation.bound().has_value();
  report.closed_by = operation.closed_by();
  report.behind = operation.behind();
  report.non_finite = operation.owned().non_finite();
  report.policy = policy(operation.bytes());
  report.policy.bound = operation.bound() ? operation.bound()->hard : Duration{};
  report.absent = operation.excluded();
  return report;
}

PolicySnapshot Endpoint::policy(std::size_t bytes) const {
  PolicySnapshot snapshot;
  snapshot.bound = timeouts_.bound(bytes);
  snapshot.early = timeouts_.early(bytes);
  snapshot.early_fraction = timeouts_.early_fraction();
  snapshot.incast = incast_.value();
  snapshot.window_bytes = config_.window_bytes;
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer == config_.rank || !peers_[peer].present()) continue;
    const SendWindow& window = peers_[peer].window;
    snapshot.window_bytes = std::min<std::uint64_t>(snapshot.window_bytes, window.limit());
    snapshot.rtt = std::max(snapshot.rtt, window.round_trip());
    const double seconds = window.round_trip().seconds();
    if (seconds > 0) snapshot.bytes_per_second += static_cast<double>(window.limit()) / seconds;
  }
  return snapshot;
}

std::optional<Report> Endpoint::poll_completion() {
  if (completions_.empty()) return std::nullopt;
  Report report = std::move(completions_.front());
  completions_.pop_front();
  return report;
}

std::optional<MembershipEvent> Endpoint::poll_event() {
  if (events_.empty()) return std::nullopt;
  const MembershipEvent event = events_.front();
  events_.pop_front();
  return event;
}

}  // namespace optireduce
