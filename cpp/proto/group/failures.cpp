// The part of Group that fails operations, says why, and tells the others.
#include "group/group.h"

namespace optireduce {
namespace {

/// Failed operations that latecomers are told about.
constexpr std::size_t kMaxRejected = 256;

std::string list(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

std::string name_of(Rank rank) {
  return "rank " + std::to_string(rank);
}

}  // namespace

/// Ends one call with an error. Operations end in order: those before it that are complete have ended
/// already.
void Group::fail(Time now, std::uint64_t number, ErrorCode code, std::string message,
                 std::vector<Rank> ranks) {
  if (outcomes_.failed.contains(number)) return;  // ahead of its turn, and told already
  Report report;
  report.operation = number;
  Descriptor descriptor;
  const auto call = std::find_if(waiting_.begin(), waiting_.end(),
                                 [number](const Waiting& each) { return each.number == number; });
  if (call != waiting_.end()) {
    descriptor = call->call.descriptor;
    report.elapsed = now - call->called_at;
    report.bytes = std::size_t{descriptor.elements} * size_of(descriptor.dtype);
    waiting_.erase(call);
  }
  for (const Scope scope : {Scope::Row, Scope::All}) {
    Operation* const operation = operations_.find_open(number, scope);
    if (operation == nullptr || !operation->begun()) continue;
    descriptor = operation->descriptor();
    report = report_of(now, *operation);
    if (operation->carries()) residuals_.settle(operation->setup().stream);
  }
  operations_.erase_open(number);
  report.error = code;
  report.message =
      "all-reduce " + std::to_string(number) + " of " + describe(descriptor) + ": " + std::move(message);
  report.ranks = std::move(ranks);
  ++stats_.failed_operations;
  outcomes_.failed.insert(number);
  while (outcomes_.failed.contains(progress_.completed())) {
    outcomes_.failed.erase(progress_.completed());
    progress_.complete(~std::uint64_t{0});
  }
  note_completed(now, std::move(report));
  complete_ready(now);
}

void Group::fail_rejected(Time now, std::uint64_t number, const RejectBody& body) {
  remember_rejection(number, body);
  if (body.reason == RejectReason::Left) {
    fail(now, number, ErrorCode::Closed, name_of(body.culprit) + " left the group before it was complete",
         {body.culprit});
  } else if (body.reason == RejectReason::Mismatch) {
    fail(now, number, ErrorCode::Mismatch,
         name_of(body.reporter) + " reduces " + describe(body.expected) + " but " + name_of(body.culprit) +
             " reduces " + describe(body.found) +
             "; all ranks must call the same operations with the same size, type and reduction in the same "
             "order",
         {body.reporter, body.culprit});
  } else {
    fail(now, number, ErrorCode::Timeout,
         name_of(body.reporter) + " gave up waiting for " + name_of(body.culprit), {body.culprit});
  }
}

/// Others may not need the rank that left, but wait for us.
void Group::fail_deserted(Time now, Operation& operation, Rank peer) {
  const RejectBody body{RejectReason::Left, peer, config_.rank, operation.descriptor(),
                        operation.descriptor()};
  const std::uint64_t number = operation.number();
  reject(number, body);
  fail_rejected(now, number, body);
}

void Group::fail_late(Time now, std::uint64_t number) {
  std::vector<Rank> late;
  std::vector<std::string> parts;
  Descriptor descriptor;
  double waited = 0;
  const auto note_late = [&](Rank rank, const std::string& what) {
    late.push_back(rank);
    const Peer& peer = peers_[rank];
    parts.push_back(
        what + ", " +
        (peer.heard ? "last packet from it " + std::to_string((now - peer.last_heard).seconds()) + " s ago"
                    : "never heard"));
  };
  for (const auto& [key, operation] : operations_.open()) {
    if (key.first != number || !operation->begun()) continue;
    descriptor = operation->descriptor();
    waited = (now - operation->call().called_at).seconds();
    for (Rank rank : operation->waiting_for()) note_late(rank, operation->describe_wait(rank));
  }
  for (const Waiting& waiting : waiting_) {
    if (waiting.number != number) continue;
    descriptor = waiting.call.descriptor;
    waited = (now - waiting.called_at).seconds();
    const std::uint64_t least = least_completed();
    for (Rank rank = 0; rank < config_.size; ++rank) {
      if (peers_[rank].linked && peers_[rank].completed <= least)
        note_late(rank, name_of(rank) + " (behind by more than max_lag steps)");
    }
  }
  if (!late.empty()) {
    const RejectBody body{RejectReason::Timeout, late.front(), config_.rank, descriptor, descriptor};
    reject(number, body);
    remember_rejection(number, body);
  }
  fail(now, number, ErrorCode::Timeout,
       "not complete after " + std::to_string(waited) + " s, waiting for " + list(parts), late);
}

void Group::fail_too_few(Time now) {
  std::vector<Rank> missing;
  for (Rank rank = 0; rank < config_.size; ++rank) {
    const bool heard = has(membership_.hears(), rank) && !peers_[rank].left;
    if (rank != config_.rank && !heard) missing.push_back(rank);
  }
  const std::string text = "only " + std::to_string(config_.size - missing.size()) + " of " +
                           std::to_string(config_.size) + " ranks are heard, too few to go on";
  while (progress_.completed() < progress_.next_call()) {
    fail(now, progress_.completed(), ErrorCode::TooFewRanks, text, missing);
  }
}

void Group::reject(std::uint64_t number, const RejectBody& body) {
  remember_rejection(number, body);
  for (Rank peer = 0; peer < config_.size; ++peer) {
    if (peers_[peer].linked) tell_rejection(number, peer);
  }
}

void Group::remember_rejection(std::uint64_t number, const RejectBody& body) {
  outcomes_.rejected.emplace(number, body);
  while (outcomes_.rejected.size() > kMaxRejected) outcomes_.rejected.erase(outcomes_.rejected.begin());
}

void Group::tell_rejection(std::uint64_t number, Rank to) {
  Control control{.type = PacketType::Reject, .to = to, .operation = number};
  control.payload.resize(RejectBody::kBytes);
  encode_reject(outcomes_.rejected.at(number), control.payload.data());
  controls_.push_back(std::move(control));
}

}  // namespace optireduce
