#include "engine/running_clock.h"

#include <time.h>

namespace optireduce {

Time monotonic_time() {
  timespec spec;
  clock_gettime(CLOCK_MONOTONIC, &spec);
  return {std::int64_t{spec.tv_sec} * 1'000'000'000 + spec.tv_nsec};
}

}  // namespace optireduce
