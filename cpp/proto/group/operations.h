// The operations of a group: open ones, and the log of finished ones that somebody may still ask for.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "operation/operation.h"

namespace optireduce {

class Operations {
 public:
  using Key = std::pair<std::uint64_t, Scope>;
  using Map = std::map<Key, std::unique_ptr<Operation>>;

  /// The operation, or null.
  Operation* find_open(std::uint64_t number, Scope scope = Scope::All) const {
    return find(open_, {number, scope});
  }
  Operation* find_logged(std::uint64_t number) const { return find(log_, {number, Scope::All}); }
  Operation* find_any(std::uint64_t number, Scope scope = Scope::All) const {
    Operation* const open = find_open(number, scope);
    return open != nullptr ? open : find(log_, {number, scope});
  }
  Operation& add(std::unique_ptr<Operation> operation) {
    const Key key{operation->number(), operation->setup().scope};
    return *(open_[key] = std::move(operation));
  }
  /// Of all operations before this one.
  std::size_t bytes_before(std::uint64_t number) const {
    std::size_t bytes = 0;
    for (const auto& [key, operation] : open_) bytes += key.first < number ? operation->bytes() : 0;
    return bytes;
  }
  /// Oldest first.
  const Map& open() const { return open_; }
  const Map& log() const { return log_; }

  void move_to_log(std::uint64_t number) {
    const auto end = first_of(open_, number + 1);
    for (auto entry = first_of(open_, number); entry != end;) log_.insert(open_.extract(entry++));
  }
  void erase_open(std::uint64_t number) { open_.erase(first_of(open_, number), first_of(open_, number + 1)); }
  /// Forgets what is logged below.
  void forget_below(std::uint64_t number) { log_.erase(log_.begin(), first_of(log_, number)); }

 private:
  static Operation* find(const Map& map, const Key& key) {
    const auto found = map.find(key);
    return found == map.end() ? nullptr : found->second.get();
  }

  static Map::iterator first_of(Map& map, std::uint64_t number) {
    return map.lower_bound({number, Scope::All});
  }

  Map open_, log_;
};

}  // namespace optireduce
