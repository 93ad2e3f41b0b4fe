#include "group/view_change.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace optireduce {

namespace {

std::uint64_t reach_of(const Journal& journal, const View& view, std::uint64_t slack) {
  return std::max(journal.touched_end() + slack, view.cut);
}

template <typename Body>
const Body* as(const ViewMessage& message) {
  return std::get_if<Body>(&message.body);
}

}  // namespace

ViewChange::ViewChange(ViewChangeConfig config, Membership& membership, Journal journal)
    : config_(config),
      membership_(membership),
      journal_(std::move(journal)),
      mail_(membership.group_size(), config.incarnation),
      admission_(config.admission),
      plan_(membership, config.min_ranks, config.quorum),
      attempts_(config.round) {
  standing_.known = membership.view().number;
  // A restarted process is not the one that is a member: it has no memory of promises, so it must not vote.
  standing_.away = membership.view().ranks[membership.self()].incarnation != config.incarnation;
  if (standing_.away) repeats_.next = {};
}

void ViewChange::handle(Time now, Rank from, const ViewMessage& message) {
  if (membership_.fixed() || from >= membership_.group_size() || from == membership_.self()) return;
  refresh();
  dispatch(now, from, message);
  schedule(now);
}

void ViewChange::dispatch(Time now, Rank from, const ViewMessage& message) {
  if (const auto* install = as<Install>(message)) return on_install(now, from, install->views);
  if (const auto* join = as<Join>(message)) return on_join(now, from, join->request);
  if (const auto* answer = as<JoinAnswer>(message)) return on_answer(message, *answer);
  const View& view = membership_.view();
  if (message.view != view.number || as<Query>(message) != nullptr) saw_view(now, from, message.view);
  const bool sender = has(view.members, from) && view.ranks[from].incarnation == message.incarnation;
  if (standing_.away || message.view != view.number || !sender) return;
  membership_.heard(now, from);
  membership_.advanced(from, message.completed);
  repeats_.untold &= ~bit_of(from);
  if (const auto* propose = as<Propose>(message)) return on_propose(now, from, *propose);
  if (const auto* adopt = as<Adopt>(message)) return on_adopt(now, from, *adopt);
  if (const auto* status = as<Status>(message)) return on_status(now, from, *status);
  if (const auto* state = as<State>(message)) {
    if (!agreement_.collects(state->ballot)) return;
    if (state->adopted && state->adopted->number != view.number + 1) return;
    agreement_.add_state(from, *state);
    return try_compute(now);
  }
  if (const auto* adopted = as<Adopted>(message)) {
    if (!agreement_.leads() || adopted->ballot != agreement_.proposal().ballot) return;
    agreement_.add_vote(from);
    return try_chosen(now);
  }
}

void ViewChange::saw_view(Time now, Rank from, std::uint64_t number) {
  const std::uint64_t mine = membership_.view().number;
  if (!repeats_.farewell.empty() && number >= repeats_.farewell.back().number)
    repeats_.untold &= ~bit_of(from);
  if (standing_.away || number == mine) return;
  refresh();
  if (number > mine && mail_.may_ask(now, from, attempts_.round())) mail_.send(from, Query{});
  if (number < mine && mail_.may_tell(now, from, attempts_.round()))
    mail_.send(from, views_to_tell(membership_.history(), journal_));
}

void ViewChange::on_propose(Time now, Rank from, const Propose& propose) {
  if (propose.ballot < agreement_.promised() || propose.ballot.rank != from) return;
  // Who is alive and wants to stay does not help to remove itself. Who is lost cannot stay.
  const bool out = has(propose.without, membership_.self());
  if (out ? !standing_.leaving && !standing_.lost : standing_.lost) return;
  if (propose.ballot > agreement_.promised()) {
    const std::uint64_t slack = propose.without == 0 ? config_.step_operations : 0;
    agreement_.promise(propose.ballot, propose.without, reach_of(journal_, membership_.view(), slack));
    attempts_.postpone(now, place_in(membership_.view().members, membership_.self()));
  }
  mail_.send(from, describe(membership_, journal_, propose, agreement_.reach_end(), agreement_.adopted()));
}

void ViewChange::on_adopt(Time now, Rank from, const Adopt& adopt) {
  const View& view = membership_.view();
  if (adopt.ballot < agreement_.promised() || adopt.ballot.rank != from) return;
  if (adopt.view.number != view.number + 1 || adopt.view.ranks.size() != view.ranks.size()) return;
  agreement_.adopt(adopt, reach_of(journal_, view, 0));
  attempts_.postpone(now, place_in(view.members, membership_.self()));
  mail_.send(from, Adopted{adopt.ballot});
}

void ViewChange::on_status(Time now, Rank from, const Status& status) {
  membership_.told_hearing(now, from, status.hears);
  agreement_.saw_round(status.round);
  if (status.leaving) membership_.mark_leaving(from);
  if (status.lost) membership_.mark_lost(from);
  if (status.asks) send_status(bit_of(from), false);
}

void ViewChange::on_join(Time now, Rank from, const JoinRequest& request) {
  if (standing_.away || standing_.lost) return;
  const View& view = membership_.view();
  const Verdict verdict = judge(membership_, journal_, from, request);
  const auto answer = admission_.consider(now, view, from, request, verdict);
  if (answer == Admission::Answer::Ignore) return;
  if (answer == Admission::Answer::Refuse) mail_.send(from, JoinAnswer{request, Verdict::Snapshot});
  if (request.known < view.number && mail_.may_tell(now, from, attempts_.round()))
    mail_.send(from, views_to_tell(membership_.history(), journal_));
}

