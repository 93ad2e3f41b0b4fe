#include "proto/endpoint.h"

namespace optireduce {
namespace {

/// Nobody answers a goodbye, so it is said more than once: a peer that misses it waits out its linger time.
constexpr int kGoodbyes = 3;
/// Failed operations that latecomers are told about.
constexpr std::size_t kMaxRejected = 256;

std::string list(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

}  // namespace

Endpoint::Endpoint(EndpointConfig config, BufferPool& pool)
    : config_(std::move(config)), pool_(pool), peers_(config_.size), early_(config_.early_bytes) {
  for (Rank rank = 0; rank < config_.size; ++rank) {
    const std::size_t grant = rank < config_.grants.size() ? config_.grants[rank] : config_.window_bytes;
    const WindowBounds bounds = WindowBounds::of(config_, config_.size - 1u, grant);
    peers_[rank].window = SendWindow(bounds, config_.payload_bytes, chunk_packets_for(config_.payload_bytes));
    peers_[rank].rtt = RttEstimator(config_);
  }
}

std::uint64_t Endpoint::start(Time now, const Descriptor& descriptor, std::byte* data, Duration timeout) {
  const std::uint64_t number = next_operation_++;
  auto& slot = operations_[number];
  slot = std::make_unique<Operation>(number, descriptor, data, config_, now, timeout);
  Operation& operation = *slot;
  schedule(operation.deadline());
  schedule(now + config_.repair_min);

  if (const auto known = rejected_.find(number); known != rejected_.end()) {
    fail_rejected(now, operation, known->second);
    return number;
  }
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peers_[peer].left) {
      fail_deserted(now, operation, peer);
      return number;
    }
  }
  finish_if_complete(now, operation);  // a group of one, or nothing to reduce
  for (const Run& run : early_.take(number)) {
    if (find(number) != nullptr) handle_data(now, run);  // the first mismatch ends it
  }
  return number;
}

void Endpoint::ping_silent_peers() {
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer != config_.rank && !peers_[peer].heard) controls_.push_back({PacketType::Ping, peer, 0, {}, {}});
  }
}

void Endpoint::ping_unfinished_peers() {
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer != config_.rank && !peers_[peer].left && peers_[peer].completed < completed_) {
      controls_.push_back({PacketType::Ping, peer, 0, {}, {}});
    }
  }
}

void Endpoint::say_goodbye(Time now) {
  const std::uint64_t completed = completed_;
  while (!operations_.empty()) {
    finish(now, *operations_.begin()->second, ErrorCode::Closed,
           "the group was closed before the operation was complete", {});
  }
  completed_ = completed;  // peers must not take what failed here for complete
  controls_.clear();
  repairs_.clear();
  for (int copy = 0; copy < kGoodbyes; ++copy) {
    for (Rank peer = 0; peer < config_.size; ++peer) {
      if (peer != config_.rank && !peers_[peer].left)
        controls_.push_back({PacketType::Goodbye, peer, 0, {}, {}});
    }
  }
}

bool Endpoint::everyone_caught_up() const {
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer != config_.rank && !peers_[peer].left && peers_[peer].completed < completed_) return false;
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
  if (!operation.complete()) return;
  if (completed_everywhere() <= operation.number()) archive_.keep(operation);
  finish(now, operation, ErrorCode::None, "", {});
}

void Endpoint::finish(Time now, Operation& operation, ErrorCode code, std::string message,
                      std::vector<Rank> ranks) {
  if (!message.empty()) {
    message = "all-reduce " + std::to_string(operation.number()) + " of " + describe(operation.descriptor()) +
              ": " + message;
  }
  completions_.push_back({operation.number(), operation.bytes(), now - operation.started(),
                          operation.repaired_bytes, 0, code, std::move(message), std::move(ranks)});
  ++stats_.operations;
  stats_.bucket_bytes += operation.bytes();
  if (code != ErrorCode::None) ++stats_.failed_operations;
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer != config_.rank) peers_[peer].window.on_credit(operation.foreign(peer).outstanding_bytes());
  }
  operations_.erase(operation.number());
  completed_ = operations_.empty() ? next_operation_ : operations_.begin()->first;
  status_due_ = now + config_.ack_delay;
  schedule(status_due_);
}

