// The fuzzer's bytes, read as numbers. Past the end everything is zero, so every input means something.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

namespace fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }

  template <typename T>
  T take() {
    T value{};
    const std::size_t bytes = rest_.size() < sizeof(T) ? rest_.size() : sizeof(T);
    if (bytes != 0) std::memcpy(&value, rest_.data(), bytes);
    rest_ = rest_.subspan(bytes);
    return value;
  }
  std::uint8_t byte() { return take<std::uint8_t>(); }
  /// In [0, bound).
  std::uint32_t below(std::uint32_t bound) { return byte() % bound; }

  void fill(std::span<std::byte> out) {
    for (std::byte& each : out) each = static_cast<std::byte>(byte());
  }

 private:
  std::span<const std::uint8_t> rest_;
};

/// An invariant that does not hold ends the program: that is how a fuzzer notices.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken invariant: %s\n", what);
  std::abort();
}

}  // namespace fuzz