// Believed only if it is about what I am now, from a rank that is not behind what I know.
void ViewChange::on_answer(const ViewMessage& message, const JoinAnswer& answer) {
  if (!standing_.away && !standing_.lost) return;
  const std::uint64_t completed = journal_.completed();
  const bool mine = answer.request.incarnation == config_.incarnation &&
                    answer.request.completed == completed &&
                    answer.request.digest == journal_.digest(completed);
  if (mine && message.view >= standing_.known && answer.verdict == Verdict::Snapshot)
    standing_.left_behind = true;
}

void ViewChange::on_install(Time now, Rank from, const std::vector<View>& views) {
  const View& old = membership_.view();
  if (views.empty() || views.back().ranks.size() != old.ranks.size()) return;
  const View& next = views.back();
  const Rank self = membership_.self();
  // A leaver tells its last view until all show that they have it.
  if (!standing_.away && next.number <= old.number && !has(old.members, from)) mail_.send(from, Query{});
  if (next.number <= (standing_.away ? std::max(standing_.known, old.number) : old.number)) return;
  const bool in = has(next.members, self) && next.ranks[self].incarnation == config_.incarnation;
  if (!in) return go_away(now, views);
  if (!has(next.joined, self)) {
    // A rank that stays has answered in the view before. Anything else is no view that was chosen.
    if (!standing_.away && next.number == old.number + 1) enter(now, views, false);
    return;
  }
  if (!standing_.away && !standing_.lost) return go_away(now, views);
  const std::uint64_t completed = journal_.completed();
  if (views.front().cut > completed) return;
  const RankRecord& record = next.ranks[self];
  const bool same = record.completed == completed && record.digest == journal_.digest(completed);
  standing_.lost = !same || standing_.left_behind;
  enter(now, views, true);
}

bool ViewChange::propose(Time now, RankMask without, RankMask joiners) {
  const View& view = membership_.view();
  const Rank self = membership_.self();
  if (standing_.away || standing_.lost || !has(view.members & ~without, self)) return false;
  Propose what{agreement_.next_ballot(self), without & view.members, admission_.requests(joiners)};
  RankMask asked = 0;
  for (const auto& [rank, request] : what.joiners) asked |= bit_of(rank);
  if ((asked & view.members & ~without) != 0 || !plan_.possible({without, asked, 0})) return false;
  refresh();
  const std::uint64_t slack = without == 0 ? config_.step_operations : 0;
  agreement_.promise(what.ballot, without, reach_of(journal_, view, slack));
  agreement_.begin(what);
  agreement_.add_state(self,
                       describe(membership_, journal_, what, agreement_.reach_end(), agreement_.adopted()));
  mail_.send_all(membership_.others(), what);
  attempts_.postpone(now, place_in(view.members, self));
  try_compute(now);
  schedule(now);
  return true;
}

void ViewChange::try_compute(Time now) {
  const Propose& what = agreement_.proposal();
  const View& view = membership_.view();
  const RankMask stay = view.members & ~what.without;
  if (!agreement_.collects(what.ballot)) return;
  if ((stay & ~agreement_.answered()) != 0 || !plan_.quorum(agreement_.answered())) return;
  std::optional<View> value = agreement_.adopted_by_others();
  if (!value)
    value = next_view(membership_.history(), what, agreement_.states(), plan_.min_ranks(what.without));
  if (!value) {
    attempts_.set_thaw();
    return agreement_.give_up();
  }
  agreement_.put_to_vote(*value);
  agreement_.adopt({what.ballot, *value}, agreement_.reach_end());
  agreement_.add_vote(membership_.self());
  mail_.send_all(membership_.others(), Adopt{what.ballot, *value});
  try_chosen(now);
}

void ViewChange::try_chosen(Time now) {
  if (!agreement_.leads() || !agreement_.value()) return;
  const View& old = membership_.view();
  if (!plan_.quorum(agreement_.votes())) return;
  const View chosen = *agreement_.value();
  const Rank self = membership_.self();
  ViewHistory history = membership_.history();
  history.append(chosen);
  const Install install = views_to_tell(history, journal_);
  mail_.send_all(first_ranks(old.ranks.size()) & ~bit_of(self), install);
  // An adopted view that had to be carried through may be one without me.
  if (!has(chosen.members, self) || has(chosen.joined, self)) return go_away(now, install.views);
  enter(now, install.views, false);
  repeats_.untold = chosen.members & ~bit_of(self);
}

void ViewChange::enter(Time now, const std::vector<View>& views, bool joins) {
  const View& next = views.back();
  agreement_.clear();
  attempts_.clear();
  admission_.installed(now, next);
  plan_.installs(next);
  joins ? membership_.join(now, views) : membership_.install(now, next);
  standing_.away = false;
  standing_.known = next.number;
  repeats_ = {};
  installed_ = next;
  refresh();
}

void ViewChange::go_away(Time now, const std::vector<View>& views) {
  agreement_.clear();
  attempts_.clear();
  admission_.clear();
  standing_.away = true;
  standing_.lost = false;
  standing_.known = std::max(standing_.known, views.back().number);
  installed_.reset();
  membership_.set_owing_view_change(now, 0);
  repeats_ = {};
  repeats_.next = now;
  if (!standing_.leaving) return;
  repeats_.farewell = views;
  repeats_.farewell_end = now + config_.farewell;
  repeats_.untold = views.back().members;
}

}  // namespace optireduce
