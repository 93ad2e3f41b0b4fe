// Outgoing view messages, and how often a rank is told the same thing unasked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/rank_mask.h"
#include "base/time.h"
#include "wire/view_messages.h"

namespace optireduce {

class ViewMail {
 public:
  ViewMail(std::size_t ranks, std::uint32_t incarnation) : incarnation_(incarnation), last_(ranks) {}

  /// Everything that is sent from now on carries these.
  void stamp(std::uint64_t view, std::uint64_t completed) {
    view_ = view;
    completed_ = completed;
  }
  void send(Rank to, ViewMessage::Body body) {
    outbox_.emplace_back(to, ViewMessage{incarnation_, view_, completed_, std::move(body)});
  }
  void send_all(RankMask to, const ViewMessage::Body& body) {
    for_each_rank(to, [&](Rank rank) { send(rank, body); });
  }
  bool poll(Rank& to, ViewMessage& message) {
    if (outbox_.empty()) return false;
    to = outbox_.front().first;
    message = std::move(outbox_.front().second);
    outbox_.pop_front();
    return true;
  }

  /// True once in each interval, for each rank and kind.
  bool may_tell(Time now, Rank to, Duration interval) { return passed(now, last_[to].told, interval); }
  bool may_ask(Time now, Rank to, Duration interval) { return passed(now, last_[to].asked, interval); }

 private:
  struct Last {
    std::optional<Time> told, asked;
  };
  static bool passed(Time now, std::optional<Time>& last, Duration interval) {
    if (last && now < *last + interval) return false;
    last = now;
    return true;
  }

  std::uint32_t incarnation_;
  std::uint64_t view_ = 0, completed_ = 0;
  std::vector<Last> last_;
  std::deque<std::pair<Rank, ViewMessage>> outbox_;
};

}  // namespace optireduce
