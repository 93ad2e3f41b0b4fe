// Silence, links, the history of views, and the view that follows from answers.
#include "check.h"
#include "views/membership.h"
#include "views/next_view.h"

using namespace optireduce;

namespace {

constexpr Time kStart = Time{} + Duration::millis(10'000);

Time after(int ms) {
  return kStart + Duration::millis(ms);
}

Membership group_of(std::size_t size, Rank self = 0) {
  return Membership({.rank = self}, View::initial(size));
}

/// A peer that answers each question after so many milliseconds, for a second.
void answers_after(Silence& silence, Rank rank, int ms) {
  for (int at = 0; at < 1000; at += ms) {
    silence.set_owing_data(after(at), bit_of(rank));
    silence.heard(after(at + ms), rank);
    silence.set_owing_data(after(at + ms), 0);
  }
}

View next(const View& old, RankMask members, std::uint64_t cut) {
  View view = old;
  view.number = old.number + 1;
  view.removed = old.members & ~members;
  view.joined = members & ~old.members;
  view.members = members;
  view.cut = cut;
  view.orphans.clear();
  view.failed.clear();
  for_each_rank(view.joined, [&](Rank rank) { view.ranks[rank].since = cut; });
  return view;
}

State state_of(std::uint64_t completed, std::uint64_t reach_end) {
  State state;
  state.completed = completed;
  state.reach_end = reach_end;
  return state;
}

}  // namespace

TEST(a_quorum_is_more_than_half_or_half_with_the_lowest) {
  CHECK(is_quorum(0b0111, 0b1111));
  CHECK(is_quorum(0b0011, 0b1111));
  CHECK(!is_quorum(0b1100, 0b1111));
  CHECK(is_quorum(0b0110, 0b0110));
  CHECK(is_quorum(0b0010, 0b0110));
  CHECK(!is_quorum(0b0100, 0b0110));
  CHECK(!is_quorum(0b1001, 0b0110));
  CHECK(!is_quorum(0, 0));
}

TEST(any_two_quorums_have_a_rank_in_common) {
  for (RankMask members = 1; members < 64; ++members) {
    for (RankMask a = 0; a < 64; ++a) {
      for (RankMask b = 0; b < 64; ++b) {
        if (is_quorum(a, members) && is_quorum(b, members)) CHECK((a & b & members) != 0);
      }
    }
  }
}

TEST(a_peer_that_owes_nothing_is_never_suspected) {
  Silence silence(3, {});
  silence.heard(kStart, 1);
  silence.update(after(100'000));
  CHECK_EQ(silence.suspected(), RankMask{0});
  CHECK(silence.next_event() == Time::never());
}

TEST(a_peer_that_owes_is_pinged_at_a_third_and_suspected_at_the_limit) {
  Silence silence(3, {});
  silence.set_owing_data(kStart, bit_of(1));
  CHECK(silence.limit() == Duration::millis(50));
  CHECK_EQ(silence.take_pings(after(16)), RankMask{0});
  CHECK_EQ(silence.take_pings(after(17)), bit_of(1));
  CHECK_EQ(silence.take_pings(after(30)), RankMask{0});
  CHECK(silence.next_event() == after(50));
  silence.update(after(49));
  CHECK_EQ(silence.suspected(), RankMask{0});
  silence.update(after(50));
  CHECK_EQ(silence.suspected(), bit_of(1));
  silence.heard(after(60), 1);
  CHECK_EQ(silence.suspected(), RankMask{0});
}

TEST(the_limit_is_learned_from_gaps_and_fades) {
  Silence silence(3, {});
  answers_after(silence, 1, 40);
  CHECK(silence.limit() == Duration::millis(100));
  answers_after(silence, 1, 2000);
  CHECK(silence.limit() == Duration::millis(1000));
  silence.set_owing_data(after(100'000), bit_of(1));
  silence.heard(after(100'001), 1);
  CHECK(silence.limit() == Duration::millis(50));
}

TEST(a_standstill_of_our_own_restarts_every_silence) {
  Silence silence(3, {});
  silence.heard(kStart, 1);
  silence.set_owing_data(kStart, 0b110);
  silence.restart(after(5000));
  silence.update(after(5040));
  CHECK_EQ(silence.suspected(), RankMask{0});
  CHECK_EQ(silence.heard_lately(after(5000)), RankMask{0});
  silence.update(after(5050));
  CHECK_EQ(silence.suspected(), RankMask{0b110});
}

TEST(while_an_exact_operation_is_open_silence_is_long) {
  Silence silence(2, {});
  silence.set_exact_open(true);
  silence.set_owing_data(kStart, bit_of(1));
  silence.update(after(9'999));
  CHECK_EQ(silence.suspected(), RankMask{0});
  silence.update(after(10'000));
  CHECK_EQ(silence.suspected(), bit_of(1));
}

TEST(of_a_bad_link_the_higher_rank_goes) {
  // Rank 1 hears rank 3, rank 3 does not hear rank 1.
  CHECK_EQ(keep_good_links(0b1111, {0b1111, 0b1111, 0b1111, 0b1101}), RankMask{0b0111});
  // Rank 1 is deaf to all.
  CHECK_EQ(keep_good_links(0b1111, {0b1111, 0b0010, 0b1111, 0b1111}), RankMask{0b1101});
  CHECK_EQ(keep_good_links(0b1111, {0b1111, 0b1111, 0b1111, 0b1111}), RankMask{0b1111});
  // Two halves: the lower one stays.
  CHECK_EQ(keep_good_links(0b1111, {0b0011, 0b0011, 0b1100, 0b1100}), RankMask{0b0011});
}

TEST(a_doubted_rank_that_does_not_answer_goes_even_if_it_is_lower) {
  Membership group = group_of(4, 3);
  group.silence().suspect(bit_of(1));
  for (Rank rank : {Rank{0}, Rank{2}}) group.told_hearing(after(5), rank, 0b1111);
  CHECK_EQ(group.keep(after(6), kStart), RankMask{0b1101});
  group.told_hearing(after(6), 1, 0b1111);  // it lives: only the link to me is bad, and I am the higher one
  CHECK_EQ(group.keep(after(7), kStart), RankMask{0b0111});
  group.silence().heard(after(8), 1);
  CHECK_EQ(group.keep(after(9), kStart), RankMask{0b1111});
}

TEST(an_old_complaint_is_forgotten) {
  Membership group = group_of(3);
  group.told_hearing(kStart, 1, 0b011);
  CHECK_EQ(group.keep(after(1), Time::never()), RankMask{0b011});
  CHECK_EQ(group.keep(after(60), Time::never()), RankMask{0b111});
}

TEST(what_a_member_has_completed_never_falls) {
  Membership group = group_of(3);
  group.advanced(1, 5);
  group.advanced(1, 4);
  CHECK_EQ(group.completed(1), 5u);
}

TEST(in_groups_above_64_ranks_everybody_is_an_owner) {
  const Membership group = group_of(100);
  CHECK_EQ(group.owners(5).size(), 100u);
  CHECK(group.serves(99, 3) && group.view().contains(99));
}

TEST(an_operation_belongs_to_the_newest_view_at_or_below_it) {
  ViewHistory history(View::initial(4));
  history.append(next(history.newest(), 0b0111, 10));
  history.append(next(history.newest(), 0b0111, 10));
  history.append(next(history.newest(), 0b1111, 12));
  CHECK_EQ(history.view_of(9).number, 0u);
  CHECK_EQ(history.view_of(10).number, 2u);
  CHECK_EQ(history.view_of(12).number, 3u);
  CHECK_EQ(history.orphans_of(9), bit_of(3));  // it is back, but serves from 12 on
  CHECK_EQ(history.orphans_of(12), RankMask{0});
  history.forget_before(11);
  CHECK_EQ(history.all().front().number, 2u);
  CHECK_EQ(history.all().size(), 2u);
}

TEST(the_history_of_a_member_that_is_behind_is_kept) {
  Membership group = group_of(3);
  group.install(kStart, next(group.view(), 0b011, 4));
  group.advanced(0, 8);
  group.advanced(1, 2);
  group.forget_before(8);
  CHECK_EQ(group.history().view_of(2).number, 0u);
  group.advanced(1, 8);
  group.forget_before(8);
  CHECK_EQ(group.history().all().size(), 1u);
}

TEST(what_one_view_made_void_stays_void) {
  ViewHistory history(View::initial(3));
  View first = next(history.newest(), 0b011, 4);
  first.orphans.push_back({.operation = 2, .owner = 2, .holders = 0b01, .passed = {0b0011}});
  history.append(first);
  CHECK_EQ(history.fate(2, 2, 0).passed, 0b0011u);
  CHECK_EQ(history.fate(2, 2, 0).voided, ~std::uint64_t{0b0011});
  CHECK_EQ(history.fate(2, 2, 5).voided, ~std::uint64_t{0});
  CHECK_EQ(history.fate(3, 2, 0).voided, ~std::uint64_t{0});
  CHECK_EQ(history.fate(2, 1, 0).voided, 0u);  // its owner serves it
  View second = next(first, 0b011, 4);
  second.orphans.push_back({.operation = 2, .owner = 2, .rest_gone = true, .holders = 0, .passed = {}});
  history.append(second);
  CHECK_EQ(history.fate(2, 2, 0).gone, 0b0011u);
  CHECK_EQ(history.fate(2, 2, 0).voided, ~std::uint64_t{0b0011});
}

TEST(a_joiner_gets_the_tables_of_the_newest_view_only) {
  ViewHistory history(View::initial(3));
  View first = next(history.newest(), 0b011, 4);
  first.orphans.push_back({.operation = 2, .owner = 2, .holders = 0b01, .passed = {1}});
  history.append(first);
  history.append(next(first, 0b111, 6));
  const std::vector<View> told = history.since(5);
  CHECK_EQ(told.size(), 2u);
  CHECK(told.front().orphans.empty() && told.front().first == told.front().cut);
  ViewHistory joiner(View::initial(3));
  joiner.replace(history.since(0));
  joiner.append(next(joiner.newest(), 0b111, 6));
  CHECK_EQ(joiner.view_of(3).number, 0u);
}

TEST(the_next_view_is_cut_above_all_reaches_and_names_holders) {
  ViewHistory history(View::initial(3));
  State zero = state_of(1, 3), one = state_of(1, 5);
  zero.held.push_back({2, 2, 4, {0b0011}});
  one.held.push_back({2, 2, 4, {0b0001}});
  const auto view = next_view(history, {{1, 0}, bit_of(2), {}}, {{0, zero}, {1, one}}, 1);
  CHECK(view.has_value());
  CHECK_EQ(view->cut, 5u);
  CHECK_EQ(view->base, 1u);
  CHECK_EQ(view->stable, 1u);
  const OrphanShard* shard = view->orphan(2, 2);
  CHECK(shard != nullptr && !shard->rest_gone && shard->holders == 0b011);
  CHECK_EQ(shard->passed.at(0), 0b0011u);
  CHECK(view->orphan(1, 2) == nullptr);  // all void
}

TEST(of_an_operation_that_a_member_completed_nothing_becomes_void) {
  ViewHistory history(View::initial(3));
  const auto view =
      next_view(history, {{1, 0}, bit_of(2), {}}, {{0, state_of(1, 3)}, {1, state_of(2, 3)}}, 1);
  CHECK(view->orphan(1, 2) != nullptr && view->orphan(1, 2)->rest_gone);
  CHECK(view->orphan(2, 2) == nullptr);
}

TEST(the_table_reaches_back_to_what_a_joiner_lacks) {
  ViewHistory history(View::initial(3));
  history.append(next(history.newest(), 0b011, 4));
  State zero = state_of(6, 7), one = state_of(6, 7);
  zero.verdicts = {{2, Verdict::Fits}};
  one.verdicts = {{2, Verdict::Later}};
  zero.held.push_back({3, 2, 1, {1}});
  const Propose what{{1, 0}, 0, {{2, {.completed = 3}}}};
  const auto view = next_view(history, what, {{0, zero}, {1, one}}, 1);
  CHECK_EQ(view->joined, bit_of(2));
  CHECK_EQ(view->first, 3u);
  CHECK_EQ(view->base, 6u);
  CHECK_EQ(view->ranks[2].since, 7u);
  CHECK(view->orphan(3, 2) != nullptr);
  one.verdicts = {{2, Verdict::Snapshot}};
  CHECK_EQ(next_view(history, what, {{0, zero}, {1, one}}, 1)->joined, RankMask{0});
}

TEST(a_view_needs_what_all_had_completed_and_enough_ranks) {
  View stable = View::initial(3);
  stable.stable = 5;
  const Propose what{{1, 0}, bit_of(2), {}};
  const auto answers = [](std::uint64_t completed) {
    return std::map<Rank, State>{{0, state_of(4, 6)}, {1, state_of(completed, 6)}};
  };
  CHECK(!next_view(ViewHistory(stable), what, answers(4), 1).has_value());
  CHECK(next_view(ViewHistory(stable), what, answers(5), 1).has_value());
  CHECK(!next_view(ViewHistory(stable), what, answers(5), 3).has_value());
  std::map<Rank, State> absurd = answers(5);
  absurd[0].reach_end = ~std::uint64_t{0};
  CHECK(!next_view(ViewHistory(stable), what, absurd, 1).has_value());
}

RUN_TESTS()
