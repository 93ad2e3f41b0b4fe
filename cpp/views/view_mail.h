// Outgoing view messages, and how often a rank is told the same thing unasked.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "base/rank_mask.h"
#include "base/time.h"
#include "views/membership.h"
#include "views/view_messages.h"

namespace optireduce {

class ViewMail {
 public:
  /// Each message says what `membership` and `completed` say when it is sent.
  ViewMail(std::uint32_t incarnation, const Membership& membership, std::function<std::uint64_t()> completed)
      : incarnation_(incarnation), membership_(membership), completed_(std::move(completed)) {}

  void send(Rank to, ViewMessage::Body body) {
    outbox_.emplace_back(to,
                         ViewMessage{incarnation_, membership_.view().number, completed_(), std::move(body)});
  }
  void send_all(RankMask to, const ViewMessage::Body& body) {
    for_each_rank(to, [&](Rank rank) { send(rank, body); });
  }
  bool poll(Rank& to, ViewMessage& message) {
    if (outbox_.empty()) return false;
    std::tie(to, message) = std::move(outbox_.front());
    outbox_.pop_front();
    return true;
  }

  /// True once in each interval, for each rank.
  bool may_tell(Time now, Rank to, Duration interval) {
    const auto [found, first] = told_.try_emplace(to, now);
    if (!first && now < found->second + interval) return false;
    found->second = now;
    return true;
  }

 private:
  std::uint32_t incarnation_;
  const Membership& membership_;
  std::function<std::uint64_t()> completed_;
  std::map<Rank, Time> told_;
  std::deque<std::pair<Rank, ViewMessage>> outbox_;
};

}  // namespace optireduce
