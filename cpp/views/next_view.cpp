#include "views/next_view.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace optireduce {

namespace {

using Words = std::vector<std::uint64_t>;
using States = std::map<Rank, State>;

// Far more than max_lag ever leaves unfinished. States with more are not believed.
constexpr std::uint64_t kMostOperations = 1 << 16;

void unite(Words& into, const Words& words) {
  if (into.size() < words.size()) into.resize(words.size(), 0);
  for (std::size_t i = 0; i < words.size(); ++i) into[i] |= words[i];
}

std::uint64_t bits_in(const Words& words) {
  std::uint64_t sum = 0;
  for (std::uint64_t word : words) sum += static_cast<std::uint64_t>(std::popcount(word));
  return sum;
}

void trim(Words& words) {
  while (!words.empty() && words.back() == 0) words.pop_back();
}

/// What the states say about one shard.
struct Shard {
  std::optional<std::uint32_t> packets;
  RankMask holders = 0;
  Words held;

  void add(Rank rank, const HeldShard& part) {
    packets = std::max(packets, std::optional(part.packets));
    unite(held, part.held);
    if (bits_in(part.held) != 0) holders |= bit_of(rank);
  }
  bool all_held() const { return packets && bits_in(held) >= *packets; }
};

/// What the states say about an operation that is not complete everywhere.
struct Open {
  bool exact = false;
  RankMask decided = 0;  // owners whose own shard is
};

/// Computes the view from the states of those that stay.
class NextView {
 public:
  NextView(const ViewHistory& history, const Propose& propose, const States& states)
      : history_(history), old_(history.newest()), propose_(propose), states_(states) {
    view_.members = old_.members & ~propose.without;
    view_.removed = old_.members & propose.without;
    view_.number = old_.number + 1;
    view_.ranks = old_.ranks;
    for_each_rank(view_.removed, [&](Rank rank) { view_.ranks[rank].changed_at = view_.number; });
    std::erase_if(states_, [&](const auto& answer) { return !has(view_.members, answer.first); });
  }

  std::optional<View> compute(std::size_t min_ranks) {
    set_cut();
    // What all members of a view had completed must not be undone.
    if (states_.empty() || furthest_ < old_.stable) return std::nullopt;
    for (const auto& [rank, request] : propose_.joiners) {
      if (fits(rank)) admit(rank, request);
    }
    if (static_cast<std::size_t>(count_of(view_.members)) < min_ranks) return std::nullopt;
    if (view_.cut - std::min(view_.cut, view_.first) > kMostOperations) return std::nullopt;
    gather();
    for (std::uint64_t operation = view_.first; operation < view_.cut; ++operation) settle(operation);
    return std::move(view_);
  }

 private:
  void set_cut() {
    view_.cut = old_.cut;
    view_.base = ~std::uint64_t{0};
    for (const auto& [rank, state] : states_) {
      view_.cut = std::max(view_.cut, state.reach_end);
      view_.base = std::min(view_.base, state.completed);
      furthest_ = std::max(furthest_, state.completed);
    }
    view_.stable = std::max(old_.stable, view_.base);
    view_.first = view_.base;
  }

  bool fits(Rank joiner) const {
    bool one_fits = false;
    for (const auto& [rank, state] : states_) {
      for (const auto& [judged, verdict] : state.verdicts) {
        if (judged != joiner) continue;
        if (verdict == Verdict::Snapshot) return false;
        one_fits |= verdict == Verdict::Fits;
      }
    }
    return one_fits;
  }

  void admit(Rank rank, const Join& request) {
    view_.members |= bit_of(rank);
    view_.joined |= bit_of(rank);
    view_.ranks[rank] = {.since = view_.cut,
                         .changed_at = view_.number,
                         .incarnation = request.incarnation,
                         .completed = request.completed,
                         .digest = request.digest};
    view_.first = std::min(view_.first, request.completed);
  }

