// Scripted cases of a rank that learns outside the view what all members have completed.
#include "check.h"
#include "views_script.h"

using namespace views_test;

namespace {

/// Rank 3 has completed one operation when the others remove it, who then go on.
void lose_rank_3(Script& group, int operations) {
  group.work(1);
  group.cut(bit_of(3));
  group.all_wait_for(bit_of(3));
  group.pass(Duration::millis(200));
  group.work(operations, 0b0111);
  group.heal();
}

/// All members tell rank 3 how far they are, and rank 0 one operation's decisions.
void teach_rank_3(Script& group, int n) {
  for (int r = 0; r < 3; ++r) group.inject(group[r].header(3, Packet::Kind::Beat));
  for (int p = 0; p < 4; ++p) group[0].send_decision(3, n, p);
  group.deliver();
  if (group[3].may_start()) group[3].start();
  if (group[3].may_complete()) group[3].complete();
}

}  // namespace

// It replays outside the view: the others do not count it, and it comes in when it is near.
TEST(a_rank_that_is_far_behind_learns_before_it_joins) {
  Script group(four());
  lose_rank_3(group, 8);
  group.pass(Duration::millis(200));
  FakeRank& late = group[3];
  CHECK(late.change->learning() && !late.change->standing().left_behind);
  CHECK_EQ(group.view(0).members, RankMask{0b0111});
  CHECK_EQ(group.view(3).number, group.view(0).number);
  for (int n = 1; n < 6; ++n) {
    CHECK(!group.view(0).contains(3));
    teach_rank_3(group, n);
    CHECK_EQ(late.completed, n + 1);
    group.pass(Duration::millis(100));
  }
  CHECK(group.view(0).contains(3));  // 8 are complete: 6 are near
  CHECK_EQ(group.view(0).ranks[3].completed, 6u);
  group.work(8);
  for (int r = 0; r < 4; ++r) CHECK_EQ(group[r].digest[8], group[0].digest[8]);
}

TEST(outside_the_view_nothing_is_held_that_a_member_has_not_completed) {
  Script group(four());
  lose_rank_3(group, 5);
  group.pass(Duration::millis(50));
  for (int r = 0; r < 2; ++r) group.inject(group[r].header(3, Packet::Kind::Beat));
  Packet behind = group[2].header(3, Packet::Kind::Beat);
  behind.completed = 2;
  group.inject(behind);
  for (int n : {1, 2}) {
    for (int p = 0; p < 4; ++p) group[0].send_decision(3, n, p);
  }
  group.deliver();
  CHECK_EQ(group[3].change->reach_end(), 2u);
  CHECK(!group[3].at(1, 0).held.none());
  CHECK(group[3].at(2, 0).held.none());
}

// It asked with less than it has learned when the view comes that admits it. A snapshot that it has taken
// since is not learned: the members check it by another request.
TEST(a_rank_that_learns_on_after_its_request_is_admitted) {
  for (const bool by_snapshot : {false, true}) {
    Script group(four());
    group.keeps_back = [](const Packet& packet) { return is<Join>(packet); };
    lose_rank_3(group, 3);
    group.keeps_back = [](const Packet& packet) { return is<Adopted>(packet); };
    group.pass(Duration::millis(60));
    CHECK(group[0].change->changing() && group[3].change->learning());
    if (by_snapshot) {
      group[3].change->give_up_replay();
      group[3].restore(group[0].snapshot());
    } else {
      teach_rank_3(group, 1);
      CHECK_EQ(group[3].completed, 2);
    }
    group.release();
    CHECK(group.view(3).contains(3));
    CHECK_EQ(group.view(3).ranks[3].completed, 1u);
    CHECK_EQ(group[3].change->standing().lost, by_snapshot);
    group.pass(Duration::millis(200));
    CHECK(!group[3].change->standing().lost);
    group.work(8);
    for (int r = 0; r < 4; ++r) CHECK_EQ(group[r].digest[8], group[0].digest[8]);
  }
}

// Else what it learns after the request would be what the members of an older view had completed.
TEST(a_request_of_a_rank_that_does_not_know_the_view_is_answered_with_the_view) {
  View view = View::initial(3);
  view.members = 0b011;
  view.number = 5;
  view.ranks[2].changed_at = 4;
  Membership membership({.rank = 0}, view);
  ChangePlan plan({}, membership);
  CHECK(plan.consider({}, 2, {.known = 4}, Verdict::Fits, true) == ChangePlan::Answer::Tell);
  CHECK_EQ(plan.wanted({}, {}, false).joiners, RankMask{0});
  plan.consider({}, 2, {.known = 5}, Verdict::Fits, true);
  CHECK_EQ(plan.wanted({}, {}, false).joiners, bit_of(2));
  plan.consider({}, 2, {.known = 5}, Verdict::Fits, false);  // it is far behind meanwhile
  CHECK_EQ(plan.wanted({}, {}, false).joiners, RankMask{0});
}

// It cannot replay outside the view, and without it there are too few.
TEST(a_lost_member_that_is_far_behind_comes_in_where_the_others_are_too_few) {
  Script group({.ranks = 3, .operations = 8, .places = 3, .min_ranks = 3});
  group.work(2);
  const Snapshot old = group[0].snapshot();
  group.work(7);
  group[1].change->mark_lost(group.now());
  group.pass(Duration::millis(100));
  group[1].restore(old);
  group.pass(Duration::millis(100));
  CHECK(!group[1].change->standing().lost);
  group.work(8);
  CHECK_EQ(group[1].completed, 8);
}

RUN_TESTS()
