// Little-endian reading and writing of view messages. A reader that met something wrong yields zeros from
// then on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/rank_mask.h"

namespace optireduce::bytes {

class Writer {
 public:
  void u8(std::uint8_t value) { put(value, 1); }
  void u16(std::uint16_t value) { put(value, 2); }
  void u32(std::uint32_t value) { put(value, 4); }
  void u64(std::uint64_t value) { put(value, 8); }
  void flag(bool value) { put(value ? 1 : 0, 1); }
  void raw(std::span<const std::byte> data) { out_.insert(out_.end(), data.begin(), data.end()); }
  std::vector<std::byte> take() { return std::move(out_); }

 private:
  void put(std::uint64_t value, int size) {
    for (int i = 0; i < size; ++i) out_.push_back(static_cast<std::byte>(value >> (8 * i) & 0xff));
  }

  std::vector<std::byte> out_;
};

class Reader {
 public:
  /// `size`: ranks of the group.
  Reader(std::span<const std::byte> in, std::size_t size) : in_(in), size_(size) {}

  std::uint8_t u8() { return static_cast<std::uint8_t>(get(1)); }
  std::uint16_t u16() { return static_cast<std::uint16_t>(get(2)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(get(4)); }
  std::uint64_t u64() { return get(8); }
  std::uint8_t up_to(std::uint8_t most) {
    const std::uint8_t value = u8();
    if (value > most) refuse();
    return ok_ ? value : std::uint8_t{0};
  }
  bool flag() { return up_to(1) != 0; }
  Rank rank() {
    const std::uint16_t value = u16();
    if (value >= size_) refuse();
    return ok_ ? value : Rank{0};
  }
  RankMask mask() {
    const RankMask value = u64();
    if ((value & ~first_ranks(size_)) != 0) refuse();
    return ok_ ? value : 0;
  }
  /// The length of a list whose entries take at least `entry_bytes` each, so it cannot exceed what is left.
  std::size_t count(std::size_t entry_bytes, std::size_t most) {
    const std::size_t value = u32();
    if (value > most || value > in_.size() / entry_bytes) refuse();
    return ok_ ? value : 0;
  }
  /// The length of a list that may be longer than its encoding. All lists of a message together have at most
  /// `most`.
  std::size_t words(std::size_t most) {
    const std::size_t value = u32();
    if (value > most - words_) refuse();
    if (ok_) words_ += value;
    return ok_ ? value : 0;
  }
  std::span<const std::byte> rest() const { return in_; }

  std::size_t size() const { return size_; }
  bool ok() const { return ok_; }
  bool at_end() const { return in_.empty(); }
  void refuse() { ok_ = false; }

 private:
  std::uint64_t get(std::size_t bytes) {
    if (bytes > in_.size()) refuse();
    if (!ok_) return 0;
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) value |= std::to_integer<std::uint64_t>(in_[i]) << (8 * i);
    in_ = in_.subspan(bytes);
    return value;
  }

  std::span<const std::byte> in_;
  std::size_t size_;
  std::size_t words_ = 0;
  bool ok_ = true;
};

}  // namespace optireduce::bytes
