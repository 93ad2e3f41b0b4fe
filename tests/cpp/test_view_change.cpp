// One scripted case for each rule of a view change.
#include "check.h"
#include "views_script.h"

using namespace views_test;

TEST(a_silent_owner_is_removed_and_its_decision_passed_on) {
  Script group(four());
  group.keeps_back = [](const Packet& packet) {
    return packet.kind == Packet::Kind::Decision && packet.from != 3;
  };
  for (int r = 0; r < 4; ++r) group[r].start();
  group.deliver();
  const int place = group.place_of(3, 0);
  group.decide(3, 0, place, bit_of(1));
  group.keeps_back = nullptr;
  lose(group, 3);
  for (int r = 0; r < 3; ++r) CHECK_EQ(group.view(r).members, RankMask{0b0111});
  const OrphanShard* shard = group.view(0).orphan(0, 3);
  CHECK(shard != nullptr && shard->holders == bit_of(1) && !shard->rest_gone);
  group.work(1);
  for (int r = 0; r < 3; ++r) {
    CHECK_EQ(group[r].completed, 1);
    CHECK_EQ(group[r].at(0, place).held.set, 0b01010101u);
    CHECK_EQ(group[r].digest[1], group[0].digest[1]);
  }
}

TEST(what_nobody_holds_is_void_and_returns_as_residual) {
  Script group(four());
  for (int r = 0; r < 4; ++r) group[r].start();
  group.deliver();
  lose(group, 3);
  group.work(1);
  const int place = group.place_of(3, 0) >= 0 ? group.place_of(3, 0) : 0;
  CHECK_EQ(group[0].completed, 1);
  CHECK(group[0].at(0, place).held.kind == Decision::Kind::Void);
  CHECK_EQ(group[0].rest(0, place), group[0].unit(0));
}

TEST(deafness_adds_up_over_the_ballots_of_one_change) {
  Script group(four());
  CHECK(group[0].change->propose(group.now(), bit_of(3), 0));
  group.keeps_back = [](const Packet& packet) { return is<State>(packet); };
  group.deliver();
  CHECK_EQ(group[1].change->deaf(), bit_of(3));
  CHECK(group[2].change->propose(group.now(), bit_of(0), 0));
  group.deliver();
  CHECK_EQ(group[1].change->deaf(), bit_of(3) | bit_of(0));
  CHECK(group[1].change->changing());
}

TEST(reach_is_set_by_the_first_promise_and_the_cut_is_above_all_of_them) {
  Script group(four());
  group.work(2, bit_of(2));  // only rank 2 starts operations 0 and 1
  group.keeps_back = [](const Packet& packet) { return is<State>(packet); };
  CHECK(group[0].change->propose(group.now(), bit_of(3), 0));
  group.deliver();
  CHECK_EQ(group[2].change->reach_end(), 2u);
  group.release();
  CHECK_EQ(group.view(0).number, 1u);
  CHECK_EQ(group.view(0).cut, 2u);
  CHECK(group[0].may_start());
}

TEST(a_rank_that_is_alive_does_not_help_to_remove_itself) {
  Script group({.ranks = 3, .operations = 2, .places = 3});
  group[0].change->propose(group.now(), bit_of(1), 0);
  group.keeps_back = [](const Packet& packet) { return is<State>(packet) && packet.from == 1; };
  group.deliver();
  CHECK(group.kept_back.empty());
  CHECK(group[1].change->standing().away);  // it hears of the view without it
  group.pass(Duration::millis(200));
  CHECK_EQ(group.view(1).members, RankMask{0b111});  // and comes back
}

TEST(all_that_stay_must_answer) {
  Script group(four());
  group.keeps_back = [](const Packet& packet) { return is<State>(packet) && packet.from == 2; };
  group[0].change->propose(group.now(), bit_of(3), 0);
  group.deliver();
  CHECK_EQ(group.view(0).number, 0u);  // 0 and 1 are not enough, though 3 of 4 is a quorum with the leaver
  group.release();
  CHECK_EQ(group.view(0).number, 1u);
}

TEST(an_adopted_view_is_carried_through_by_a_proposer_that_is_not_in_it) {
  Script group({.ranks = 3, .operations = 4, .places = 3});
  group.keeps_back = [](const Packet& packet) { return is<Adopted>(packet) || is<Install>(packet); };
  group[0].change->propose(group.now(), bit_of(2), 0);
  group.deliver();
  CHECK(std::ranges::any_of(group.kept_back, [](const Packet& packet) { return packet.from == 1; }));
  group.kill(0);
  group.kept_back.clear();
  group.keeps_back = nullptr;
  CHECK(group[2].change->propose(group.now(), bit_of(0), 0));
  group.deliver();
  CHECK_EQ(group.view(1).number, 1u);
  CHECK_EQ(group.view(1).members, RankMask{0b011});
  CHECK(group[2].change->standing().away);
}

