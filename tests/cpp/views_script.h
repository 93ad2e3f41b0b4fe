// A group of FakeRanks that follows a script: packets are delivered at once or kept back, time passes in
// steps.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "views_rank.h"

namespace views_test {

class Script {
 public:
  explicit Script(Shape shape) : shape_(shape), first_(View::initial(static_cast<std::size_t>(shape.ranks))) {
    for (int r = 0; r < shape.ranks; ++r) ranks_.push_back(make(static_cast<Rank>(r), 0));
    links_.assign(ranks_.size(), first_ranks(ranks_.size()));
  }

  FakeRank& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  const View& view(int rank) { return (*this)[rank].membership->view(); }
  Time now() const { return now_; }

  /// Packets of which this is true are kept back until release().
  std::function<bool(const Packet&)> keeps_back;
  std::vector<Packet> kept_back;
  void release() {
    keeps_back = nullptr;
    for (Packet& packet : std::exchange(kept_back, {})) net_.push_back(std::move(packet));
    deliver();
  }
  void inject(Packet packet) {
    net_.push_back(std::move(packet));
    deliver();
  }

  void kill(int rank) { (*this)[rank].dead = true; }
  void restart(int rank) {
    const std::uint32_t next = (*this)[rank].incarnation + 1;
    ranks_[static_cast<std::size_t>(rank)] = make(static_cast<Rank>(rank), next);
  }
  /// Ranks inside and outside of the mask do not hear each other.
  void cut(RankMask side) {
    for (Rank rank = 0; rank < links_.size(); ++rank) links_[rank] = has(side, rank) ? side : ~side;
  }
  void cut_link(Rank from, Rank to) { links_[from] &= ~bit_of(to); }
  void heal() { links_.assign(ranks_.size(), ~RankMask{0}); }

  /// Delivers what is under way and what follows from it. No time passes.
  void deliver() {
    for (auto& rank : ranks_) settle(*rank);
    while (!net_.empty()) {
      const Packet packet = std::move(net_.front());
      net_.erase(net_.begin());
      FakeRank& to = *ranks_[packet.to];
      if (to.dead || ranks_[packet.from]->dead || !has(links_[packet.from], packet.to)) continue;
      if (keeps_back && keeps_back(packet)) {
        kept_back.push_back(packet);
        continue;
      }
      if (packet.kind == Packet::Kind::Control)
        to.change->handle(now_, packet.from, *packet.control);
      else
        to.receive(packet);
      settle(to);
    }
  }
  /// Time passes; ranks that wait for others say so, answer pings and do what their timers want.
  void pass(Duration duration) {
    const Time end = now_ + duration;
    for (; now_ < end; now_ = now_ + Duration::millis(1)) {
      for (auto& rank : ranks_) {
        rank->now = now_;
        if (rank->dead) continue;
        for_each_rank(rank->membership->silence().take_pings(now_) & rank->membership->others(),
                      [&](Rank to) { net_.push_back(rank->header(to, Packet::Kind::Beat)); });
        rank->change->handle_timeout(now_);
      }
      if (now_.ns / 1'000'000 % 10 == 0) beat();
      deliver();
    }
  }
  /// Everybody that lives sends a packet to everybody, as an engine that is asked does.
  void beat() {
    for (auto& rank : ranks_) {
      if (rank->dead || rank->change->standing().away) continue;
      for_each_rank(rank->membership->others(),
                    [&](Rank to) { net_.push_back(rank->header(to, Packet::Kind::Beat)); });
    }
  }
  void all_wait_for(RankMask silent) {
    for (auto& rank : ranks_)
      rank->membership->silence().set_owing_data(now_, silent & rank->membership->others());
  }
  /// All that live do what they can until nothing moves: start up to `end`, decide, complete.
  void work(int end, RankMask who = ~RankMask{0}) {
    for (int round = 0; round < 3 * end + 3; ++round) {
      for (auto& rank : ranks_) {
        if (!rank->dead && has(who, rank->self)) work_on(*rank, end);
      }
      beat();
      deliver();
    }
  }
  /// A decision of an owner, told to these ranks only.
  void decide(int owner, int n, int p, RankMask to) {
    (*this)[owner].decide(n, p, false);
    for_each_rank(to, [&](Rank rank) { (*this)[owner].send_decision(rank, n, p); });
    deliver();
  }
  int place_of(int owner, int n) {
    for (int p = 0; p < shape_.places; ++p) {
      if ((*this)[owner].owner(n, p) == owner) return p;
    }
    return -1;
  }

 private:
  std::unique_ptr<FakeRank> make(Rank rank, std::uint32_t incarnation) {
    return std::make_unique<FakeRank>(shape_, broken_, rank, incarnation, first_,
                                      [this](Packet packet) { net_.push_back(std::move(packet)); });
  }
  void settle(FakeRank& x) {
    x.now = now_;
    x.follow();
    Rank to = 0;
    ViewMessage message;
    while (x.change->poll_message(to, message)) {
      Packet packet = x.header(to, Packet::Kind::Control);
      packet.control = std::make_shared<ViewMessage>(std::move(message));
      net_.push_back(std::move(packet));
    }
    if (x.change->standing().departed) x.dead = true;
  }
  void work_on(FakeRank& x, int end) {
    while (x.started < end && x.may_start()) x.start();
    for (int n = x.completed; n < end; ++n) {
      x.send_contributions(n);
      for (int p = 0; p < shape_.places; ++p) {
        if (x.may_decide(n, p) && x.at(n, p).present != 0) x.decide(n, p, true);
      }
    }
    for (int n = 0; n < end; ++n) {
      for (int p = 0; p < shape_.places; ++p) {
        if (x.acts() && x.kept(n, p))
          for_each_rank(x.membership->others(), [&](Rank to) {
            if (x.membership->completed(to) <= static_cast<std::uint64_t>(n)) x.send_decision(to, n, p);
          });
      }
    }
    while (x.completed < end && x.may_complete()) x.complete();
  }

  Shape shape_;
  Broken broken_;
  View first_;
  std::vector<std::unique_ptr<FakeRank>> ranks_;
  std::vector<RankMask> links_;
  std::vector<Packet> net_;
  Time now_ = Time{} + Duration::millis(1000);
};

inline constexpr RankMask kAll4 = 0b1111;

inline Shape four() {
  return {.ranks = 4, .operations = 8, .places = 4, .min_ranks = 1};
}

/// The rank dies, the others wait for it and notice.
inline void lose(Script& group, int rank) {
  group.kill(rank);
  group.all_wait_for(bit_of(static_cast<Rank>(rank)));
  group.pass(Duration::millis(300));
}

template <typename Body>
bool is(const Packet& packet) {
  return packet.kind == Packet::Kind::Control && std::holds_alternative<Body>(packet.control->body);
}

}  // namespace views_test
