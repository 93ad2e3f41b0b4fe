// Several ways to do the same, measured side by side: they take turns, so that a noisy neighbour disturbs all
// alike, and CPU time counts, which other programs disturb less than the clock on the wall.
#pragma once

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <functional>
#include <vector>

inline double seconds_per_call(const std::function<void()>& call, std::size_t repetitions) {
  const std::clock_t start = std::clock();
  for (std::size_t i = 0; i < repetitions; ++i) call();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC / static_cast<double>(repetitions);
}

/// The median seconds of one call of each contender.
inline std::vector<double> race(const std::vector<std::function<void()>>& contenders, std::size_t repetitions,
                                std::size_t rounds) {
  std::vector<std::vector<double>> times(contenders.size());
  for (const auto& contender : contenders) contender();
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i)
      times[i].push_back(seconds_per_call(contenders[i], repetitions));
  }
  std::vector<double> medians;
  for (auto& mine : times) {
    const auto middle = mine.begin() + static_cast<std::ptrdiff_t>(rounds / 2);
    std::nth_element(mine.begin(), middle, mine.end());
    medians.push_back(*middle);
  }
  return medians;
}
