// What becomes of calls, packets and memory when a view changes while operations are open.
#include <algorithm>
#include <string>
#include <variant>

#include "inspection.h"
#include "ranks_case.h"
#include "sealed.h"

using namespace rankscase;

namespace {

Call small(std::vector<float>& values, const Call& like) {
  values.resize(16);  // less than a packet: one rank owns the only shard
  return Ranks::with(like, values);
}

template <typename Body>
bool is(const ViewMessage& message) {
  return std::holds_alternative<Body>(message.body);
}

GroupConfig impatient() {
  GroupConfig config;
  config.exact_silence = Duration::millis(300);
  return config;
}

/// On all others, the one exact operation has ended alike.
void check_rank_3_is_lost(Ranks& ranks) {
  for (Rank rank = 0; rank < 3; ++rank) {
    const std::vector<Report> reports = ranks.take_reports(rank);
    CHECK_EQ(reports.size(), 1u);
    for (const Report& report : reports) {
      CHECK(report.error == ErrorCode::RankLost);
      CHECK(report.ranks == std::vector<Rank>{3});
    }
  }
}

/// Float32 that travel narrow.
struct Narrow {
  DType dtype;
  Values values;
  std::vector<std::byte> room;

  Narrow(DType form, float value)
      : dtype(form),
        values(kElements, value),
        room(elements() * size_of(form), std::byte{0x5a}) {}  // what lies there is nobody's
  std::size_t elements() const { return dtype == DType::Int8Block ? int8_blocks(kElements) : kElements; }
  Call call(std::uint64_t step) {
    Call call = bounded(step);
    call.descriptor.dtype = dtype;
    call.descriptor.elements = static_cast<std::uint32_t>(elements());
    call.data = room.data();
    call.wide = {values.data(), values.size(), 0};
    return call;
  }
};

}  // namespace