TEST(the_next_rank_takes_over_from_a_proposer_that_dies) {
  Script group({.ranks = 5, .operations = 2, .places = 5});
  group.keeps_back = [](const Packet& packet) { return is<State>(packet) && packet.to == 0; };
  group.kill(4);
  group.all_wait_for(bit_of(4));
  group.pass(Duration::millis(70));
  CHECK(group[1].change->changing());
  group.kill(0);
  group.keeps_back = nullptr;
  group.pass(Duration::millis(500));
  CHECK_EQ(group.view(1).members, RankMask{0b01110});
  CHECK_EQ(group.view(3).members, RankMask{0b01110});
}

TEST(two_ranks_that_die_go_in_one_change) {
  Script group({.ranks = 5, .operations = 2, .places = 5});
  group.kill(3);
  group.kill(4);
  group.all_wait_for(0b11000);
  group.pass(Duration::millis(300));
  CHECK_EQ(group.view(0).number, 1u);
  CHECK_EQ(group.view(0).members, RankMask{0b00111});
}

TEST(the_lowest_of_two_goes_on_alone_and_the_other_never) {
  Script group({.ranks = 2, .operations = 4, .places = 2});
  group.cut(0b01);
  group.all_wait_for(0b11);
  group.pass(Duration::millis(300));
  CHECK_EQ(group.view(0).members, RankMask{0b01});
  CHECK_EQ(group.view(1).number, 0u);
  CHECK(group[1].change->too_few());
  group.work(2, bit_of(0));
  CHECK_EQ(group[0].completed, 2);
  group.heal();
  group.pass(Duration::millis(300));
  CHECK_EQ(group.view(1).members, RankMask{0b11});
  CHECK_EQ(group.view(1).ranks[1].since, group.view(1).cut);
}

TEST(without_a_quorum_nobody_moves_and_all_go_on_when_healed) {
  Script group({.ranks = 4, .operations = 2, .places = 4, .min_ranks = 0});
  group.cut(0b0011);
  group.all_wait_for(kAll4);
  group.pass(Duration::millis(400));
  for (int r = 0; r < 4; ++r) CHECK_EQ(group.view(r).number, 0u);
  CHECK(group[0].change->too_few());
  group.heal();
  group.pass(Duration::millis(400));
  for (int r = 0; r < 4; ++r) CHECK_EQ(group.view(r).members, kAll4);
  CHECK(!group[0].change->too_few() && !group[0].change->changing());
  group.work(2);
  for (int r = 0; r < 4; ++r) CHECK_EQ(group[r].completed, 2);
}

TEST(a_change_that_would_undo_what_all_had_is_given_up_and_thawed) {
  Script group({.ranks = 3, .operations = 4, .places = 3});
  group.keeps_back = [](const Packet& packet) {
    return packet.to == 2 && packet.kind != Packet::Kind::Control;
  };
  group[0].change->propose(group.now(), bit_of(2), 0);  // rank 2 goes
  group.deliver();
  group.work(1, 0b011);
  CHECK_EQ(group[1].completed, 1);
  group[0].change->propose(group.now(), 0, 0);  // stable is 1 now
  group.deliver();
  CHECK_EQ(group.view(0).stable, 1u);
  group.pass(Duration::millis(100));  // rank 2 is back, and has completed nothing
  CHECK_EQ(group.view(0).members, RankMask{0b111});
  CHECK_EQ(group[2].completed, 0);
  const std::uint64_t before = group.view(2).number;
  group.cut(0b100);
  CHECK(!group[2].change->propose(group.now(), 0b011, 0));
  group.heal();
  CHECK_EQ(group.view(2).number, before);
  // Ranks 0 and 1 go: rank 1 votes as a leaver, but rank 2 alone must not make operation 0 void.
  group[0].change->leave(group.now());
  group[1].change->leave(group.now());
  group.deliver();
  CHECK(group[2].change->propose(group.now(), 0b011, 0));
  group.deliver();
  CHECK_EQ(group.view(2).members, RankMask{0b111});
  group.pass(Duration::millis(300));
  CHECK_EQ(group.view(2).members, RankMask{0b111});
  CHECK(group.view(2).number > before);  // the thaw
  CHECK_EQ(group[2].change->deaf(), RankMask{0});
}

RUN_TESTS()
