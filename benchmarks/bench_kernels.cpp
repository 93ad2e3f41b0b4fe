// How fast reduce() is, as GB/s of input read, beside memcpy of one input in the same run.
//
// "hot" is the engine's case: chunks of 64 KB that have just arrived. "cold" is a 25 MB bucket from memory.
// Times are medians of CPU time.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/reduce.h"
#include "kernels/reduce_variants.h"
#include "race.h"

using namespace optireduce;

namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t kMaxInputs = 8;
constexpr std::size_t kHotBytes = 64 * 1024;
constexpr std::size_t kColdBytes = 25 * 1000 * 1000;
constexpr std::size_t kRounds = 7;
/// Repetitions in one round add up to about this much input, enough for the clock.
constexpr std::size_t kRoundBytes = 50 * 1000 * 1000;

double gigabytes_per_second(std::size_t bytes, double seconds) {
  return static_cast<double>(bytes) / seconds / 1e9;
}

struct Memory {
  Memory() : out(kColdBytes) {
    for (std::size_t k = 0; k < kMaxInputs; ++k) {
      // Numbers of about 1 in every format: 0x3f3f3f3f.
      inputs.emplace_back(kColdBytes, std::byte{0x3f});
      pointers.push_back(inputs.back().data());
    }
  }
  std::vector<Bytes> inputs;
  std::vector<const std::byte*> pointers;
  Bytes out;
};

void print_row(Memory& memory, DType dtype, std::size_t inputs, std::size_t bytes) {
  const std::span<const std::byte* const> sources(memory.pointers.data(), inputs);
  const std::size_t elements = bytes / size_of(dtype);
  std::byte* const out = memory.out.data();
  const auto with = [&](ReduceVariant variant, double divisor) {
    return [=] { variant(dtype, sources, divisor, out, elements); };
  };
  const auto times = race({with(&reduce, 1.0), with(&reduce, static_cast<double>(inputs + 1)),
                           with(&reduce_plain, 1.0), [=] { std::memcpy(out, sources[0], bytes); }},
                          std::max<std::size_t>(1, kRoundBytes / (inputs * bytes)), kRounds);
  const std::size_t read = inputs * bytes;
  const double sum = gigabytes_per_second(read, times[0]);
  const double copy = gigabytes_per_second(bytes, times[3]);
  std::printf("%10zu %10zu %9s %7zu %5s %10.1f %9.2f %9.2f %9.2f %9.2f %9.2f\n", bytes, elements,
              name_of(dtype), inputs, bytes == kHotBytes ? "hot" : "cold", times[0] * 1e6, sum,
              gigabytes_per_second(read, times[1]), gigabytes_per_second(read, times[2]), copy, sum / copy);
}

void print_copy(Memory& memory, std::size_t bytes) {
  std::byte* const out = memory.out.data();
  const std::byte* const source = memory.pointers[0];
  const auto times =
      race({[=] { copy_streaming(out, source, bytes); }, [=] { std::memcpy(out, source, bytes); }},
           std::max<std::size_t>(1, kRoundBytes / bytes), kRounds);
  std::printf("# copy_streaming %zu bytes: %.2f GB/s, memcpy %.2f GB/s\n", bytes,
              gigabytes_per_second(bytes, times[0]), gigabytes_per_second(bytes, times[1]));
}

}  // namespace

int main() {
  Memory memory;
  std::printf("# kernels: %s. GB/s of input read; mean divides by inputs + 1; memcpy reads one input.\n",
              simd_level());
  std::printf("# %8s %10s %9s %7s %5s %10s %9s %9s %9s %9s %9s\n", "size", "count", "type", "inputs", "cache",
              "time", "sum", "mean", "plain", "memcpy", "sum/");
  std::printf("# %8s %10s %9s %7s %5s %10s %9s %9s %9s %9s %9s\n", "(B)", "(elements)", "", "", "", "(us)",
              "(GB/s)", "(GB/s)", "(GB/s)", "(GB/s)", "memcpy");
  for (const std::size_t bytes : {kHotBytes, kColdBytes}) {
    for (const DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16}) {
      for (const std::size_t inputs : {1, 2, 4, 8}) print_row(memory, dtype, inputs, bytes);
    }
    print_copy(memory, bytes);
  }
}
