// Many seeds of World, with or without a broken rule.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>

#include "views_quiet.h"
#include "views_run.h"

namespace views_test {

struct Outcome {
  int violations = 0;
  std::uint64_t schedules = 0;
  std::string first;
};

inline Outcome run_seeds(const Shape& shape, const Broken& broken, std::uint64_t first, std::uint64_t count,
                         Totals& totals) {
  Outcome outcome;
  while (outcome.schedules < count && outcome.violations == 0) {
    const std::uint64_t seed = first + outcome.schedules++;
    World world(shape, broken, seed);
    try {
      world.run(totals);
    } catch (const std::exception& error) {
      ++outcome.violations;
      outcome.first = "seed " + std::to_string(seed) + ": " + error.what() + "\n" + world.describe();
    }
  }
  return outcome;
}

/// OPTIREDUCE_SEEDS asks for another number of schedules of each kind.
inline std::uint64_t seeds(std::uint64_t usual) {
  const char* text = std::getenv("OPTIREDUCE_SEEDS");
  return text == nullptr ? usual : std::strtoull(text, nullptr, 10);
}

}  // namespace views_test
