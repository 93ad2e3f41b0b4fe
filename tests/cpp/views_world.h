// Random schedules of a group: loss, duplication, reordering, late duplicates, pauses, cuts, crashes,
// restarts, leavers, arbitrary proposals. A seed is a schedule.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "views_check.h"

namespace views_test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 12345) { next(); }
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
  }
  int below(int n) { return n <= 0 ? 0 : static_cast<int>(next() % static_cast<std::uint64_t>(n)); }
  bool chance(int percent) { return below(100) < percent; }

 private:
  std::uint64_t state_;
};

struct Totals {
  std::uint64_t schedules = 0, steps = 0, views = 0, removed = 0, joined = 0, passed = 0, left_behind = 0;
  std::uint64_t failed = 0, restarts = 0, restores = 0, learned = 0, leaves = 0, finished = 0, blocked = 0;
};

/// How often each kind of trouble happens, drawn anew for each seed. In percent, but `fault` (of 1000 steps).
struct Trouble {
  int loss, duplicate, fault, suspect, order, decide_early, pause, cut, crash, leave, drop_log, late;
};

class World {
 public:
  World(const Shape& shape, const Broken& broken, std::uint64_t seed)
      : shape_(shape),
        broken_(broken),
        random_(seed),
        first_(View::initial(static_cast<std::size_t>(shape.ranks))),
        chosen_(first_, broken.half_is_quorum ? &half : &is_quorum),
        checker_(shape_, ranks_, chosen_) {
    links_.assign(static_cast<std::size_t>(shape.ranks), first_ranks(static_cast<std::size_t>(shape.ranks)));
    collectors_.resize(static_cast<std::size_t>(shape.ranks * shape.ranks));
    for (int r = 0; r < shape.ranks; ++r) ranks_.push_back(make(static_cast<Rank>(r), 0));
    through_bytes_ = seed % 8 == 0;
    Random& d = random_;
    trouble_ = {d.below(4) * 4,
                d.below(3) * 5,
                5 << d.below(5),
                20 + d.below(40),
                d.below(3),
                3 + d.below(40),
                d.below(20),
                d.below(20),
                d.below(3) != 0 ? d.below(8) : 0,
                d.below(4) != 0 ? 0 : 4,
                d.below(2) != 0 ? 10 : 60,
                d.below(2) != 0 ? 0 : 40};
  }

  /// Throws Violation.
  void run(Totals& totals);

  Ranks& ranks() { return ranks_; }
  const Chosen& chosen() const { return chosen_; }
  std::string describe() const;

 private:
  static bool half(RankMask present, RankMask of) { return 2 * count_of(present & of) >= count_of(of); }
  std::unique_ptr<FakeRank> make(Rank rank, std::uint32_t incarnation) {
    const View& view = broken_.restarted_votes && incarnation != 0 ? chosen_.newest() : first_;
    const std::uint32_t said = broken_.restarted_votes ? 0 : incarnation;
    auto made = std::make_unique<FakeRank>(shape_, broken_, rank, said, view,
                                           [this](Packet p) { post(std::move(p)); });
    made->now = Time{} + Duration::millis(1000 + random_.below(5));
    return made;
  }

  // The network.
  void post(Packet packet);
  void deliver(std::size_t index);
  void receive(const Packet& packet);
  void settle(FakeRank& x);
  void observe(FakeRank& x, const ViewMessage& message, Rank to);
  ViewMessage tampered(FakeRank& x, ViewMessage message) const;
  std::optional<ViewMessage> as_bytes(const Packet& packet);

  // What happens.
  bool act_once(FakeRank& x);
  void act(FakeRank& x);
  void fault();
  void fault_propose(FakeRank& x);
  void fault_links();
  void crash(FakeRank& x) { x.dead = true; }
  void restart(FakeRank& x);
  void snapshot(FakeRank& x);
  void restore(FakeRank& x, const Snapshot& taken);
  bool may_lose(Rank rank) const;

  // The quiet end.
  bool finish();
  void work(FakeRank& x, int round);
  bool in_vain(const FakeRank& x) const;
  void take_over(FakeRank& x);
  void drain();
  bool finished() const;
  bool blocked() const;
  void count(Totals& totals) const;

  FakeRank& random_rank() { return *ranks_[static_cast<std::size_t>(random_.below(shape_.ranks))]; }
  bool linked(Rank from, Rank to) const { return has(links_[from], to); }

  Shape shape_;
  Broken broken_;
  Random random_;
  Trouble trouble_{};
  View first_;
  Ranks ranks_;
  Chosen chosen_;
  Checker checker_;
  std::vector<Packet> net_, late_;
  std::vector<RankMask> links_;
  std::vector<PieceCollector> collectors_;
  std::uint32_t sequence_ = 0;
  bool through_bytes_ = false;
  std::uint64_t steps_ = 0, restarts_ = 0, restores_ = 0;
  std::vector<Snapshot> snapshots_;
};

}  // namespace views_test
