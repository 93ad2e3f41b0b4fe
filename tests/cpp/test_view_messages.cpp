// View messages survive the way through bytes; damaged, cut and invented ones do no harm.
#include <random>

#include "check.h"
#include "views/view_messages.h"

using namespace optireduce;

namespace {

constexpr std::size_t kSize = 5;

class Maker {
 public:
  explicit Maker(unsigned seed) : engine_(seed) {}

  std::uint64_t number() { return engine_() >> (engine_() % 64); }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  bool flag() { return below(2) == 1; }
  Rank rank() { return static_cast<Rank>(below(kSize)); }
  RankMask mask() { return engine_() & first_ranks(kSize); }
  Ballot ballot() { return {static_cast<std::uint32_t>(number()), rank()}; }
  Join request() { return {static_cast<std::uint32_t>(number()), number(), number(), number()}; }
  Verdict verdict() { return static_cast<Verdict>(below(3)); }

  std::vector<std::uint64_t> words() {
    std::vector<std::uint64_t> made;
    for (std::size_t runs = below(4); runs > 0; --runs) made.insert(made.end(), 1 + below(20), number());
    return made;
  }
  View view(std::uint64_t at) {
    View made;
    made.number = at;
    made.members = mask() | 1;
    made.joined = mask() & made.members;
    made.removed = mask();
    made.first = below(100);
    made.cut = 100;
    made.base = number();
    made.stable = number();
    for (std::size_t i = 0; i < kSize; ++i) {
      made.ranks.push_back({number(), number(), static_cast<std::uint32_t>(number()), number(), number()});
    }
    for (std::uint64_t operation = 0; operation < below(6); ++operation) {
      made.orphans.push_back({operation, rank(), flag(), mask(), words()});
      made.failed.push_back(operation * 3);
    }
    return made;
  }
  State state() {
    State made;
    made.ballot = ballot();
    if (flag()) made.adopted = {ballot(), view(number())};
    made.completed = number();
    made.reach_end = number();
    for (std::size_t i = below(5); i > 0; --i) {
      made.held.push_back({number(), rank(), static_cast<std::uint32_t>(number()), words()});
      made.open.push_back({number(), flag(), flag()});
      made.verdicts.emplace_back(rank(), verdict());
    }
    return made;
  }
  ViewMessage::Body body(std::size_t type) {
    switch (type) {
      case 0:
        return Propose{ballot(), mask(), {{rank(), request()}, {rank(), request()}}};
      case 1:
        return state();
      case 2:
        return Adopt{ballot(), view(number())};
      case 3:
        return Adopted{ballot()};
      case 4:
        return Install{{view(7), view(8)}};
      case 5:
        return request();
      case 6:
        return Refusal{request()};
      default:
        return Status{mask(), mask(), flag(), flag(),
                      flag(), flag(), flag(), static_cast<std::uint32_t>(number())};
    }
  }
  ViewMessage message() { return {static_cast<std::uint32_t>(number()), number(), number(), body(below(8))}; }

 private:
  std::mt19937_64 engine_;
};

std::optional<std::vector<std::byte>> collect(PieceCollector& collector,
                                              const std::vector<std::vector<std::byte>>& pieces) {
  std::optional<std::vector<std::byte>> whole;
  for (const auto& piece : pieces) {
    if (auto done = collector.add(piece)) whole = std::move(done);
  }
  return whole;
}

std::vector<std::byte> filled(std::size_t size, int value) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

}  // namespace

TEST(every_message_survives_the_way_through_bytes) {
  Maker make(1);
  for (int i = 0; i < 5000; ++i) {
    const ViewMessage message = make.message();
    const auto back = decode_view_message(encode(message), kSize);
    CHECK(back.has_value() && encode(*back) == encode(message));
  }
}

TEST(a_message_that_is_cut_or_too_long_is_refused) {
  Maker make(2);
  for (int i = 0; i < 300; ++i) {
    std::vector<std::byte> bytes = encode(make.message());
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      CHECK(!decode_view_message(std::span(bytes).first(length), kSize).has_value());
    }
    bytes.push_back(std::byte{0});
    CHECK(!decode_view_message(bytes, kSize).has_value());
  }
}

TEST(damaged_messages_do_no_harm) {
  Maker make(3);
  int understood = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> bytes = encode(make.message());
    for (std::size_t flips = 1 + make.below(4); flips > 0; --flips) {
      bytes[make.below(bytes.size())] ^= static_cast<std::byte>(1 + make.below(255));
    }
    const auto back = decode_view_message(bytes, kSize);
    if (!back) continue;
    ++understood;
    const auto again = decode_view_message(encode(*back), kSize);
    CHECK(again.has_value() && encode(*again) == encode(*back));
  }
  CHECK(understood > 0);
}

