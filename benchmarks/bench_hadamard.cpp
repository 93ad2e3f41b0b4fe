// How fast hadamard_encode() and hadamard_decode() are, as GB/s of encoded floats, beside memcpy of as many
// bytes in the same run.
//
// Times are medians of CPU time. "both" is an encode and a decode: bytes / (time of one + time of the other).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "kernels/hadamard.h"
#include "kernels/hadamard_variants.h"
#include "kernels/reduce.h"
#include "race.h"

using namespace optireduce;

namespace {

constexpr std::size_t kMiB = 1 << 20;
constexpr std::size_t kLargestBytes = 100 * kMiB;
/// Room for the padding on the wire.
constexpr std::size_t kBufferBytes = kLargestBytes + kLargestBytes / 64;
constexpr std::size_t kRounds = 15;
/// Repetitions in one round add up to about this much, enough for the clock.
constexpr std::size_t kRoundBytes = 50 * kMiB;
constexpr std::align_val_t kPage{4096};

struct Free {
  void operator()(std::byte* memory) const { ::operator delete[](memory, kPage); }
};
using Buffer = std::unique_ptr<std::byte[], Free>;

/// Numbers of about 1 in every format: 0x3f3f3f3f.
Buffer make_buffer() {
  Buffer buffer(static_cast<std::byte*>(::operator new[](kBufferBytes, kPage)));
  std::memset(buffer.get(), 0x3f, kBufferBytes);
  return buffer;
}

struct Memory {
  Buffer values = make_buffer();
  Buffer wire = make_buffer();
  Buffer decoded = make_buffer();
};

void print_row(Memory& memory, DType dtype, std::size_t elements, std::size_t shift_bytes) {
  const HadamardLayout layout = hadamard_layout(elements);
  const std::byte* const in = memory.values.get();
  auto* const wire = reinterpret_cast<float*>(memory.wire.get() + shift_bytes);
  std::byte* const out = memory.decoded.get() + shift_bytes;
  const std::vector<float> scales(layout.stride + kHadamardGroup, 1.0F / 32.0F);
  const std::size_t bytes = elements * sizeof(float);
  const auto times =
      race({[=] { std::memcpy(wire, in, bytes); }, [=] { hadamard_encode(dtype, in, layout, 1, wire); },
            [=] { hadamard_decode(dtype, wire, layout, 1, {}, kHadamardCap, out); },
            [=] { hadamard_plain.encode(dtype, in, layout, 1, wire); },
            [=, &scales] { hadamard_plain.decode(dtype, wire, layout, 1, scales.data(), out); }},
           std::max<std::size_t>(1, kRoundBytes / bytes), kRounds);
  const auto rate = [bytes](double seconds) { return static_cast<double>(bytes) / seconds / 1e9; };
  const double copy = rate(times[0]), encode = rate(times[1]), both = rate(times[1] + times[2]);
  std::printf("%10zu %9s %6zu %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f\n", elements, name_of(dtype),
              shift_bytes, copy, encode, rate(times[2]), both, encode / copy, both / copy, rate(times[3]),
              rate(times[4]));
}

}  // namespace

int main() {
  Memory memory;
  std::printf("# kernels: %s. GB/s of float32; the last two columns are the portable kernels.\n",
              simd_level());
  std::printf("# %8s %9s %6s %8s %8s %8s %8s %8s %8s %8s %8s\n", "count", "type", "shift", "memcpy", "encode",
              "decode", "both", "encode/", "both/", "plain", "plain");
  std::printf("# %8s %9s %6s %8s %8s %8s %8s %8s %8s %8s %8s\n", "(values)", "", "(B)", "(GB/s)", "(GB/s)",
              "(GB/s)", "(GB/s)", "memcpy", "memcpy", "encode", "decode");
  for (const std::size_t mib : {1, 4, 16, 25, 32, 64, 100}) {
    print_row(memory, DType::Float32, mib * kMiB / sizeof(float), 0);
  }
  print_row(memory, DType::Float32, 16 * 1024, 0);
  print_row(memory, DType::Float32, 6'543'211, 0);
  print_row(memory, DType::Float32, 25 * kMiB / sizeof(float), 16);
  for (const DType dtype : {DType::BFloat16, DType::Float16}) {
    for (const std::size_t mib : {25, 100}) print_row(memory, dtype, mib * kMiB / sizeof(float), 0);
  }
}
