// Scripted cases of what follows a view change: return, leaving, lost packets, exact operations.
#include "check.h"
#include "views_script.h"

using namespace views_test;

TEST(a_returned_rank_replays_what_it_missed) {
  Script group(four());
  group.work(1);
  group.cut(bit_of(3));
  group.all_wait_for(bit_of(3));
  group.pass(Duration::millis(200));
  group.work(2, 0b0111);
  CHECK_EQ(group[0].completed, 2);
  group.heal();
  group.pass(Duration::millis(200));
  CHECK_EQ(group.view(3).members, kAll4);
  CHECK_EQ(group.view(3).ranks[3].completed, 1u);
  group.work(4);
  for (int r = 0; r < 4; ++r) {
    CHECK_EQ(group[r].completed, 4);
    CHECK_EQ(group[r].digest[4], group[0].digest[4]);
  }
}

TEST(a_rank_whose_log_is_gone_is_left_behind_and_blocks_nobody) {
  Script group(four());
  group.cut(bit_of(3));
  group.all_wait_for(bit_of(3));
  group.pass(Duration::millis(200));
  group.work(6, 0b0111);
  CHECK_EQ(group[0].completed, 6);
  group[0].drop_log(false);
  group.heal();
  group.pass(Duration::millis(200));
  CHECK(group[3].change->standing().left_behind);
  CHECK_EQ(group.view(0).members, RankMask{0b0111});
  group.work(8, 0b0111);
  CHECK_EQ(group[0].completed, 8);
}

TEST(a_rank_that_completed_what_the_others_made_void_is_left_behind) {
  Script group({.ranks = 3, .operations = 4, .places = 3});
  group.keeps_back = [](const Packet& packet) {
    return packet.from == 2 && packet.kind == Packet::Kind::Decision;
  };
  group.work(1);
  CHECK_EQ(group[2].completed, 1);  // it alone has its own shard
  CHECK_EQ(group[0].completed, 0);
  group.kept_back.clear();
  group.cut(bit_of(2));
  group.all_wait_for(bit_of(2));
  group.pass(Duration::millis(200));
  group.work(1, 0b011);
  CHECK_EQ(group[0].completed, 1);
  group.keeps_back = nullptr;
  group.heal();
  group.pass(Duration::millis(200));
  CHECK(group[2].change->standing().left_behind);
}

TEST(a_restarted_rank_is_left_behind_and_its_old_self_removed) {
  Script group({.ranks = 3, .operations = 4, .places = 3});
  group.work(1);
  group.restart(2);
  CHECK(group[2].change->standing().away);
  group.pass(Duration::millis(300));
  CHECK(group[2].change->standing().left_behind);
  CHECK_EQ(group.view(0).members, RankMask{0b011});
}

TEST(a_restarted_rank_comes_in_by_a_snapshot) {
  Script group({.ranks = 3, .operations = 6, .places = 3});
  group.work(2);
  group.restart(2);
  group.pass(Duration::millis(300));
  CHECK(group[2].change->standing().left_behind);
  group[2].restore(group[0].snapshot());
  group.pass(Duration::millis(100));
  CHECK_EQ(group.view(0).members, RankMask{0b111});
  CHECK_EQ(group.view(0).ranks[2].incarnation, 1u);
  group.work(6);
  for (int r = 0; r < 3; ++r) {
    CHECK_EQ(group[r].completed, 6);
    CHECK_EQ(group[r].digest[6], group[0].digest[6]);
  }
}

// Even if the others still have all that followed: what it begins with is not what they began with.
TEST(a_restarted_rank_does_not_come_in_without_a_snapshot) {
  Script group({.ranks = 3, .operations = 6, .places = 3});
  group.restart(2);
  group.pass(Duration::millis(300));
  CHECK(group[2].change->standing().left_behind);
  CHECK_EQ(group.view(0).members, RankMask{0b011});
}

TEST(an_older_process_of_a_rank_changes_nothing) {
  Script group({.ranks = 3, .operations = 6, .places = 3});
  group.work(2);
  group.restart(2);
  group.pass(Duration::millis(300));
  group.keeps_back = [](const Packet& packet) { return is<Join>(packet); };
  group[2].restore(group[0].snapshot());
  group.pass(Duration::millis(50));
  const Packet old = group.kept_back.front();
  group.keeps_back = nullptr;
  group.restart(2);
  group.pass(Duration::millis(100));
  group[2].restore(group[0].snapshot());
  group.pass(Duration::millis(100));
  const View view = group.view(0);
  CHECK_EQ(view.ranks[2].incarnation, 2u);
  group.inject(old);
  group.pass(Duration::millis(100));
  CHECK_EQ(group.view(0).number, view.number);
  group.work(4);
  CHECK_EQ(group[2].completed, 4);
}

