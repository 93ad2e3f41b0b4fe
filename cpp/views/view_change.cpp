#include "views/view_change.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace optireduce {

namespace {

constexpr Duration kFarewell = Duration::millis(2000);  // a leaver tells its last view for this long at most

template <typename Body>
const Body* as(const ViewMessage& message) {
  return std::get_if<Body>(&message.body);
}

}  // namespace

ViewChange::ViewChange(ViewChangeConfig config, Membership& membership, Journal journal)
    : membership_(membership),
      journal_(std::move(journal)),
      incarnation_(config.incarnation),
      mail_(config.incarnation, membership, journal_.completed),
      plan_(config, membership) {
  standing_.known = membership.view().number;
  // A restarted process is not the one that is a member: it has no memory of promises, so it must not vote.
  standing_.away = membership.view().ranks[membership.self()].incarnation != incarnation_;
  if (standing_.away) repeats_.next = {};
}

void ViewChange::handle(Time now, Rank from, const ViewMessage& message) {
  if (from >= membership_.group_size() || from == membership_.self()) return;
  dispatch(now, from, message);
  schedule(now);
}

void ViewChange::dispatch(Time now, Rank from, const ViewMessage& message) {
  if (const auto* install = as<Install>(message)) return on_install(now, from, install->views);
  if (const auto* join = as<Join>(message)) return on_join(now, from, *join);
  if (const auto* refusal = as<Refusal>(message)) return on_refusal(message.view, refusal->request);
  const View& view = membership_.view();
  if (message.view != view.number) saw_view(now, from, message.view);
  const bool sender = has(view.members, from) && view.ranks[from].incarnation == message.incarnation;
  if (standing_.away || message.view != view.number || !sender) return;
  membership_.silence().heard(now, from);
  membership_.advanced(from, message.completed);
  repeats_.untold &= ~bit_of(from);
  if (const auto* propose = as<Propose>(message)) return on_propose(now, from, *propose);
  if (const auto* adopt = as<Adopt>(message)) return on_adopt(now, from, *adopt);
  if (const auto* status = as<Status>(message)) return on_status(now, from, *status);
  if (const auto* state = as<State>(message)) {
    if (state->ballot != agreement_.proposal.ballot || !agreement_.collects_states()) return;
    if (state->adopted && state->adopted->view.number != view.number + 1) return;
    agreement_.states.insert_or_assign(from, *state);
    return try_compute(now);
  }
  if (const auto* adopted = as<Adopted>(message)) {
    if (adopted->ballot != agreement_.proposal.ballot) return;
    agreement_.votes |= bit_of(from);
    return try_chosen(now);
  }
}

void ViewChange::saw_view(Time now, Rank from, std::uint64_t number) {
  const std::uint64_t mine = membership_.view().number;
  if (standing_.away && number >= standing_.known) repeats_.untold &= ~bit_of(from);
  if (standing_.away || number == mine) return;
  if (!mail_.may_tell(now, from, attempts_.round)) return;
  if (number < mine) return mail_.send(from, views_to_tell(membership_.history(), journal_));
  send_status(bit_of(from), false);  // it says which view is mine
}

const State& ViewChange::answer_to(Time now, const Propose& propose) {
  const View& view = membership_.view();
  if (propose.ballot > agreement_.promised) {
    agreement_.promise(propose.ballot, std::max(journal_.touched_end(), view.cut));
    agreement_.deaf |= propose.without;
    attempts_.postpone(now, place_in(view.members, membership_.self()));
  }
  if (agreement_.answer.ballot != propose.ballot)
    agreement_.answer = describe(membership_, journal_, propose, agreement_);
  return agreement_.answer;
}

void ViewChange::on_propose(Time now, Rank from, const Propose& propose) {
  if (propose.ballot < agreement_.promised || propose.ballot.rank != from) return;
  // Who is alive and wants to stay does not help to remove itself. Who is lost cannot stay.
  const bool out = has(propose.without, membership_.self());
  if (out ? !standing_.leaving && !standing_.lost : standing_.lost) return;
  mail_.send(from, answer_to(now, propose));
}

void ViewChange::on_adopt(Time now, Rank from, const Adopt& adopt) {
  const View& view = membership_.view();
  if (adopt.ballot < agreement_.promised || adopt.ballot.rank != from) return;
  if (adopt.view.number != view.number + 1 || adopt.view.ranks.size() != view.ranks.size()) return;
  agreement_.promise(adopt.ballot, std::max(journal_.touched_end(), view.cut));
  agreement_.adopted = adopt;
  attempts_.postpone(now, place_in(view.members, membership_.self()));
  mail_.send(from, Adopted{adopt.ballot});
}

void ViewChange::on_status(Time now, Rank from, const Status& status) {
  membership_.told_hearing(now, from, status.hears);
  agreement_.saw_round(status.round);
  membership_.told_rest(from, status.leavers, status.rests);
  if (status.leaving) membership_.mark_leaving(from, status.follows);
  if (status.lost) membership_.mark_lost(from);
  if (status.asks) send_status(bit_of(from), false);
}

