// What becomes of calls and operations when members are removed, return or leave, or when too few are left.
#pragma once

#include "group/learner.h"

namespace optireduce {

class Views {
 public:
  Views(Core& core, Members& members, Calls& calls, Requests& requests, Learner& learner)
      : core_(core), members_(members), calls_(calls), requests_(requests), learner_(learner) {}

  /// After everything that may have moved the view change.
  void follow(Time now);
  /// Whether a call that was just made ended at once, because of what happened to the members before.
  bool ends_at_once(Time now, std::uint64_t number);
  /// Too few members fail all calls, after a while.
  void check_quorum(Time now);

  /// See Group::restore.
  void restore(Time now, const Position& position, std::uint64_t step);

  void prepare_to_leave(Time now, bool follows) {
    if (core_.config.elastic()) members_.changes.leave(now, follows);
    follow(now);
  }
  bool everyone_caught_up() const { return members_.least_completed() == core_.progress.completed(); }
  bool may_leave() const;
  void say_goodbye(Time now);

 private:
  void install(Time now, const View& view);
  void note_changes(Time now, const View& view);
  void keep_on(Time now, const View& view);
  bool fail_finished(Time now);
  void fail_too_few(Time now);
  void leave_behind(Time now);
  void fail_all(Time now, ErrorCode code, const std::string& message, const std::vector<Rank>& ranks);

  Core& core_;
  Members& members_;
  Calls& calls_;
  Requests& requests_;
  Learner& learner_;
  bool told_away_ = false, told_left_behind_ = false;
  Time too_few_since_ = Time::never();
};

}  // namespace optireduce
