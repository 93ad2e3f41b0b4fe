// How messages become bytes (little-endian) and come back. A message lists its fields once, in
// fields(codec, message): a Writer appends them, a Reader fills them in and checks them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/rank_mask.h"

namespace optireduce {

// Far above what max_lag leaves unfinished: a peer's claims must not cost more memory than this.
inline constexpr std::size_t kMostEntries = 1 << 16;
inline constexpr std::size_t kMostWords = 1 << 18;  // of all bit maps of a message: 2 MB

class Writer {
 public:
  template <typename... Values>
  void all(const Values&... values) {
    (one(values), ...);
  }
  template <typename... Masks>
  void masks(Masks... masks) {
    all(masks...);
  }
  /// Equal words in a row are written once: shards are mostly held as a whole or not at all. Each part begins
  /// with twice its length, and one more if its words differ.
  void words(const std::vector<std::uint64_t>& words) {
    one(static_cast<std::uint32_t>(words.size()));
    for (auto begin = words.begin(); begin != words.end();) {
      const bool differ = begin + 1 == words.end() || *begin != *(begin + 1);
      const auto end = differ ? std::adjacent_find(begin, words.end())
                              : std::find_if(begin, words.end(), [&](auto word) { return word != *begin; });
      one(static_cast<std::uint32_t>(2 * (end - begin) + (differ ? 1 : 0)));
      std::for_each(begin, differ ? end : begin + 1, [&](std::uint64_t word) { one(word); });
      begin = end;
    }
  }
  void require(bool) {}
  bool fits_group(std::size_t) const { return true; }
  void raw(std::span<const std::byte> data) { out_.insert(out_.end(), data.begin(), data.end()); }
  std::vector<std::byte> take() { return std::move(out_); }

 private:
  template <typename Value>
  void one(const Value& value) {
    if constexpr (std::is_class_v<Value>) {
      Value::fields(*this, value);
    } else {
      for (std::size_t i = 0; i < sizeof(value); ++i)
        out_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xff));
    }
  }
  template <typename Entry>
  void one(const std::vector<Entry>& list) {
    one(static_cast<std::uint32_t>(list.size()));
    for (const Entry& entry : list) one(entry);
  }
  template <typename First, typename Second>
  void one(const std::pair<First, Second>& pair) {
    all(pair.first, pair.second);
  }
  template <typename Value>
  void one(const std::optional<Value>& value) {
    one(value.has_value());
    if (value) one(*value);
  }

  std::vector<std::byte> out_;
};

/// After the first wrong byte nothing more is read, and ok() is false.
class Reader {
 public:
  /// `ranks`: size of the group. Ranks beyond it are refused.
  Reader(std::span<const std::byte> in, std::size_t ranks) : in_(in), ranks_(ranks) {}

  template <typename... Values>
  void all(Values&... values) {
    (one(values), ...);
  }
  template <typename... Masks>
  void masks(Masks&... masks) {
    all(masks...);
    require(((masks | ...) & ~first_ranks(ranks_)) == 0);
  }
  void words(std::vector<std::uint64_t>& words) {
    const std::size_t count = number<std::uint32_t>();
    require(count <= kMostWords - words_);
    if (ok_) words_ += count;
    while (ok_ && words.size() < count) {
      const auto part = number<std::uint32_t>();
      const std::size_t length = part / 2, copies = part % 2 == 1 ? 1 : length;
      require(length != 0 && length <= count - words.size());
      for (std::size_t done = 0; ok_ && done < length; done += copies)
        words.insert(words.end(), copies, number<std::uint64_t>());
    }
  }
  /// Unchecked but for its length.
  template <typename Number>
  Number number() {
    require(sizeof(Number) <= in_.size());
    if (!ok_) return 0;
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(Number); ++i)
      value |= std::to_integer<std::uint64_t>(in_[i]) << (8 * i);
    in_ = in_.subspan(sizeof(Number));
    return static_cast<Number>(value);
  }
  void require(bool condition) { ok_ = ok_ && condition; }
  bool fits_group(std::size_t entries) const { return entries == ranks_; }
  std::span<const std::byte> rest() const { return in_; }
  bool ok() const { return ok_; }

 private:
  template <typename Value>
  void one(Value& value) {
    if constexpr (std::is_class_v<Value>) {
      Value::fields(*this, value);
    } else if constexpr (std::is_enum_v<Value>) {
      value = static_cast<Value>(up_to(static_cast<std::uint8_t>(Value::Last)));
    } else if constexpr (std::is_same_v<Value, bool>) {
      value = up_to(1) != 0;
    } else {
      value = number<Value>();
      if constexpr (std::is_same_v<Value, Rank>) require(value < ranks_);
    }
  }
  std::uint8_t up_to(std::uint8_t most) {
    const auto value = number<std::uint8_t>();
    require(value <= most);
    return value;
  }
  // Entries are made one by one, as long as there are bytes: a false length costs no memory.
  template <typename Entry>
  void one(std::vector<Entry>& list) {
    const std::size_t count = number<std::uint32_t>();
    require(count <= kMostEntries && count <= in_.size());
    for (std::size_t i = 0; ok_ && i < count; ++i) one(list.emplace_back());
  }
  template <typename First, typename Second>
  void one(std::pair<First, Second>& pair) {
    all(pair.first, pair.second);
  }
  template <typename Value>
  void one(std::optional<Value>& value) {
    bool present = false;
    one(present);
    if (ok_ && present) one(value.emplace());
  }

  std::span<const std::byte> in_;
  std::size_t ranks_;
  std::size_t words_ = 0;  // of the bit maps so far
  bool ok_ = true;
};

template <typename Message>
std::vector<std::byte> to_bytes(const Message& message) {
  Writer out;
  out.all(message);
  return out.take();
}

/// Nothing, unless all of `bytes` is one message of a group of `ranks`.
template <typename Message>
std::optional<Message> from_bytes(std::span<const std::byte> bytes, std::size_t ranks) {
  Reader in(bytes, ranks);
  Message message;
  in.all(message);
  if (!in.ok() || !in.rest().empty()) return std::nullopt;
  return message;
}

}  // namespace optireduce
