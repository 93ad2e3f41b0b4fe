#include "views/view.h"

#include <algorithm>
#include <functional>

namespace optireduce {

bool View::is_sound() const {
  const bool in_order =
      std::ranges::adjacent_find(orphans, std::greater_equal(), &OrphanShard::key) == orphans.end() &&
      std::ranges::adjacent_find(failed, std::greater_equal()) == failed.end();
  return members != 0 && first <= cut && (joined & ~members) == 0 && in_order;
}

bool follow_each_other(const std::vector<View>& views) {
  const auto is_gap = [](const View& older, const View& newer) {
    return older.number + 1 != newer.number || older.cut > newer.cut;
  };
  return !views.empty() && std::ranges::adjacent_find(views, is_gap) == views.end();
}

const View& ViewHistory::view_of(std::uint64_t operation) const {
  for (auto view = views_.rbegin(); view != views_.rend(); ++view) {
    if (view->cut <= operation) return *view;
  }
  return views_.front();
}

void ViewHistory::forget_before(std::uint64_t operation) {
  const std::uint64_t oldest = view_of(operation).number;
  while (views_.front().number < oldest) views_.pop_front();
}

std::vector<View> ViewHistory::since(std::uint64_t operation) const {
  const std::uint64_t oldest = view_of(operation).number;
  std::vector<View> found;
  for (const View& view : views_) {
    if (view.number < oldest) continue;
    found.push_back(view);
    if (view.number == newest().number) continue;
    found.back().orphans.clear();
    found.back().first = view.cut;  // covers nothing any more
  }
  return found;
}

RankMask ViewHistory::orphans_of(std::uint64_t operation) const {
  RankMask orphans = 0;
  for_each_rank(members_of(operation), [&](Rank rank) {
    if (!newest().serves(rank, operation)) orphans |= bit_of(rank);
  });
  return orphans;
}

namespace {

std::uint64_t word(const std::vector<std::uint64_t>& words, std::size_t index) {
  return index < words.size() ? words[index] : 0;
}

ChunkFate fate_in(const View& view, std::uint64_t operation, Rank owner, std::size_t chunk) {
  const OrphanShard* shard = view.orphan(operation, owner);
  if (shard == nullptr) return {.voided = ~std::uint64_t{0}};
  ChunkFate fate{.passed = word(shard->passed, chunk), .holders = shard->holders};
  (shard->rest_gone ? fate.gone : fate.voided) = ~fate.passed;
  return fate;
}

}  // namespace

// What one view made void stays void: a later table may count such packets as gone, because only ranks that
// keep a packet report it.
ChunkFate ViewHistory::fate(std::uint64_t operation, Rank owner, std::size_t chunk) const {
  ChunkFate fate;
  if (newest().serves(owner, operation) || !has(members_of(operation), owner)) return fate;
  for (const View& view : views_) {
    const bool in_table = view.first <= operation && operation < view.cut;
    if (!in_table || view.serves(owner, operation)) continue;
    const std::uint64_t voided = fate.voided;
    fate = fate_in(view, operation, owner, chunk);
    fate.voided |= voided;
  }
  fate.passed &= ~fate.voided;
  fate.gone &= ~fate.voided;
  return fate;
}

const View* ViewHistory::failed_by(std::uint64_t operation, bool exact) const {
  const auto found =
      std::ranges::find_if(views_, [&](const View& view) { return view.fails(operation, exact); });
  return found == views_.end() ? nullptr : &*found;
}

}  // namespace optireduce