void ViewChange::on_join(Time now, Rank from, const Join& request) {
  if (standing_.away || standing_.lost) return;
  const Verdict verdict = judge(membership_, journal_, from, request);
  const auto answer = plan_.consider(now, from, request, verdict, journal_.near(request.completed));
  if (answer == ChangePlan::Answer::Ignore) return;
  if (answer == ChangePlan::Answer::Refuse) mail_.send(from, Refusal{request});
  if (request.known < membership_.view().number) saw_view(now, from, request.known);
}

// Believed only if it is about what I am now, from a rank that is not behind what I know.
void ViewChange::on_refusal(std::uint64_t view, const Join& request) {
  if (!standing_.away && !standing_.lost) return;
  Join mine = my_request();
  mine.known = request.known;
  if (request == mine && view >= standing_.known) standing_.left_behind = true;
}

void ViewChange::on_install(Time now, Rank from, const std::vector<View>& views) {
  const View& old = membership_.view();
  if (views.empty() || views.back().ranks.size() != old.ranks.size()) return;
  const View& next = views.back();
  const Rank self = membership_.self();
  // A view is told until all show that they have it.
  if (!standing_.away && next.number <= old.number) send_status(bit_of(from), false);
  if (next.number <= standing_.known) return;
  const RankRecord& record = next.ranks[self];
  if (!has(next.members, self) || record.incarnation != incarnation_) return go_away(now, views);
  if (!has(next.joined, self)) {
    // A rank that stays has answered in the view before. Anything else is no view that was chosen.
    if (!standing_.away && next.number == old.number + 1) enter(now, views, false);
    return;
  }
  if (!standing_.away && !standing_.lost) return go_away(now, views);
  const Join mine = my_request();
  if (views.front().cut > mine.completed) return;
  // It may have learned more since it asked, in the view before this one: see ChangePlan::consider. Not by a
  // snapshot: that is checked by another Join.
  const bool learned = repeats_.join_from <= record.completed && record.completed <= mine.completed;
  const bool same = learned && record.digest == journal_.digest(record.completed);
  standing_.lost = !same || standing_.left_behind;
  enter(now, views, true);
}

bool ViewChange::propose(Time now, RankMask without, RankMask joiners) {
  const RankMask members = membership_.view().members;
  const Rank self = membership_.self();
  if (standing_.away || standing_.lost || !has(members & ~without, self)) return false;
  Propose what{{agreement_.highest_round + 1, self}, without & members, plan_.requests(joiners)};
  RankMask asked = 0;
  for (const auto& [rank, request] : what.joiners) asked |= bit_of(rank);
  if ((asked & members & ~without) != 0 || !plan_.possible({without, asked, 0})) return false;
  agreement_.begin(what);
  agreement_.states[self] = answer_to(now, what);
  mail_.send_all(membership_.others(), what);
  try_compute(now);
  schedule(now);
  return true;
}

void ViewChange::try_compute(Time now) {
  const Propose& what = agreement_.proposal;
  const RankMask stay = membership_.view().members & ~what.without;
  const RankMask answered = agreement_.answered();
  if (!agreement_.collects_states() || (stay & ~answered) != 0 || !plan_.quorum(answered)) return;
  std::optional<View> value = agreement_.adopted_by_others();
  if (!value)
    value = next_view(membership_.history(), what, agreement_.states, plan_.min_ranks(what.without));
  if (!value) {
    attempts_.thaw = true;
    return agreement_.give_up();
  }
  agreement_.adopted = {what.ballot, std::move(*value)};
  agreement_.votes |= bit_of(membership_.self());
  mail_.send_all(membership_.others(), *agreement_.adopted);
  try_chosen(now);
}

void ViewChange::try_chosen(Time now) {
  if (!agreement_.votes_begun() || !plan_.quorum(agreement_.votes)) return;
  const View chosen = agreement_.adopted->view;
  const Rank self = membership_.self();
  ViewHistory history = membership_.history();
  history.append(chosen);
  const Install install = views_to_tell(history, journal_);
  mail_.send_all(first_ranks(membership_.group_size()) & ~bit_of(self), install);
  // An adopted view that had to be carried through may be one without me.
  on_install(now, self, install.views);
  if (!standing_.away) repeats_.untold = chosen.members & ~bit_of(self);
}

void ViewChange::enter(Time now, const std::vector<View>& views, bool joins) {
  const View& next = views.back();
  agreement_.clear();
  attempts_.clear();
  plan_.installs(now, next);
  joins ? membership_.take_over(now, views) : membership_.install(now, next);
  standing_.away = false;
  standing_.known = next.number;
  repeats_ = {};
  told_rest_ = false;
  installed_ = next;
}

void ViewChange::go_away(Time now, const std::vector<View>& views) {
  agreement_.clear();
  attempts_.clear();
  plan_.clear();
  standing_.away = true;
  standing_.lost = false;
  standing_.known = views.back().number;
  installed_.reset();
  membership_.silence().set_owing_change(now, 0);
  repeats_ = {.next = now, .join_from = journal_.completed()};
  if (!standing_.leaving) {
    membership_.take_over(now, views);
    observed_ = true;
    return;
  }
  repeats_.farewell = views;
  repeats_.farewell_end = now + kFarewell;
  repeats_.untold = views.back().members;
}

}  // namespace optireduce
