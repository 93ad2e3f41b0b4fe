// The ranks that ask to come in, and when they may.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "base/rank_mask.h"
#include "base/time.h"
#include "group/membership.h"
#include "wire/view_messages.h"

namespace optireduce {

struct AdmissionConfig {
  Duration readmission =
      Duration::millis(1000);  // wait after a second removal within a minute; doubles to 60 s
  Duration candidate_life = Duration::millis(3000);  // a Join is repeated far more often
};

class Admission {
 public:
  enum class Answer {
    Ignore,
    TellView,  // it does not know the newest view
    Refuse,    // it needs a snapshot
    Accept,    // it is a candidate now
  };

  explicit Admission(AdmissionConfig config) : config_(config) {}

  Answer consider(Time now, const View& view, Rank rank, const JoinRequest& request, Verdict verdict);
  /// Candidates that may come in now: a member is as far as they are.
  RankMask ready(Time now, const Membership& membership) const;
  std::vector<std::pair<Rank, JoinRequest>> requests(RankMask ranks) const;
  /// Members whose process was restarted: the old one is dead.
  RankMask replaced() const { return replaced_; }
  void installed(Time now, const View& view);
  void clear();

 private:
  struct Candidate {
    JoinRequest request;
    Time at{};
  };
  struct Removals {
    int count = 0;  // each within a minute of the one before
    Time last{}, readmit_at{};
  };
  void count_removal(Time now, Removals& removals) const;

  AdmissionConfig config_;
  std::map<Rank, Candidate> candidates_;
  std::map<Rank, Removals> removals_;
  RankMask replaced_ = 0;
};

}  // namespace optireduce
