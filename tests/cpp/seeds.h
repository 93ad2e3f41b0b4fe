// A test over many seeds, as a program:
//
//   program                        kSeeds of them
//   program --seed K               one of them again, with more to read
//   program --first A --count N
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSeeds = 100;  // each takes ten times as long
#else
constexpr std::uint64_t kSeeds = 1000;
#endif

/// Why a seed fails; empty if it does not.
using SeedTest = std::string (*)(std::uint64_t seed, bool verbose);

inline std::string run_safely(SeedTest test, std::uint64_t seed, bool verbose) {
  try {
    return test(seed, verbose);
  } catch (const std::exception& error) {
    return error.what();
  }
}

inline int run_seeds(int argc, char** argv, SeedTest test) {
  std::uint64_t first = 0, count = kSeeds;
  bool verbose = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::uint64_t value = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--seed") == 0) first = value, count = 1, verbose = true;
    if (std::strcmp(argv[i], "--first") == 0) first = value;
    if (std::strcmp(argv[i], "--count") == 0) count = value;
  }
  std::uint64_t failed = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const std::string why = run_safely(test, seed, verbose);
    if (why.empty()) continue;
    ++failed;
    std::printf("FAILED seed %llu: %s (again: %s --seed %llu)\n", static_cast<unsigned long long>(seed),
                why.c_str(), argv[0], static_cast<unsigned long long>(seed));
  }
  std::printf("%llu seeds, %llu failed\n", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(failed));
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
