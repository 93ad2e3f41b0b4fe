#include "kernels/finite.h"

#include <cstdint>
#include <cstring>

namespace optireduce {
namespace {

/// An infinity or a NaN has all bits of its exponent set. No early exit: the compiler makes vector code of
/// it.
template <typename Bits>
bool no_full_exponent(const std::byte* data, std::size_t elements, Bits exponent) {
  Bits found = 0;
  for (std::size_t i = 0; i < elements; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * sizeof(Bits), sizeof(Bits));
    found = static_cast<Bits>(found | ((bits & exponent) == exponent ? 1 : 0));
  }
  return found == 0;
}

}  // namespace

bool all_finite(DType dtype, const std::byte* data, std::size_t elements) {
  switch (dtype) {
    case DType::Float32:
      return no_full_exponent<std::uint32_t>(data, elements, 0x7f80'0000u);
    case DType::Float64:
      return no_full_exponent<std::uint64_t>(data, elements, 0x7ff0'0000'0000'0000u);
    case DType::BFloat16:
      return no_full_exponent<std::uint16_t>(data, elements, 0x7f80u);
    case DType::Float16:
      return no_full_exponent<std::uint16_t>(data, elements, 0x7c00u);
    case DType::Int8Block:
      return int8_all_finite(data, elements);
  }
  return true;
}

}  // namespace optireduce
