// The part of Endpoint that fails operations, says why, and tells the others.
#include "proto/endpoint.h"

namespace optireduce {
namespace {

/// Failed operations that latecomers are told about.
constexpr std::size_t kMaxRejected = 256;

std::string list(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

}  // namespace

void Endpoint::fail_rejected(Time now, Operation& operation, const RejectBody& body) {
  remember_rejection(operation.number(), body);
  const std::string reporter = "rank " + std::to_string(body.reporter);
  const std::string culprit = "rank " + std::to_string(body.culprit);
  if (body.reason == RejectReason::Left) {
    fail(now, operation, ErrorCode::Closed, culprit + " left the group before it was complete",
         {body.culprit});
  } else if (body.reason == RejectReason::Mismatch) {
    fail(now, operation, ErrorCode::Mismatch,
         reporter + " reduces " + describe(body.expected) + " but " + culprit + " reduces " +
             describe(body.found) +
             "; all ranks must call the same operations with the same size, type and reduction in the same "
             "order",
         {body.reporter, body.culprit});
  } else {
    fail(now, operation, ErrorCode::Timeout, reporter + " gave up waiting for " + culprit, {body.culprit});
  }
}

/// Others may not need the rank that left, but wait for us.
void Endpoint::fail_deserted(Time now, Operation& operation, Rank peer) {
  const RejectBody body{RejectReason::Left, config_.name_of(peer), config_.name_of(config_.rank),
                        operation.descriptor(), operation.descriptor()};
  tell_rejection(operation.number(), body);
  fail_rejected(now, operation, body);
}

void Endpoint::fail_late(Time now, Operation& operation) {
  std::vector<Rank> late;
  std::vector<std::string> parts;
  for (Rank peer : operation.waiting_for()) {
    late.push_back(config_.name_of(peer));
    const Peer& state = peers_[peer];
    const std::string seen =
        state.heard ? "last packet from it " + std::to_string((now - state.last_heard).seconds()) + " s ago"
                    : "never heard";
    parts.push_back(operation.describe_wait(peer, late.back()) + ", " + seen);
  }
  if (!late.empty()) {
    const RejectBody body{RejectReason::Timeout, late.front(), config_.name_of(config_.rank),
                          operation.descriptor(), operation.descriptor()};
    tell_rejection(operation.number(), body);
    remember_rejection(operation.number(), body);
  }
  const double waited = (now - operation.started()).seconds();
  fail(now, operation, ErrorCode::Timeout,
       "not complete after " + std::to_string(waited) + " s, waiting for " + list(parts), late);
}

void Endpoint::remember_rejection(std::uint64_t operation, const RejectBody& body) {
  rejected_.emplace(operation, body);
  while (rejected_.size() > kMaxRejected) rejected_.erase(rejected_.begin());
}

void Endpoint::tell_rejection(std::uint64_t operation, const RejectBody& body) {
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peer != config_.rank) controls_.push_back({PacketType::Reject, peer, operation, {}, body, 0});
  }
}

void Endpoint::answer_rejected(std::uint64_t operation, Rank peer) {
  controls_.push_back({PacketType::Reject, peer, operation, {}, rejected_.at(operation), 0});
}

}  // namespace optireduce