TEST(a_rank_that_returns_gets_the_bits_of_the_one_that_went_on_alone_in_a_narrow_form) {
  for (const DType dtype : {DType::BFloat16, DType::Int8Block}) {
    GroupConfig config;
    config.min_ranks = 1;
    Ranks ranks(2, config);
    bool cut = false;
    ranks.loses = [&](Rank, Rank, const Header&) { return cut; };
    std::vector<std::vector<Narrow>> steps(3, {Narrow(dtype, 1.0F / 3), Narrow(dtype, 2.0F / 3)});
    for (Rank rank = 0; rank < 2; ++rank) ranks.start(rank, steps[0][rank].call(0));
    ranks.run(Duration::millis(50));
    cut = true;
    for (std::uint64_t step = 1; step < 3; ++step) {
      ranks.start(0, steps[step][0].call(step));
      ranks.run(Duration::millis(500));
    }
    CHECK_EQ(inspect(ranks.group(0)).members.size(), 1u);
    CHECK_EQ(ranks.take_reports(0).size(), 3u);
    cut = false;
    for (std::uint64_t step = 1; step < 3; ++step) ranks.start(1, steps[step][1].call(step));
    ranks.run(Duration::millis(3'000));
    CHECK_EQ(inspect(ranks.group(1)).members.size(), 2u);
    CHECK_EQ(ranks.take_reports(1).size(), 3u);
    for (const auto& step : steps) CHECK(same_bits(step[0].values, step[1].values));
  }
}

// It asks for decisions of an owner that the others remove meanwhile.
TEST(a_rank_that_returns_gets_the_decisions_of_one_that_is_removed_while_it_replays) {
  for (const bool stays_readable : {false, true}) {
    Ranks ranks(4);
    RankMask cut = 0;
    bool replays = true;
    ranks.loses = [&](Rank from, Rank to, const Header& header) {
      const bool data = is_data(header.type) || header.type == PacketType::Request;
      return has(cut, from) || has(cut, to) || (!replays && data && (from == 3 || to == 3));
    };
    std::vector<std::vector<Values>> steps(4, values_of(4));
    const auto call = [&](std::uint64_t step, Rank rank) {
      if (step != 0) ranks.release(rank);
      Call like = bounded(step);
      like.stays_readable = stays_readable;
      ranks.start(rank, Ranks::with(like, steps[step][rank]));
    };
    for (Rank rank = 0; rank < 4; ++rank) call(0, rank);
    ranks.run(Duration::millis(50));
    cut = bit_of(3);
    for (std::uint64_t step = 1; step < 4; ++step) {
      for (Rank rank = 0; rank < 3; ++rank) call(step, rank);
      ranks.run(Duration::millis(600));
    }
    for (Rank rank = 0; rank < 3; ++rank) ranks.release(rank);
    CHECK_EQ(inspect(ranks.group(0)).members.size(), 3u);
    replays = false;
    cut = 0;
    for (std::uint64_t step = 1; step < 4; ++step) call(step, 3);
    for (int i = 0; i < 3'000 && inspect(ranks.group(0)).members.size() != 4; ++i)
      ranks.run(Duration::millis(1));
    CHECK_EQ(inspect(ranks.group(0)).members.size(), 4u);
    cut = bit_of(2);
    for (int i = 0; i < 3'000 && inspect(ranks.group(3)).members.size() != 3; ++i)
      ranks.run(Duration::millis(1));
    CHECK_EQ(inspect(ranks.group(3)).members.size(), 3u);
    replays = true;
    ranks.run(Duration::millis(2'000));
    CHECK(!inspect(ranks.group(3)).left_behind);
    CHECK_EQ(ranks.take_reports(3).size(), 4u);
    for (const auto& step : steps) CHECK(same_bits(step[3], step[0]));
  }
}

TEST(nothing_is_kept_for_a_rank_that_has_left) {
  Ranks ranks(3);
  std::vector<Values> values = values_of(3);
  ranks.start_all(values, bounded(0));
  ranks.run(Duration::millis(50));
  ranks.group(2).prepare_to_leave(ranks.now());
  ranks.run(Duration::millis(500));
  CHECK(ranks.group(2).may_leave());
  ranks.goodbye(2);
  std::vector<std::vector<Values>> steps(8, values_of(3));
  for (std::size_t step = 0; step < steps.size(); ++step) {
    for (Rank rank = 0; rank < 2; ++rank)
      ranks.start(rank, Ranks::with(bounded(step + 1), steps[step][rank]));
    ranks.run(Duration::millis(50));
  }
  CHECK_EQ(inspect(ranks.group(0)).members.size(), 2u);
  CHECK_EQ(ranks.take_reports(0).size(), 9u);
  CHECK_EQ(inspect(ranks.group(0)).engine_bytes, 0u);
}

// Requests come faster than a window lets their answers go. After the return they are of another view.
TEST(repairs_that_waited_before_a_removal_are_not_sent_after_the_return) {
  Ranks ranks(3);
  bool cut = false, healed = false, returned = false;
  ranks.loses = [&](Rank from, Rank to, const Header& header) {
    if (returned || (healed && header.type == PacketType::View)) return false;
    const bool decision = header.type == PacketType::Decision && header.operation == 1;
    return (decision && (from == 2 || to == 2)) || (cut && from == 2);
  };
  std::vector<Values> first = values_of(3), values = values_of(3, 1'000'000);
  ranks.start_all(first, bounded(0));
  ranks.run(Duration::millis(20));
  ranks.start_all(values, bounded(1));
  ranks.run(Duration::millis(30));
  cut = true;
  std::size_t most = 0;
  for (int i = 0; i < 1'000 && !inspect(ranks.group(2)).away; ++i) {
    most = std::max(most, inspect(ranks.group(2)).waiting_repairs);
    ranks.run(Duration::millis(1));
  }
  CHECK(most > 0);
  CHECK(inspect(ranks.group(2)).away);
  CHECK_EQ(inspect(ranks.group(2)).waiting_repairs, 0u);
  healed = true;
  for (int i = 0; i < 10'000 && inspect(ranks.group(2)).away; ++i) ranks.run(Duration::micros(50));
  CHECK(!inspect(ranks.group(2)).away);
  CHECK_EQ(inspect(ranks.group(2)).waiting_repairs, 0u);
  returned = true;
  ranks.run(Duration::millis(2'000));
  for (Rank rank = 0; rank < 3; ++rank) {
    CHECK_EQ(ranks.take_reports(rank).size(), 2u);
    CHECK(same_bits(values[rank], values[0]));
  }
}

// Others were told what it keeps, and count on it.
TEST(a_holder_that_completes_an_operation_while_the_view_changes_keeps_what_it_reported) {
  for (const bool stays_readable : {false, true}) {
    GroupConfig config;
    config.log_bytes = 0;  // nothing else makes it keep the decisions of others
    Ranks ranks(4, config);
    bool changing = false;
    ranks.loses = [&](Rank from, Rank to, const Header& header) {
      if (header.type != PacketType::Decision) return false;
      if (from == 3 && to != 0) return header.offset != 0;  // ranks 1 and 2 have a part of its decisions
      return from == 1 && to == 0 && !changing;             // rank 0 has all of them, and cannot complete
    };
    ranks.holds = [&](Rank, Rank, const ViewMessage& message) {
      changing = changing || is<State>(message);
      return is<Adopt>(message) || is<Install>(message);
    };
    std::vector<Values> values = values_of(4, 30'000);
    Call call = bounded(0);
    call.stays_readable = stays_readable;
    ranks.start_all(values, call);
    ranks.run(Duration::millis(2));
    ranks.kill(3);
    CHECK(ranks.take_reports(0).empty());
    for (int i = 0; i < 1'000 && ranks.group(0).completed() == 0; ++i) ranks.run(Duration::millis(1));
    CHECK(changing);
    CHECK_EQ(ranks.take_reports(0).size(), 1u);
    CHECK_EQ(inspect(ranks.group(0)).view, 0u);
    const Values result = values[0];
    if (stays_readable) ranks.release(0);
    std::fill(values[0].begin(), values[0].end(), -1.0F);
    ranks.holds = nullptr;
    ranks.let_through();
    ranks.run(Duration::millis(1'000));
    for (const Rank rank : {Rank{1}, Rank{2}}) {
      const std::vector<Report> reports = ranks.take_reports(rank);
      CHECK_EQ(reports.size(), 1u);
      for (const Report& report : reports) CHECK_EQ(report.message, std::string());
      CHECK(same_bits(values[rank], result));
    }
  }
}

TEST(an_exact_call_that_waits_fails_with_the_view_that_fails_its_number) {
  Ranks ranks(4, impatient());
  for (int i = 0; i < 2; ++i) {
    std::vector<Values> before = values_of(4);
    ranks.start_all(before, exact());
    ranks.run(Duration::millis(20));
  }
  for (Rank rank = 0; rank < 4; ++rank) CHECK_EQ(ranks.take_reports(rank).size(), 2u);
  // Rank 0 owns the only shard: no packet of the operation comes to rank 2.
  bool told = false;
  ranks.holds = [&](Rank, Rank to, const ViewMessage& message) {
    told = told || (to == 2 && is<Install>(message));
    return to == 2 && is<Install>(message);
  };
  ranks.kill(3);
  std::vector<Values> values = values_of(4);
  for (Rank rank = 0; rank < 2; ++rank) ranks.start(rank, small(values[rank], exact()));
  for (int i = 0; i < 1'000 && !told; ++i) ranks.run(Duration::millis(1));
  CHECK(told);
  ranks.start(2, small(values[2], exact()));
  ranks.holds = nullptr;
  ranks.let_through();
  ranks.run(Duration::millis(100));
  check_rank_3_is_lost(ranks);
}

// It has told that it has not decided: what the others fail must not succeed here.
TEST(an_owner_does_not_decide_an_exact_operation_by_beginning_it_while_the_view_changes) {
  Ranks ranks(4, impatient());
  const std::uint64_t step = learn(ranks, 4, 14);
  bool told = false;
  ranks.holds = [&](Rank, Rank to, const ViewMessage& message) {
    told = told || (to == 2 && is<Install>(message));
    return to == 2 && is<Install>(message);
  };
  std::vector<Values> values = values_of(4), next = values_of(4);
  Call call = exact();
  call.step = step;
  for (const Rank rank : {Rank{0}, Rank{1}, Rank{3}}) {
    ranks.start(rank, small(values[rank], call));               // rank 2 owns it
    ranks.start(rank, Ranks::with(bounded(step), next[rank]));  // decided without rank 2, which hears of it
  }
  ranks.run(Duration::millis(50));
  ranks.kill(3);
  for (int i = 0; i < 1'000 && !told; ++i) ranks.run(Duration::millis(1));
  CHECK(told);
  ranks.start(2, small(values[2], call));
  ranks.start(2, Ranks::with(bounded(step), next[2]));
  ranks.run(Duration::millis(1));
  ranks.holds = nullptr;
  ranks.let_through();
  ranks.run(Duration::millis(100));
  for (Rank rank = 0; rank < 3; ++rank) {
    const std::vector<Report> reports = ranks.take_reports(rank);
    CHECK_EQ(reports.size(), 2u);
    if (reports.empty()) continue;
    CHECK(reports[0].error == ErrorCode::RankLost);
    CHECK(same_bits(next[rank], next[0]));
  }
}

TEST(an_owner_does_not_decide_an_exact_operation_by_an_abstention_while_the_view_changes) {
  Ranks ranks(4, impatient());
  std::vector<Values> before = values_of(4);
  ranks.start_all(before, exact());
  ranks.run(Duration::millis(20));
  for (Rank rank = 0; rank < 4; ++rank) CHECK_EQ(ranks.take_reports(rank).size(), 1u);
  bool changing = false;
  ranks.loses = [&](Rank from, Rank, const Header& header) {
    if (header.type == PacketType::Abstain) return !changing;
    return from == 2 && header.type == PacketType::Decision;
  };
  ranks.holds = [&](Rank, Rank, const ViewMessage& message) {
    changing = changing || is<Adopt>(message);  // all have answered
    return is<Adopt>(message) || is<Install>(message);
  };
  std::vector<Values> values = values_of(4);
  for (Rank rank = 0; rank < 4; ++rank) {
    Call call = exact();
    call.weight = rank == 1 ? 0 : 1;
    ranks.start(rank, small(values[rank], call));  // rank 2 owns it
  }
  ranks.run(Duration::millis(2));
  ranks.kill(3);
  for (int i = 0; i < 1'000 && !changing; ++i) ranks.run(Duration::millis(1));
  CHECK(changing);
  ranks.run(Duration::millis(250));  // it asks again meanwhile
  ranks.holds = nullptr;
  ranks.let_through();
  ranks.run(Duration::millis(200));
  check_rank_3_is_lost(ranks);
}

// The call would wait for a cut of the bucket that nobody else has.
TEST(a_call_does_not_begin_on_what_was_cut_for_the_old_members_when_news_follows_the_view_in_one_datagram) {
  Ranks ranks(4);
  const std::uint64_t step = learn(ranks, 4, 14);
  ranks.holds = [](Rank, Rank to, const ViewMessage& message) { return to == 2 && is<Install>(message); };
  std::vector<Values> values = values_of(4);
  // Rank 2 owns the only shard among four, rank 1 among three.
  ranks.start(3, small(values[3], bounded(step)));
  ranks.run(Duration::millis(2));
  ranks.goodbye(3);
  for (int i = 0; i < 1'000 && ranks.held.empty(); ++i) ranks.run(Duration::millis(1));
  CHECK(!ranks.held.empty());
  if (ranks.held.empty()) return;
  ranks.start(2, small(values[2], bounded(step)));  // it waits for the view
  for (Rank rank = 0; rank < 2; ++rank) ranks.start(rank, small(values[rank], bounded(step)));
  ranks.run(Duration::millis(50));
  CHECK_EQ(ranks.take_reports(0).size(), 1u);  // without rank 2
  Ranks::Packet install = ranks.held.front();
  const std::size_t length = install.bytes.size();
  Header status;
  status.sender = install.from;
  status.view = static_cast<std::uint16_t>(inspect(ranks.group(0)).view);
  status.completed = static_cast<std::uint32_t>(ranks.group(install.from).completed());
  status.timestamp = static_cast<std::uint32_t>(ranks.now().ns / 1000);
  install.bytes.resize(length + kHeaderBytes);
  encode(status, Seal(42), {}, 2, install.bytes.data() + length);
  ranks.holds = nullptr;
  ranks.give(2, install.from, install.bytes, length);
  CHECK_EQ(inspect(ranks.group(2)).view, inspect(ranks.group(0)).view);
  ranks.run(Duration::millis(1'000));
  const std::vector<Report> reports = ranks.take_reports(2);
  CHECK_EQ(reports.size(), 1u);
  for (const Report& report : reports) {
    CHECK_EQ(report.message, std::string());
    CHECK((report.members == std::vector<Rank>{0, 1, 2}));
  }
  CHECK(same_bits(values[2], values[0]));
  CHECK_EQ(ranks.group(2).stats().malformed_packets, 0u);
}

// Owners would wait for it until their requests are answered, which are lost here.
TEST(a_rank_that_returns_tells_again_that_it_has_no_contribution) {
  Ranks ranks(3);
  bool cut = false, asks = true;
  ranks.loses = [&](Rank from, Rank to, const Header& header) {
    if (to == 2 && header.type == PacketType::Request && !asks) return true;
    return cut && (from == 2 || to == 2);
  };
  std::vector<std::vector<Values>> steps(5, values_of(3));
  ranks.start_all(steps[0], bounded(0));
  ranks.run(Duration::millis(20));
  cut = true;
  for (std::uint64_t step = 1; step < 4; ++step) {
    Call call = bounded(step);
    call.weight = step == 3 ? 0 : 1;
    ranks.start(2, Ranks::with(call, steps[step][2]));
  }
  for (Rank rank = 0; rank < 2; ++rank) ranks.start(rank, Ranks::with(bounded(1), steps[1][rank]));
  ranks.run(Duration::millis(600));
  CHECK_EQ(inspect(ranks.group(0)).members.size(), 2u);
  cut = false;
  ranks.holds = [](Rank, Rank to, const ViewMessage& message) {
    return to == 2 && is<Install>(message) && has(std::get<Install>(message.body).views.back().members, 2);
  };
  for (int i = 0; i < 5'000 && inspect(ranks.group(0)).members.size() < 3; ++i)
    ranks.run(Duration::millis(1));
  CHECK_EQ(inspect(ranks.group(0)).members.size(), 3u);
  for (std::uint64_t step = 2; step < 4; ++step) {
    for (Rank rank = 0; rank < 2; ++rank) ranks.start(rank, Ranks::with(bounded(step), steps[step][rank]));
  }
  asks = false;
  ranks.run(Duration::millis(1));
  ranks.holds = nullptr;
  ranks.let_through();
  ranks.run(Duration::millis(2'000));
  for (Rank rank = 0; rank < 3; ++rank) {
    CHECK_EQ(ranks.take_reports(rank).size(), 4u);
    CHECK(all_are(steps[3][rank], 3));
  }
}

TEST(what_went_along_with_an_operation_that_is_fetched_anew_is_counted) {
  Ranks ranks(3);
  std::uint64_t step = learn(ranks, 3);
  std::vector<Values> values = values_of(3), next = values_of(3);
  for (Rank rank = 0; rank < 2; ++rank) ranks.start(rank, Ranks::with(bounded(step), values[rank]));
  ranks.run(Duration::millis(50));
  ranks.start(2, Ranks::with(bounded(step), values[2]));  // it is excluded
  ranks.run(Duration::millis(50));
  bool cut = true;
  ranks.loses = [&](Rank from, Rank to, const Header&) { return cut && (from == 2 || to == 2); };
  ranks.start_all(next, bounded(++step));  // it goes along, and gets lost
  ranks.run(Duration::millis(600));
  CHECK_EQ(inspect(ranks.group(0)).members.size(), 2u);
  cut = false;
  ranks.run(Duration::millis(3'000));
  CHECK_EQ(inspect(ranks.group(2)).members.size(), 3u);
  CHECK_EQ(ranks.take_reports(2).size(), 2u);
  const Stats& stats = ranks.group(2).stats();
  const std::size_t bytes = kElements * sizeof(float);
  CHECK_EQ(stats.excluded_bytes, 2 * bytes);
  CHECK_EQ(stats.carried_bytes, bytes);
  CHECK_EQ(stats.dropped_bytes, 0u);
  CHECK_EQ(inspect(ranks.group(2)).residual_bytes, bytes);
}

TEST(residuals_of_a_rank_that_is_left_behind_are_dropped) {
  GroupConfig config;
  config.log_bytes = 0;
  Ranks ranks(3, config);
  std::uint64_t step = learn(ranks, 3);
  std::vector<Values> values = values_of(3);
  for (Rank rank = 0; rank < 2; ++rank) ranks.start(rank, Ranks::with(bounded(step), values[rank]));
  ranks.run(Duration::millis(50));
  ranks.start(2, Ranks::with(bounded(step), values[2]));  // it is excluded
  ranks.run(Duration::millis(50));
  CHECK_EQ(inspect(ranks.group(2)).residual_bytes, kElements * sizeof(float));
  bool cut = true;
  ranks.loses = [&](Rank from, Rank to, const Header&) { return cut && (from == 2 || to == 2); };
  std::vector<std::vector<Values>> steps(6, values_of(3));
  for (std::vector<Values>& each : steps) {
    ++step;
    for (Rank rank = 0; rank < 2; ++rank) ranks.start(rank, Ranks::with(bounded(step), each[rank]));
    ranks.run(Duration::millis(600));
  }
  CHECK_EQ(inspect(ranks.group(0)).members.size(), 2u);
  CHECK_EQ(ranks.group(2).stats().dropped_bytes, 0u);
  cut = false;
  Call call = bounded(step);
  call.weight = 0;
  ranks.start(2, Ranks::with(call, values[2]));
  ranks.run(Duration::millis(3'000));
  CHECK(inspect(ranks.group(2)).left_behind);
  CHECK_EQ(ranks.group(2).stats().dropped_bytes, kElements * sizeof(float));
  CHECK_EQ(inspect(ranks.group(2)).residual_bytes, 0u);
}

// It is said three times: to hear it again is no sign of life.
TEST(a_rank_that_says_goodbye_ends_exact_operations_at_once) {
  Ranks ranks(4);
  std::vector<Values> values = values_of(4);
  for (Rank rank = 0; rank < 3; ++rank) ranks.start(rank, Ranks::with(exact(), values[rank]));
  ranks.run(Duration::millis(5));
  ranks.goodbye(3);
  ranks.run(Duration::millis(100));
  check_rank_3_is_lost(ranks);
}

RUN_TESTS()
