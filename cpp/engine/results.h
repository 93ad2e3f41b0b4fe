// What the group has handed out and nobody has taken yet: reports of operations and changes of membership.
#pragma once

#include "group/outcomes.h"

namespace optireduce {

class Results {
 public:
  static constexpr std::size_t kMaxReports = 4096;
  static constexpr std::size_t kMaxEvents = 4096;
  /// Several threads may wait for the same operation: its report stays until so many others were taken.
  static constexpr std::size_t kMaxTaken = 64;

  /// An operation begins. `skipped`: what the clock has left out so far.
  void begin(std::uint64_t operation, Duration skipped) { skipped_before_.emplace(operation, skipped); }

  void add(Report&& report, Duration skipped) {
    note_standstill(report, skipped);
    reports_.insert_or_assign(report.operation, std::move(report));
    if (reports_.size() > kMaxReports) reports_.erase(reports_.begin());
  }

  bool has(std::uint64_t operation) const { return reports_.contains(operation); }

  std::optional<Report> take(std::uint64_t operation) {
    const auto found = reports_.find(operation);
    if (found == reports_.end()) return std::nullopt;
    std::optional<Report> report = found->second;
    taken_.push_back(operation);
    if (taken_.size() > kMaxTaken) {
      reports_.erase(taken_.front());
      taken_.pop_front();
    }
    return report;
  }

  /// These numbers are given to other operations from now on.
  void forget_from(std::uint64_t operation) {
    reports_.erase(reports_.lower_bound(operation), reports_.end());
    skipped_before_.erase(skipped_before_.lower_bound(operation), skipped_before_.end());
    std::erase_if(taken_, [operation](std::uint64_t taken) { return taken >= operation; });
  }

  void add(const MembershipEvent& event) {
    events_.push_back(event);
    if (events_.size() > kMaxEvents) events_.pop_front();
  }

  std::vector<MembershipEvent> take_events() {
    std::vector<MembershipEvent> events(events_.begin(), events_.end());
    events_.clear();
    return events;
  }

 private:
  /// The user's time goes on while this process stands still.
  void note_standstill(Report& report, Duration skipped) {
    const auto before = skipped_before_.find(report.operation);
    if (before == skipped_before_.end()) return;
    report.stood_still = skipped - before->second;
    report.elapsed = report.elapsed + report.stood_still;
    skipped_before_.erase(before);
  }

  std::map<std::uint64_t, Report> reports_;           // the last, without those taken long ago
  std::deque<std::uint64_t> taken_;                   // operations whose reports were taken, the last few
  std::map<std::uint64_t, Duration> skipped_before_;  // by operation under way
  std::deque<MembershipEvent> events_;                // the last
};

}  // namespace optireduce