void Endpoint::fail_rejected(Time now, Operation& operation, const RejectBody& body) {
  remember_rejection(operation.number(), body);
  const std::string reporter = "rank " + std::to_string(body.reporter);
  const std::string culprit = "rank " + std::to_string(body.culprit);
  if (body.reason == RejectReason::Left) {
    finish(now, operation, ErrorCode::Closed, culprit + " left the group before it was complete",
           {body.culprit});
  } else if (body.reason == RejectReason::Mismatch) {
    finish(now, operation, ErrorCode::Mismatch,
           reporter + " reduces " + describe(body.expected) + " but " + culprit + " reduces " +
               describe(body.found) +
               "; all ranks must call the same operations with the same size, type and reduction in the same "
               "order",
           {body.reporter, body.culprit});
  } else {
    finish(now, operation, ErrorCode::Timeout, reporter + " gave up waiting for " + culprit, {body.culprit});
  }
}

/// Others may not need the rank that left, but wait for us.
void Endpoint::fail_deserted(Time now, Operation& operation, Rank peer) {
  const RejectBody body{RejectReason::Left, peer, config_.rank, operation.descriptor(),
                        operation.descriptor()};
  tell_rejection(operation.number(), body);
  fail_rejected(now, operation, body);
}

void Endpoint::fail_late(Time now, Operation& operation) {
  const std::vector<Rank> late = operation.waiting_for();
  std::vector<std::string> parts;
  for (Rank peer : late) {
    const Peer& state = peers_[peer];
    const std::string seen =
        state.heard ? "last packet from it " + std::to_string((now - state.last_heard).seconds()) + " s ago"
                    : "never heard";
    parts.push_back(operation.describe_wait(peer) + ", " + seen);
  }
  if (!late.empty()) {
    const RejectBody body{RejectReason::Timeout, late.front(), config_.rank, operation.descriptor(),
                          operation.descriptor()};
    tell_rejection(operation.number(), body);
    remember_rejection(operation.number(), body);
  }
  const double waited = (now - operation.started()).seconds();
  finish(now, operation, ErrorCode::Timeout,
         "not complete after " + std::to_string(waited) + " s, waiting for " + list(parts), late);
}

void Endpoint::remember_rejection(std::uint64_t operation, const RejectBody& body) {
  rejected_.emplace(operation, body);
  while (rejected_.size() > kMaxRejected) rejected_.erase(rejected_.begin());
}

void Endpoint::tell_rejection(std::uint64_t operation, const RejectBody& body) {
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer != config_.rank) controls_.push_back({PacketType::Reject, peer, operation, {}, body});
  }
}

void Endpoint::answer_rejected(std::uint64_t operation, Rank peer) {
  controls_.push_back({PacketType::Reject, peer, operation, {}, rejected_.at(operation)});
}

std::optional<Report> Endpoint::poll_completion() {
  if (completions_.empty()) return std::nullopt;
  Report report = std::move(completions_.front());
  completions_.pop_front();
  return report;
}

void Endpoint::handle_timeout(Time now) {
  if (now < next_timeout_) return;
  next_timeout_ = Time::never();
  std::vector<Operation*> late;
  for (const auto& [number, operation] : operations_) {
    const Time gives_up_at = give_up_time(*operation);
    if (gives_up_at <= now) {
      late.push_back(operation.get());
    } else {
      schedule(gives_up_at);
      request_missing(now, *operation);
    }
  }
  for (Operation* operation : late) fail_late(now, *operation);
  send_status_if_due(now);
}

/// Who waits for reduced shards only cannot know whose contribution their owners lack: it hears the owners'
/// verdict before its own.
Time Endpoint::give_up_time(const Operation& operation) const {
  return operation.waits_for_contributions() ? operation.deadline()
                                             : operation.deadline() + config_.repair_max;
}

void Endpoint::request_missing(Time now, Operation& operation) {
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer == config_.rank) continue;
    request_flow(now, operation, peer, PacketType::Contribution);
    request_flow(now, operation, peer, PacketType::Reduced);
  }
}

void Endpoint::request_flow(Time now, Operation& operation, Rank peer, PacketType wanted) {
  const InboundFlow& flow =
      wanted == PacketType::Contribution ? operation.owned().flow(peer) : operation.foreign(peer).flow();
  const Time due = flow.request_due(peers_[peer].rtt.repair_timeout(), config_.reorder_delay);
  if (due <= now) {
    controls_.push_back({PacketType::Request, peer, operation.number(), wanted, {}});
    schedule(now + peers_[peer].rtt.repair_timeout());
  } else {
    schedule(due);
  }
}

void Endpoint::send_status_if_due(Time now) {
  if (now < status_due_) return schedule(status_due_);
  status_due_ = Time::never();
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer != config_.rank && !peers_[peer].left && peers_[peer].told < completed_) {
      controls_.push_back({PacketType::Status, peer, 0, {}, {}});
    }
  }
}

}  // namespace optireduce
