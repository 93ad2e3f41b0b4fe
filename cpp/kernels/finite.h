// Looks for numbers that are none.
#pragma once

#include <cstddef>

#include "kernels/dtype.h"

namespace optireduce {

/// Whether no element is an infinity or a NaN.
bool all_finite(DType dtype, const std::byte* data, std::size_t elements);

}  // namespace optireduce
