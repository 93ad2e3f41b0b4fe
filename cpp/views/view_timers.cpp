// When a member proposes a change, and what is repeated until it is answered.
#include <algorithm>

#include "views/view_change.h"

namespace optireduce {

namespace {

Duration status_interval(const Silence& silence, Duration round) {
  return std::clamp(silence.limit() / 8, round, std::max(round, Duration::millis(100)));
}

}  // namespace

void ViewChange::set_pace(Duration round) {
  attempts_.round = std::clamp(round, Duration::micros(200), Duration::millis(1000));
}

WantedChange ViewChange::schedule(Time now) {
  membership_.advanced(membership_.self(), journal_.completed());
  if (standing_.away) return {};
  note_rest();
  WantedChange change;
  if (!standing_.lost) change = plan_.wanted(now, attempts_.asked, attempts_.thaw);
  const bool reason = change.any() || changing();
  if (!reason) attempts_.clear();
  if (reason && attempts_.plan(now, place_in(change.proposers, membership_.self())))
    send_status(membership_.others(), true);
  // While there is a reason everybody is asked for its Status, so everybody owes us an answer.
  membership_.silence().set_owing_change(now, reason ? membership_.others() : repeats_.untold);
  const bool answers = agreement_.leads() || repeats_.untold != 0;
  const bool tells = reason || membership_.leaving() != 0 || standing_.lost;
  repeats_.interval = answers ? attempts_.round : status_interval(membership_.silence(), attempts_.round);
  repeats_.next = answers || tells ? std::min(repeats_.next, now + repeats_.interval) : Time::never();
  return change;
}

void ViewChange::handle_timeout(Time now) {
  if (standing_.departed) return;
  if (standing_.away) return repeat_away(now);
  membership_.silence().update(now);
  const WantedChange change = schedule(now);
  if (now >= attempts_.at) {
    const bool can = plan_.possible(change);
    ++attempts_.count;
    attempts_.too_few = !can || !plan_.quorum(membership_.hears());
    attempts_.postpone(now, place_in(change.proposers, membership_.self()));
    if (can && has(change.proposers, membership_.self())) propose(now, change.without, change.joiners);
  }
  if (standing_.away) return;
  if (now >= repeats_.next) repeat(now);
  schedule(now);
}

void ViewChange::repeat(Time now) {
  repeats_.next = now + repeats_.interval;
  mail_.send_all(repeats_.untold, views_to_tell(membership_.history(), journal_));
  if (standing_.lost && !standing_.left_behind) mail_.send_all(membership_.others(), my_request());
  // A rank that does not know this view cannot vote in it.
  const RankMask voters = membership_.others() & ~repeats_.untold;
  if (agreement_.votes_begun())
    mail_.send_all(voters & ~agreement_.votes, *agreement_.adopted);
  else if (agreement_.leads())
    mail_.send_all(voters & ~agreement_.answered(), agreement_.proposal);
  const bool asks = attempts_.at != Time::never();
  if (asks || membership_.leaving() != 0 || standing_.lost) send_status(membership_.others(), asks);
}

void ViewChange::repeat_away(Time now) {
  if (now < repeats_.next) return;
  const RankMask others = first_ranks(membership_.group_size()) & ~bit_of(membership_.self());
  if (standing_.leaving) {
    standing_.departed = repeats_.untold == 0 || now >= repeats_.farewell_end;
    mail_.send_all(repeats_.untold, Install{repeats_.farewell});
    repeats_.next = now + attempts_.round;
  } else {
    if (!standing_.left_behind) mail_.send_all(others, my_request());
    repeats_.next = now + std::max(attempts_.round * 4, Duration::millis(20));
  }
  if (standing_.left_behind || standing_.departed) repeats_.next = Time::never();
}

void ViewChange::send_status(RankMask to, bool asks) {
  mail_.send_all(to, Status{membership_.hears(), membership_.leaving(), rests(), standing_.leaving,
                            standing_.follows, standing_.lost, asks, agreement_.highest_round});
}

bool ViewChange::rests() const {
  return journal_.touched_end() <= journal_.completed() && journal_.open().empty();
}

/// While somebody leaves, all members tell when they have nothing open.
void ViewChange::note_rest() {
  const bool rest = membership_.leaving() != 0 && rests();
  membership_.told_rest(membership_.self(), membership_.leaving(), rest);
  if (rest && !told_rest_) send_status(membership_.others(), false);
  told_rest_ = rest;
}

Join ViewChange::my_request() const {
  const std::uint64_t completed = journal_.completed();
  return {incarnation_, standing_.known, completed, journal_.digest(completed)};
}

void ViewChange::suspect(Time now, RankMask ranks) {
  membership_.silence().suspect(ranks & membership_.others());
  schedule(now);
}

void ViewChange::leave(Time now, bool follows) {
  standing_.leaving = true;
  standing_.follows |= follows;
  if (standing_.away) standing_.departed = true;
  membership_.mark_leaving(membership_.self(), follows);
  if (!standing_.away) send_status(membership_.others(), false);
  schedule(now);
}

void ViewChange::mark_lost(Time now) {
  standing_.lost = standing_.left_behind = true;
  membership_.mark_lost(membership_.self());
  agreement_.give_up();
  send_status(membership_.others(), false);
  schedule(now);
}

void ViewChange::give_up_replay() {
  if (standing_.away) standing_.left_behind = true;
}

/// The views that were told must reach back to what is completed here: else nobody says who owned what.
bool ViewChange::learning() const {
  const ViewHistory& history = membership_.history();
  return standing_.away && !standing_.left_behind && !standing_.leaving &&
         !has(history.newest().members, membership_.self()) &&
         history.all().front().cut <= journal_.completed();
}

std::uint64_t ViewChange::reach_end() const {
  if (standing_.away) return learning() ? membership_.completed_by_all() : 0;
  return changing() ? agreement_.reach_end : ~std::uint64_t{0};
}

void ViewChange::restored(Time now) {
  standing_.left_behind = false;
  repeats_.next = now;
  repeats_.join_from = journal_.completed();
  if (standing_.away) return repeat_away(now);
  schedule(now);
  repeat(now);
}

Time ViewChange::poll_timeout() const {
  if (standing_.departed) return Time::never();
  if (standing_.away) return repeats_.next;
  return std::min({attempts_.at, repeats_.next, membership_.silence().next_event()});
}

}  // namespace optireduce