TEST(a_lost_rank_that_takes_a_snapshot_goes_out_and_in_by_one_change) {
  Script group({.ranks = 3, .operations = 6, .places = 3, .min_ranks = 3});
  group.work(2);
  group[1].change->mark_lost(group.now());
  group.pass(Duration::millis(100));
  CHECK_EQ(group.view(0).number, 0u);  // two are too few
  group[1].restore(group[0].snapshot());
  group.pass(Duration::millis(100));
  CHECK_EQ(group.view(0).number, 1u);
  CHECK_EQ(group.view(0).removed, bit_of(1));
  CHECK_EQ(group.view(0).joined, bit_of(1));
  CHECK(!group[1].change->standing().lost);
  group.work(6);
  for (int r = 0; r < 3; ++r) CHECK_EQ(group[r].completed, 6);
}

TEST(a_lost_rank_with_a_wrong_snapshot_stays_lost) {
  Script group({.ranks = 3, .operations = 6, .places = 3, .min_ranks = 3});
  group.work(2);
  group[1].change->mark_lost(group.now());
  group.pass(Duration::millis(100));
  Snapshot wrong = group[0].snapshot();
  ++wrong.digest[2];
  group[1].restore(wrong);
  CHECK(!group[1].change->standing().left_behind);
  group.pass(Duration::millis(100));
  CHECK(group[1].change->standing().left_behind && group[1].change->standing().lost);
  CHECK_EQ(group.view(0).number, 0u);
}

TEST(a_late_join_of_an_earlier_absence_changes_nothing) {
  Script group({.ranks = 3, .operations = 6, .places = 3});
  group.keeps_back = [](const Packet& packet) { return is<Join>(packet) && packet.to == 1; };
  group[0].change->propose(group.now(), bit_of(2), 0);
  group.deliver();
  group.pass(Duration::millis(100));
  CHECK_EQ(group.view(2).members, RankMask{0b111});
  const Packet old = group.kept_back.front();
  group.keeps_back = nullptr;
  group.work(2);
  const std::uint64_t number = group.view(1).number;
  group.inject(old);
  group.pass(Duration::millis(100));
  CHECK_EQ(group.view(1).number, number);
  CHECK(!group[2].change->standing().lost);
}

TEST(a_leaver_goes_when_all_have_what_it_has_and_tells_its_last_view) {
  Script group({.ranks = 3, .operations = 4, .places = 3});
  group.keeps_back = [](const Packet& packet) {
    return packet.to == 1 && packet.kind == Packet::Kind::Decision;
  };
  group.work(1);
  CHECK_EQ(group[2].completed, 1);
  CHECK_EQ(group[1].completed, 0);
  group[2].change->leave(group.now());
  group.pass(Duration::millis(200));
  CHECK_EQ(group.view(0).members, RankMask{0b111});  // rank 1 still needs it
  group.release();
  group.work(1);
  group.pass(Duration::millis(200));
  CHECK_EQ(group.view(0).members, RankMask{0b011});
  CHECK_EQ(group.view(1).members, RankMask{0b011});
  CHECK(group[2].change->standing().departed);
}

TEST(a_leaver_that_alone_knows_the_new_view_tells_it) {
  Script group({.ranks = 3, .operations = 4, .places = 3});
  group[2].change->leave(group.now());
  group.keeps_back = [](const Packet& packet) {
    return is<Install>(packet) && packet.from == 0 && packet.to == 1;
  };
  group.pass(Duration::millis(60));
  group.kept_back.clear();
  CHECK_EQ(group.view(1).number, 1u);  // by the leaver
}

TEST(a_lost_rank_votes_on_until_it_is_removed) {
  Script group({.ranks = 3, .operations = 4, .places = 3});
  group.kill(0);
  group[1].change->mark_lost(group.now());
  CHECK(group[1].change->standing().left_behind && group[1].change->standing().lost);
  group.deliver();
  group.all_wait_for(bit_of(0));
  group.pass(Duration::millis(300));
  CHECK_EQ(group.view(2).members, RankMask{0b100});  // two of three voted
  CHECK(group[1].change->standing().away);
}

TEST(a_rank_that_lacks_a_gone_packet_is_lost_and_the_others_go_on) {
  Script group(four());
  const int place = group.place_of(3, 0);
  group.keeps_back = [&](const Packet& packet) {
    return packet.kind == Packet::Kind::Decision && packet.op == 0 && packet.place == place && packet.to == 2;
  };
  group.work(1);
  CHECK_EQ(group[0].completed, 1);
  CHECK_EQ(group[2].completed, 0);
  group.kept_back.clear();
  for (int r : {0, 1}) group[r].drop_log(true);
  lose(group, 3);
  CHECK(group[2].change->standing().left_behind);
  group.pass(Duration::millis(300));
  CHECK_EQ(group.view(0).members, RankMask{0b0011});
  group.work(3, 0b0011);
  CHECK_EQ(group[0].completed, 3);
}

