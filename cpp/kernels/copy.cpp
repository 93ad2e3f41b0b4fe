// A copy whose destination bypasses the cache.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/reduce.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace optireduce {

#if defined(__SSE2__)

namespace {

constexpr std::size_t kLine = 64;

/// `destination` is aligned to a cache line. Whole lines are written at once: a line written in parts would
/// be read from memory first.
void stream_lines(std::byte* destination, const std::byte* source, std::size_t lines) {
  for (std::size_t line = 0; line < lines; ++line, destination += kLine, source += kLine) {
    const auto* from = reinterpret_cast<const __m128i*>(source);
    auto* to = reinterpret_cast<__m128i*>(destination);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
}

}  // namespace

void copy_streaming(std::byte* destination, const std::byte* source, std::size_t bytes) {
  if (bytes == 0) return;
  const std::size_t past_line = reinterpret_cast<std::uintptr_t>(destination) % kLine;
  const std::size_t head = std::min(bytes, (kLine - past_line) % kLine);
  const std::size_t lines = (bytes - head) / kLine;
  const std::size_t tail = head + lines * kLine;
  std::memcpy(destination, source, head);
  stream_lines(destination + head, source + head, lines);
  std::memcpy(destination + tail, source + tail, bytes - tail);
}

void finish_streaming() {
  _mm_sfence();
}

#else

void copy_streaming(std::byte* destination, const std::byte* source, std::size_t bytes) {
  if (bytes != 0) std::memcpy(destination, source, bytes);
}

void finish_streaming() {}

#endif

}  // namespace optireduce