  void gather() {
    for (const auto& [rank, state] : states_) {
      for (const HeldShard& part : state.held) shards_[{part.operation, part.owner}].add(rank, part);
      for (const OpenOperation& open : state.open) {
        Open& known = open_[open.operation];
        known.exact |= open.exact;
        if (open.own_shard_decided) known.decided |= bit_of(rank);
      }
    }
  }

  void settle(std::uint64_t operation) {
    const bool over = furthest_ > operation;
    if (!over && view_.removed != 0 && fails_if_exact(operation)) view_.failed.push_back(operation);
    for_each_rank(history_.members_of(operation), [&](Rank owner) {
      if (!view_.serves(owner, operation)) settle_orphan(operation, owner, over);
    });
  }

  // Unknown to all that stay: nobody could say later whether it can still be complete.
  bool fails_if_exact(std::uint64_t operation) {
    const auto open = open_.find(operation);
    if (open == open_.end()) return true;
    bool complete = true;
    for_each_rank(history_.members_of(operation), [&](Rank owner) {
      const bool serves = view_.serves(owner, operation);
      complete &= serves ? has(open->second.decided, owner) : shards_[{operation, owner}].all_held();
    });
    return open->second.exact && !complete;
  }

  void settle_orphan(std::uint64_t operation, Rank owner, bool over) {
    const Shard& shard = shards_[{operation, owner}];
    OrphanShard orphan{.operation = operation,
                       .owner = owner,
                       .rest_gone = over,
                       .holders = shard.holders,
                       .passed = shard.held};
    trim(orphan.passed);
    if (over || !orphan.passed.empty()) view_.orphans.push_back(std::move(orphan));
  }

  const ViewHistory& history_;
  const View& old_;
  const Propose& propose_;
  States states_;
  std::uint64_t furthest_ = 0;  // completed by one of them
  std::map<std::pair<std::uint64_t, Rank>, Shard> shards_;
  std::map<std::uint64_t, Open> open_;
  View view_;
};

std::uint64_t least_completed(const Membership& membership, const Journal& journal, const Propose& propose) {
  std::uint64_t least = journal.completed();
  for_each_rank(membership.others(), [&](Rank rank) { least = std::min(least, membership.completed(rank)); });
  for (const auto& [rank, request] : propose.joiners) least = std::min(least, request.completed);
  return least;
}

}  // namespace

Verdict judge(const Membership& membership, const Journal& journal, Rank rank, const Join& request) {
  if (request.incarnation < membership.view().ranks[rank].incarnation) return Verdict::Snapshot;
  if (journal.completed() < request.completed) return Verdict::Later;
  if (journal.floor() > request.completed) return Verdict::Snapshot;
  return journal.digest(request.completed) == request.digest ? Verdict::Fits : Verdict::Snapshot;
}

State describe(const Membership& membership, const Journal& journal, const Propose& propose,
               const Agreement& agreement) {
  State state;
  state.ballot = propose.ballot;
  state.adopted = agreement.adopted;
  state.completed = journal.completed();
  state.reach_end = agreement.reach_end;
  state.open = journal.open();
  for (const auto& [rank, request] : propose.joiners) {
    state.verdicts.emplace_back(rank, judge(membership, journal, rank, request));
  }
  if (state.adopted) return state;  // it is proposed again as it is, and says what is held
  std::uint64_t first = least_completed(membership, journal, propose);
  if (state.reach_end > kMostOperations) first = std::max(first, state.reach_end - kMostOperations);
  for (std::uint64_t operation = first; operation < state.reach_end; ++operation) {
    const RankMask going = membership.history().members_of(operation) & propose.without;
    const RankMask owners = going | membership.history().orphans_of(operation);
    if (owners == 0) continue;
    for (HeldShard& shard : journal.held(operation, owners)) state.held.push_back(std::move(shard));
  }
  return state;
}

Install views_to_tell(const ViewHistory& history, const Journal& journal) {
  return {history.since(std::min(history.newest().first, journal.floor()))};
}

std::optional<View> next_view(const ViewHistory& history, const Propose& propose,
                              const std::map<Rank, State>& states, std::size_t min_ranks) {
  return NextView(history, propose, states).compute(min_ranks);
}

}  // namespace optireduce
