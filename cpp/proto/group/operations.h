// The operations of a group: open ones, and the log of finished ones that somebody may still ask for.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <ranges>
#include <utility>

#include "operation/operation.h"

namespace optireduce {

class Operations {
 public:
  using Key = std::pair<std::uint64_t, Scope>;
  using Map = std::map<Key, std::unique_ptr<Operation>>;
  using Range = std::ranges::subrange<Map::const_iterator>;  // oldest first

  /// The operation, or null.
  Operation* find(std::uint64_t number, Scope scope = Scope::All) const {
    const auto found = all_.find({number, scope});
    return found == all_.end() ? nullptr : found->second.get();
  }
  Operation* find_open(std::uint64_t number, Scope scope = Scope::All) const {
    return number < first_open_ ? nullptr : find(number, scope);
  }
  Operation& add(std::unique_ptr<Operation> operation) {
    const Key key{operation->number(), operation->setup().scope};
    return *(all_[key] = std::move(operation));
  }
  /// Of all operations before this one.
  std::size_t bytes_before(std::uint64_t number) const {
    std::size_t bytes = 0;
    for (const auto& [key, operation] : open()) bytes += key.first < number ? operation->bytes() : 0;
    return bytes;
  }
  Range all() const { return {all_.begin(), all_.end()}; }
  Range log() const { return {all_.begin(), first_of(first_open_)}; }
  Range open() const { return {first_of(first_open_), all_.end()}; }
  /// The stages of one, of which only a grid has more than one.
  Range stages(std::uint64_t number) const { return {first_of(number), first_of(number + 1)}; }

  /// The oldest open one is over. They end in order.
  void move_to_log(std::uint64_t number) { first_open_ = number + 1; }
  void erase(std::uint64_t number) { all_.erase(first_of(number), first_of(number + 1)); }
  void erase_open() { all_.erase(first_of(first_open_), all_.end()); }
  /// Forgets what is logged below.
  void forget_below(std::uint64_t number) {
    all_.erase(all_.begin(), first_of(std::min(number, first_open_)));
  }

 private:
  Map::const_iterator first_of(std::uint64_t number) const { return all_.lower_bound({number, Scope::All}); }

  Map all_;
  std::uint64_t first_open_ = 0;  // those before are the log
};

}  // namespace optireduce
