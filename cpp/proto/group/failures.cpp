// The part of Calls that fails operations, says why, and tells the others.
#include <algorithm>

#include "group/calls.h"
#include "operation/ledger.h"

namespace optireduce {
namespace {

std::string name_of(Rank rank) {
  return "rank " + std::to_string(rank);
}

}  // namespace

/// Operations end in order: those before it that are complete have ended already.
void Calls::fail(Time now, std::uint64_t number, ErrorCode code, std::string message,
                 std::vector<Rank> ranks) {
  if (core_.progress.has_failed(number)) return;  // ahead of its turn, and told already
  Report report;
  report.operation = number;
  Descriptor descriptor;
  const auto call = std::ranges::find(core_.waiting, number, &LocalCall::number);
  if (call != core_.waiting.end()) {
    descriptor = call->descriptor;
    report.elapsed = now - call->called_at;
    report.bytes = std::size_t{descriptor.elements} * size_of(descriptor.dtype);
    const bool carries = descriptor.bounded && core_.config.delivery == Delivery::Carry;
    report.own.dropped = carries && call->adds() ? report.bytes : 0;
    core_.waiting.erase(call);
  }
  Operation* const operation = core_.operations.find_open(number);
  if (operation != nullptr && operation->begun()) {
    operation->give_back(core_.residuals);
    descriptor = operation->descriptor();
    report = report_of(now, *operation);
    if (operation->setup().carries() && operation->call().adds())
      report.own.dropped = report.bytes - std::min<std::uint64_t>(report.bytes, report.own.residual);
  }
  core_.operations.erase(number);
  report.error = code;
  report.message =
      "all-reduce " + std::to_string(number) + " of " + describe(descriptor) + ": " + std::move(message);
  report.ranks = std::move(ranks);
  ++core_.stats.failed_operations;
  core_.progress.fail(number);
  note_completed(now, std::move(report));
  complete_ready(now);
}

void Calls::fail(Time now, std::uint64_t number, const RejectBody& body) {
  core_.outcomes.remember_rejection(number, body);
  const std::string culprit = name_of(body.culprit), reporter = name_of(body.reporter);
  switch (body.reason) {
    case RejectReason::Left:
      return fail(now, number, ErrorCode::Closed, culprit + " left the group before it was complete",
                  {body.culprit});
    case RejectReason::Silent:
      return fail(now, number, ErrorCode::RankLost,
                  culprit + " was silent for too long. The group cannot go on without it: restart",
                  {body.culprit});
    case RejectReason::Timeout:
      return fail(now, number, ErrorCode::Timeout, reporter + " gave up waiting for " + culprit,
                  {body.culprit});
    case RejectReason::Mismatch:
      return fail(now, number, ErrorCode::Mismatch,
                  reporter + " reduces " + describe(body.expected) + " but " + culprit + " reduces " +
                      describe(body.found) +
                      "; all ranks must call the same operations with the same size, type and reduction in "
                      "the same order",
                  {body.reporter, body.culprit});
  }
}

void Calls::announce(std::uint64_t number, const RejectBody& body) {
  core_.outcomes.remember_rejection(number, body);
  for (const Peer& peer : core_.peers) {
    if (peer.linked) core_.tell_rejection(number, body, peer.rank);
  }
}

void Calls::announce_lost(Rank rank) {
  announce(core_.progress.next_call(), {RejectReason::Silent, rank, core_.config.rank, {}, {}});
}

void Calls::reject_deserted(Time now, std::uint64_t number, const Descriptor& what, Rank gone) {
  const RejectReason reason = core_.peers[gone].lost ? RejectReason::Silent : RejectReason::Left;
  reject(now, number, {reason, gone, core_.config.rank, what, what});
}

void Calls::fail_lost_exact(Time now, const View& view) {
  for (std::uint64_t number : view.failed) {
    const Descriptor* const called = descriptor_of(number);
    const bool exact = called != nullptr && !called->bounded;
    if (exact && number >= core_.progress.completed() && number < core_.progress.next_call())
      fail_rank_lost(now, number, view);
  }
}

void Calls::fail_rank_lost(Time now, std::uint64_t number, const View& view) {
  std::vector<Rank> removed;
  std::string names;
  for_each_rank(view.removed, [&](Rank rank) {
    names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
    removed.push_back(rank);
  });
  fail(now, number, ErrorCode::RankLost,
       names +
           " is no member of the group any more. The buffer has no result: repeat the operation on "
           "every remaining rank, or restart",
       std::move(removed));
}

/// A rank that waits for decisions only cannot know whose contribution their owners lack: it hears the
/// owners' verdict before its own.
void Calls::check_timeout(Time now, std::uint64_t number) {
  if (number < core_.progress.completed()) return;
  const Operation* const operation = core_.operations.find_open(number);
  if (operation != nullptr && operation->begun() && operation->scatter().undecided_packets() == 0) {
    const Time fails_at = operation->call().fails_at() + core_.config.path.repair_max;
    if (now < fails_at) return core_.timers.set({TimerKind::Fail, number}, fails_at);
  }
  fail_late(now, number);
}

void Calls::fail_late(Time now, std::uint64_t number) {
  std::vector<Rank> late;
  std::string text;
  Descriptor descriptor;
  Duration waited;
  const auto note_late = [&](Rank rank, const std::string& what) {
    const Peer& peer = core_.peers[rank];
    text += (late.empty() ? "" : ", ") + what + ", ";
    text += peer.heard ? "last packet from it " + std::to_string((now - peer.newest_at).seconds()) + " s ago"
                       : "never heard";
    late.push_back(rank);
  };
  const Operation* const operation = core_.operations.find(number);
  if (operation != nullptr && operation->begun()) {
    descriptor = operation->descriptor();
    waited = now - operation->call().called_at;
    for (Rank rank : waiting_for(*operation)) note_late(rank, describe_wait(*operation, rank));
  }
  for (const LocalCall& call : core_.waiting) {
    if (call.number != number) continue;
    descriptor = call.descriptor;
    waited = now - call.called_at;
    const std::uint64_t least = members_.least_completed();
    for (const Peer& peer : core_.peers) {
      if (peer.linked && peer.completed <= least)
        note_late(peer.rank, name_of(peer.rank) + " (behind by more than max_lag steps)");
    }
  }
  if (late.empty()) {  // all is here, and may not be handed over
    for_each_rank(members_.unanswered(), [&](Rank rank) {
      note_late(rank, name_of(rank) + " (has not answered since this process stood still)");
    });
  }
  if (!late.empty())
    announce(number, {RejectReason::Timeout, late.front(), core_.config.rank, descriptor, descriptor});
  fail(now, number, ErrorCode::Timeout,
       "not complete after " + std::to_string(waited.seconds()) + " s, waiting for " + text, std::move(late));
}

}  // namespace optireduce
