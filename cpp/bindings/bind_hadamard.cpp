// Python's view of the Hadamard transform: memory is passed as addresses, which the caller keeps alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/hadamard.h"

namespace nb = nanobind;

namespace {

using optireduce::DType;
using optireduce::HadamardLayout;

DType to_dtype(int value) {
  std::string known;
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
    const int code = static_cast<int>(dtype);
    if (value == code) return dtype;
    known += (known.empty() ? "" : ", ") + std::to_string(code) + " (" + optireduce::name_of(dtype) + ")";
  }
  throw nb::value_error(("dtype is " + std::to_string(value) + ", must be one of " + known).c_str());
}

std::byte* to_pointer(const char* field, std::uintptr_t address, std::size_t elements) {
  if (address == 0 && elements != 0) {
    throw nb::value_error((std::string(field) + " is address 0, must point to memory for " +
                           std::to_string(elements) + " elements")
                              .c_str());
  }
  return reinterpret_cast<std::byte*>(address);
}

float* to_floats(const char* field, std::uintptr_t address, std::size_t elements) {
  if (address % alignof(float) != 0) {
    throw nb::value_error((std::string(field) + " is address " + std::to_string(address) +
                           ", must be a multiple of " + std::to_string(alignof(float)) + ", as floats are")
                              .c_str());
  }
  return reinterpret_cast<float*>(to_pointer(field, address, elements));
}

// What the core refuses (blocks, ranges, the cap) comes out as ValueError by itself.

std::size_t encoded_elements(std::size_t elements, std::uint32_t block) {
  return optireduce::hadamard_layout(elements, block).encoded_elements();
}

void encode(int dtype, std::uintptr_t values, std::size_t elements, std::uint32_t block, std::uint64_t seed,
            std::uintptr_t out) {
  const DType type = to_dtype(dtype);
  const HadamardLayout layout = optireduce::hadamard_layout(elements, block);
  const std::byte* const source = to_pointer("values", values, elements);
  float* const destination = to_floats("out", out, layout.encoded_elements());
  const nb::gil_scoped_release unlocked;
  optireduce::hadamard_encode(type, source, layout, seed, destination);
}

void decode(int dtype, std::uintptr_t encoded, std::size_t elements, std::uint32_t block, std::uint64_t seed,
            const std::vector<std::pair<std::size_t, std::size_t>>& lost, float cap, std::uintptr_t out) {
  const DType type = to_dtype(dtype);
  const HadamardLayout layout = optireduce::hadamard_layout(elements, block);
  const float* const source = to_floats("encoded", encoded, layout.encoded_elements());
  std::byte* const destination = to_pointer("out", out, elements);
  std::vector<optireduce::LostRange> ranges;
  for (const auto& [first, count] : lost) ranges.push_back({first, count});
  const nb::gil_scoped_release unlocked;
  optireduce::hadamard_decode(type, source, layout, seed, ranges, cap, destination);
}

}  // namespace

void bind_hadamard(nb::module_& m) {
  m.def("hadamard_encoded_elements", &encoded_elements, nb::arg("elements"), nb::arg("block"),
        "How many float32 `elements` values become in blocks of `block`, a power of two.");
  m.def("hadamard_encode", &encode, nb::arg("dtype"), nb::arg("values"), nb::arg("elements"),
        nb::arg("block"), nb::arg("seed"), nb::arg("out"),
        "Transform the array at the address `values` to hadamard_encoded_elements() float32 at the address "
        "`out`.\n"
        "`dtype` is the wire value of the element type: float32, bfloat16 or float16. Use each seed once.");
  m.def("hadamard_decode", &decode, nb::arg("dtype"), nb::arg("encoded"), nb::arg("elements"),
        nb::arg("block"), nb::arg("seed"), nb::arg("lost"), nb::arg("cap"), nb::arg("out"),
        "The inverse. `lost`: (first, count) of the floats at `encoded` that never came and are zero. Blocks "
        "are\n"
        "scaled up by the share that came, at most by `cap`; one of which nothing came is zero.");
}
