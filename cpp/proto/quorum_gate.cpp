#include "proto/quorum_gate.h"

#include <cmath>
#include <string>

namespace optireduce {

std::uint64_t QuorumGate::start(Time now, const Descriptor& descriptor, std::byte* data,
                                const StartOptions& options) {
  const std::uint64_t number = next_number_++;
  if (held_.empty() && !must_wait(descriptor, options)) {
    inner_->start(now, descriptor, data, options);
    return number;
  }
  held_.push_back({descriptor, data, options, now});
  look(now);
  return number;
}

bool QuorumGate::must_wait(const Descriptor& descriptor, const StartOptions& options) const {
  const bool has_deadline = descriptor.bounded && std::isfinite(options.slack);
  return has_deadline && !inner_->has_quorum() && inner_->may_have_quorum();
}

/// Half of an operation's own time is left for the operation itself.
Time QuorumGate::waits_until(const Held& held) const {
  return held.since + std::min(patience_, held.options.timeout / 2);
}

void QuorumGate::let_go(Time now) {
  while (!held_.empty()) {
    const Held& first = held_.front();
    if (must_wait(first.descriptor, first.options) && now < waits_until(first)) return;
    start_first(now);
  }
}

void QuorumGate::start_first(Time now) {
  Held first = std::move(held_.front());
  held_.pop_front();
  const Duration waited = now - first.since;
  first.options.timeout = first.options.timeout - waited;
  waited_[next_number_ - held_.size() - 1] = waited;
  inner_->start(now, first.descriptor, first.data, first.options);
}

void QuorumGate::look(Time now) {
  let_go(now);
  next_look_ = Time::never();
  if (held_.empty()) return;
  inner_->ping_absent_peers(now);
  next_look_ = std::min(now + ping_interval_, waits_until(held_.front()));
}

void QuorumGate::handle_datagram(Time now, Datagram datagram) {
  inner_->handle_datagram(now, std::move(datagram));
  if (!held_.empty()) let_go(now);
}

void QuorumGate::handle_timeout(Time now) {
  if (inner_->poll_timeout() <= now) inner_->handle_timeout(now);
  if (next_look_ <= now) look(now);
}

/// What was kept back has no chance any more: it begins, to fail like everything else.
void QuorumGate::say_goodbye(Time now) {
  while (!held_.empty()) start_first(now);
  inner_->say_goodbye(now);
}

std::optional<Report> QuorumGate::poll_completion() {
  std::optional<Report> report = inner_->poll_completion();
  if (!report || waited_.empty()) return report;
  const auto waited = waited_.extract(report->operation);
  if (waited.empty()) return report;
  report->quorum_wait = waited.mapped();
  report->elapsed = report->elapsed + report->quorum_wait;
  if (report->error == ErrorCode::TooFewRanks) {
    report->message +=
        "; waited " + std::to_string(report->quorum_wait.ns / 1'000'000) + " ms for the others";
  }
  return report;
}

}  // namespace optireduce
