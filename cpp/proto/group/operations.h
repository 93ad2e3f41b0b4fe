// The operations of a group: open ones, and the log of finished ones that somebody may still ask for. And how
// far this rank is with them.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "operation/operation.h"

namespace optireduce {

class Operations {
 public:
  using Map = std::map<std::uint64_t, std::unique_ptr<Operation>>;
  /// Oldest first. (Clang 14 cannot compile std::ranges::subrange.)
  struct Range {
    Map::const_iterator first, last;

    Map::const_iterator begin() const { return first; }
    Map::const_iterator end() const { return last; }
    bool empty() const { return first == last; }
    const Map::value_type& front() const { return *first; }
  };

  /// The operation, or null.
  Operation* find(std::uint64_t number) const {
    const auto found = all_.find(number);
    return found == all_.end() ? nullptr : found->second.get();
  }
  Operation* find_open(std::uint64_t number) const { return number < first_open_ ? nullptr : find(number); }
  Operation& add(std::unique_ptr<Operation> operation) {
    const std::uint64_t number = operation->number();
    return *(all_[number] = std::move(operation));
  }
  /// Of all operations before this one.
  std::size_t bytes_before(std::uint64_t number) const {
    std::size_t bytes = 0;
    for (const auto& [each, operation] : open()) bytes += each < number ? operation->bytes() : 0;
    return bytes;
  }
  Range all() const { return {all_.begin(), all_.end()}; }
  Range log() const { return {all_.begin(), first_of(first_open_)}; }
  /// Memory of the log that is the engine's own.
  std::size_t log_bytes() const {
    std::size_t bytes = 0;
    for (const auto& [_, operation] : log()) bytes += operation->exchange().engine_bytes();
    return bytes;
  }
  Range open() const { return {first_of(first_open_), all_.end()}; }

  /// The oldest open one is over. They end in order.
  void move_to_log(std::uint64_t number) { first_open_ = number + 1; }
  void erase(std::uint64_t number) { all_.erase(number); }
  /// Forgets what is logged below.
  void forget_below(std::uint64_t number) {
    all_.erase(all_.begin(), first_of(std::min(number, first_open_)));
    snapshots_.erase(snapshots_.begin(), snapshots_.lower_bound(number));
  }
  /// Forgets all of them. The next one has this number.
  void restart(std::uint64_t number) {
    all_.clear();
    first_open_ = number;
    snapshots_ = {number};
  }

  /// A snapshot was taken of what the operations below amount to: the rank that gets it needs the others.
  void note_snapshot(std::uint64_t number) { snapshots_.insert(number); }
  /// The oldest snapshot of which the log can have everything that follows, given the first operation of the
  /// log. Later than any: there is none.
  std::uint64_t oldest_snapshot(std::uint64_t first) const {
    const auto oldest = snapshots_.lower_bound(first);
    return oldest == snapshots_.end() ? ~std::uint64_t{0} : *oldest;
  }

 private:
  Map::const_iterator first_of(std::uint64_t number) const { return all_.lower_bound(number); }

  Map all_;
  std::uint64_t first_open_ = 0;  // those before are the log
  std::set<std::uint64_t> snapshots_;
};

/// Calls may be made at most this far ahead of the slowest rank; packets beyond are nonsense.
constexpr std::uint64_t kMaxCallsAhead = 4096;

/// Operations in the log: a rank that never says what it has completed must not make memory grow for ever.
constexpr std::uint64_t kMostLogged = 4096;

/// How far a rank is: everything below `completed` is over, and amounts to `digest`.
struct Position {
  std::uint64_t completed = 0;
  std::uint64_t digest = 0;

  bool operator==(const Position&) const = default;
};

/// Which calls this rank has taken, which operations are complete, and what they amount to.
class Progress {
 public:
  std::uint64_t next_call() const { return next_call_; }
  std::uint64_t completed() const { return completed_; }
  std::uint64_t touched_end() const { return touched_end_; }
  std::uint64_t first_known() const { return next_call_ - steps_.size(); }

  std::uint64_t take_number(std::uint64_t step) {
    step_ = step > step_ ? step : step_;
    steps_.push_back(step_);
    return next_call_++;
  }
  /// The step of a call; of one that was not made yet the newest.
  std::uint64_t step_of(std::uint64_t operation) const {
    if (operation >= next_call_ || steps_.empty()) return step_;
    return operation < first_known() ? steps_.front() : steps_[operation - first_known()];
  }
  void touch(std::uint64_t operation) {
    if (operation >= touched_end_) touched_end_ = operation + 1;
  }
  /// The next operation is complete; `digest`: of what it decided.
  void complete(std::uint64_t digest) {
    const std::uint64_t mixed = (digests_.back() ^ digest) * 0x9e37'79b9'7f4a'7c15u;
    digests_.push_back(mixed ^ mixed >> 29);
    ++completed_;
    skip_failed();
  }
  /// It counts as complete when its turn comes.
  void fail(std::uint64_t operation) {
    failed_.insert(operation);
    skip_failed();
  }
  bool has_failed(std::uint64_t operation) const { return failed_.contains(operation); }
  /// What peers are told is complete. They must not take for complete what fails here alone: after the
  /// goodbye, or because this rank is left behind.
  std::uint64_t told() const { return told_.value_or(completed_); }
  void tell_no_more() {
    if (!told_) told_ = completed_;
  }

  Position position() const { return {completed_, digests_.back()}; }
  /// This rank has what everything below amounts to, without having completed it. Its next call is of `step`.
  void restart(const Position& position, std::uint64_t step) {
    *this = {};
    next_call_ = completed_ = touched_end_ = position.completed;
    digests_ = {position.digest};
    step_ = step;
  }

  /// Over everything below, for the last operations: more than the log has.
  std::uint64_t digest(std::uint64_t operation) const {
    const std::uint64_t first = completed_ + 1 - digests_.size();
    return operation < first ? 0 : digests_[operation - first];
  }
  void forget_below(std::uint64_t operation) {
    while (steps_.size() > 1 && first_known() < operation) steps_.pop_front();
    while (digests_.size() > kMostLogged + 1) digests_.pop_front();
  }

 private:
  void skip_failed() {
    if (failed_.erase(completed_) != 0) complete(~std::uint64_t{0});
  }

  std::uint64_t next_call_ = 0, completed_ = 0, touched_end_ = 0, step_ = 0;
  std::set<std::uint64_t> failed_;  // ahead of their turn
  std::optional<std::uint64_t> told_;
  std::deque<std::uint64_t> steps_;          // of the last calls
  std::deque<std::uint64_t> digests_ = {0};  // at completed() last
};

}  // namespace optireduce