TEST(a_holder_keeps_what_others_count_on) {
  Script group(four());
  const int place = group.place_of(3, 0);
  group.keeps_back = [&](const Packet& packet) {
    return packet.kind == Packet::Kind::Decision && packet.op == 0 && packet.place == place && packet.to == 2;
  };
  group.work(1);
  group.kept_back.clear();
  lose(group, 3);
  for (int r : {0, 1}) {
    CHECK(group[r].membership->must_keep(0));
    group[r].drop_log(true);
  }
  group.keeps_back = nullptr;
  group.work(1);
  CHECK_EQ(group[2].completed, 1);
}

TEST(exact_operations_fail_alike_or_succeed_alike) {
  for (const bool told : {false, true}) {
    Script group({.ranks = 3, .operations = 4, .places = 3, .exact = 0b1});
    group.keeps_back = [&](const Packet& packet) {
      return packet.kind == Packet::Kind::Decision && packet.from == 2 && !(told && packet.to == 1);
    };
    for (int r = 0; r < 3; ++r) group[r].start();
    group.deliver();
    for (int r = 0; r < 3; ++r) group[r].decide(0, group.place_of(r, 0), true);
    group.deliver();
    group.kept_back.clear();
    lose(group, 2);
    group.work(1);
    for (int r : {0, 1}) {
      CHECK_EQ(group[r].completed, 1);
      CHECK_EQ(bool(group[r].ended_failed[0]), !told);
      CHECK_EQ(group.view(r).removed, bit_of(2));
    }
  }
}

TEST(an_exact_operation_that_no_survivor_knows_fails_when_it_is_started) {
  Script group({.ranks = 3, .operations = 4, .places = 3, .exact = 0b10});
  group.work(1);
  group.keeps_back = [](const Packet& packet) { return packet.kind == Packet::Kind::Contribution; };
  group[2].start();
  group[0].change->propose(group.now(), 0, 0);  // operation 1, begun by rank 2, belongs to the old view
  group.deliver();
  CHECK_EQ(group.view(0).cut, 2u);
  group.kept_back.clear();
  group.keeps_back = nullptr;
  lose(group, 2);
  group.work(2);
  for (int r : {0, 1}) {
    CHECK_EQ(group[r].completed, 2);
    CHECK(group[r].ended_failed[1]);
  }
}

TEST(readmission_waits_after_a_removal_soon_after_the_return) {
  View view = View::initial(3);
  Membership membership({.rank = 0}, view);
  ChangePlan plan({.readmission = Duration::millis(1000)}, membership);
  auto joiners = [&](int ms) { return plan.wanted(Time{} + Duration::millis(ms), {}, false).joiners; };
  auto install = [&](int ms, RankMask removed, RankMask joined) {
    view.removed = removed;
    view.joined = joined;
    view.members = 0b011 | joined;
    ++view.number;
    view.ranks[2].changed_at = view.number;
    plan.installs(Time{} + Duration::millis(ms), view);
    membership.install(Time{} + Duration::millis(ms), view);
  };
  auto remove_and_ask = [&](int ms) {
    install(ms, bit_of(2), 0);
    plan.consider(Time{} + Duration::millis(ms), 2, {.known = view.number}, Verdict::Fits, true);
    return joiners(ms);
  };
  CHECK_EQ(remove_and_ask(10'000), bit_of(2));
  install(10'000, 0, bit_of(2));
  CHECK_EQ(remove_and_ask(13'999), RankMask{0});
  CHECK_EQ(joiners(14'999), bit_of(2));
  install(15'000, 0, bit_of(2));
  CHECK_EQ(remove_and_ask(16'000), RankMask{0});
  CHECK_EQ(joiners(17'999), RankMask{0});
  CHECK_EQ(joiners(18'000), bit_of(2));
  install(18'000, 0, bit_of(2));
  CHECK_EQ(remove_and_ask(26'000), bit_of(2));  // it has stayed
}

TEST(a_request_that_was_not_granted_is_not_proposed_again) {
  View without = View::initial(3);
  without.members = 0b011;
  Membership membership({.rank = 0}, without);
  ChangePlan plan({}, membership);
  auto ask = [&](Verdict verdict) { plan.consider({}, 2, {.known = 0}, verdict, true); };
  auto joiners = [&] { return plan.wanted({}, {}, false).joiners; };
  ask(Verdict::Later);
  CHECK_EQ(joiners(), bit_of(2));
  ask(Verdict::Snapshot);
  CHECK_EQ(joiners(), RankMask{0});
  ask(Verdict::Fits);
  plan.installs({}, without);
  CHECK_EQ(joiners(), RankMask{0});
}

RUN_TESTS()
