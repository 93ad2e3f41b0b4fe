// The history of membership views: which view an operation belongs to, and what became of orphan shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "views/view_values.h"

namespace optireduce {

/// What became of the packets of one chunk of an orphan shard. All zero: its owner serves it.
struct ChunkFate {
  std::uint64_t passed = 0, gone = 0,
                voided = 0;  // disjoint; voided has the bits beyond the chunk's end, too
  RankMask holders = 0;      // whom to ask for what was passed on
};

/// The views that operations which are not complete everywhere belong to, oldest first. Never empty.
class ViewHistory {
 public:
  explicit ViewHistory(View first) { views_.push_back(std::move(first)); }

  const View& newest() const { return views_.back(); }
  /// The newest view with cut <= operation. The oldest one for operations that are forgotten.
  const View& view_of(std::uint64_t operation) const;
  void append(View view) { views_.push_back(std::move(view)); }
  /// Takes over the history of others; for a rank that joins.
  void replace(std::span<const View> views) { views_.assign(views.begin(), views.end()); }
  /// Forgets the views that no operation from here on belongs to.
  void forget_before(std::uint64_t operation);
  /// The views from view_of(operation) on. Only the newest has its orphan table.
  std::vector<View> since(std::uint64_t operation) const;
  const std::deque<View>& all() const { return views_; }

  RankMask members_of(std::uint64_t operation) const { return view_of(operation).members; }
  /// Members of the operation's view that no longer serve it. Their shards are in the orphan table.
  RankMask orphans_of(std::uint64_t operation) const;
  ChunkFate fate(std::uint64_t operation, Rank owner, std::size_t chunk) const;
  /// The view that ended an exact operation with an error, or null.
  const View* failed_by(std::uint64_t operation, bool exact) const;

 private:
  std::deque<View> views_;
};

}  // namespace optireduce
