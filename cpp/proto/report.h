// How an operation ended.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/config.h"
#include "proto/time.h"

namespace optireduce {

enum class ErrorCode : std::uint8_t { None = 0, Timeout = 1, Mismatch = 2, Closed = 3 };

struct Report {
  std::uint64_t operation = 0;
  std::uint64_t bytes = 0;
  Duration elapsed;
  std::uint64_t repaired_bytes = 0;  // bytes that arrived only because we asked again
  std::uint64_t lost_bytes =
      0;  // bytes of the result that never arrived (0 while operations run to completion)
  ErrorCode error = ErrorCode::None;
  std::string message;      // for people; empty without an error
  std::vector<Rank> ranks;  // at fault
};

}  // namespace optireduce