TEST(random_bytes_do_no_harm) {
  Maker make(4);
  for (int i = 0; i < 50'000; ++i) {
    std::vector<std::byte> bytes(make.below(200));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(make.below(make.flag() ? 256 : 4));
    decode_view_message(bytes, kSize);
  }
}

TEST(ranks_outside_of_the_group_are_refused) {
  ViewMessage message{0, 0, 0, Status{first_ranks(5), 0, false, false, false, false, false, 0}};
  CHECK(decode_view_message(encode(message), 5).has_value());
  CHECK(!decode_view_message(encode(message), 4).has_value());
  message.body = Adopted{{1, 4}};
  CHECK(decode_view_message(encode(message), 5).has_value());
  CHECK(!decode_view_message(encode(message), 4).has_value());
  CHECK(!decode_view_message(encode(message), 0).has_value());
}

TEST(a_short_message_cannot_claim_much_memory) {
  State state;
  for (int i = 0; i < 3; ++i) state.held.push_back({0, 0, 0, std::vector<std::uint64_t>(120'000, 1)});
  const std::vector<std::byte> bytes = encode({0, 0, 0, state});
  CHECK(bytes.size() < 300);  // one run each
  CHECK(!decode_view_message(bytes, kSize).has_value());
  state.held.pop_back();
  CHECK(decode_view_message(encode({0, 0, 0, state}), kSize).has_value());
}

TEST(views_of_a_history_follow_each_other) {
  Maker make(5);
  ViewMessage message{0, 0, 0, Install{{make.view(3), make.view(5)}}};
  CHECK(!decode_view_message(encode(message), kSize).has_value());
  message.body = Install{};
  CHECK(!decode_view_message(encode(message), kSize).has_value());
}

TEST(pieces_come_together_in_any_order) {
  Maker make(6);
  std::mt19937 order(7);
  for (int i = 0; i < 300; ++i) {
    const std::vector<std::byte> bytes = encode(make.message());
    auto pieces = cut_view_message(bytes, message_id(1, static_cast<std::uint32_t>(i)), 64 + make.below(100));
    std::shuffle(pieces.begin(), pieces.end(), order);
    PieceCollector collector;
    const auto whole = collect(collector, pieces);
    CHECK(whole.has_value() && *whole == bytes);
    CHECK(pieces.size() == 1 ||
          !collector.add(pieces.front()).has_value());  // a duplicate of a whole message
  }
}

TEST(of_two_messages_the_newest_wins) {
  PieceCollector collector;
  const auto old = cut_view_message(filled(500, 1), message_id(0, 0), 100);
  const auto young = cut_view_message(filled(500, 2), message_id(0, 1), 100);
  CHECK(old.size() > 2);
  for (std::size_t i = 0; i + 1 < old.size(); ++i) collector.add(old[i]);
  CHECK(!collector.add(young.front()).has_value());
  CHECK(!collector.add(old.back()).has_value());
  CHECK(!collect(collector, old).has_value());
  CHECK(collect(collector, young) == filled(500, 2));
  CHECK(collect(collector, cut_view_message(filled(500, 3), message_id(1, 0), 100)) == filled(500, 3));
}

TEST(a_single_piece_disturbs_no_message_under_way) {
  PieceCollector collector;
  const auto pieces = cut_view_message(filled(500, 1), message_id(0, 5), 100);
  for (std::size_t i = 0; i + 1 < pieces.size(); ++i) collector.add(pieces[i]);
  CHECK(collector.add(cut_view_message(filled(10, 2), message_id(0, 6), 100).front()) == filled(10, 2));
  CHECK(collector.add(pieces.back()) == filled(500, 1));
}

TEST(pieces_that_do_not_fit_are_refused) {
  PieceCollector collector;
  CHECK(cut_view_message(filled(kMaxViewMessageBytes + 1, 0), 1, 1400).empty());
  auto pieces = cut_view_message(filled(500, 1), 9, 100);
  for (std::size_t length = 0; length < pieces[0].size(); ++length) {
    CHECK(!collector.add(std::span(pieces[0]).first(length)).has_value());
  }
  std::mt19937 engine(8);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> piece(engine() % 40);
    for (std::byte& byte : piece) byte = static_cast<std::byte>(engine() % 5);
    collector.add(piece);
  }
}

RUN_TESTS()
