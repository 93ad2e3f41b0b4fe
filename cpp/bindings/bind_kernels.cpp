// Python's view of the kernels: memory is passed as addresses, which the caller keeps alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/fingerprint.h"
#include "kernels/reduce.h"

namespace nb = nanobind;

namespace {

using optireduce::DType;

DType to_dtype(int value) {
  std::string known;
  for (const DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16}) {
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

void reduce(int dtype, const std::vector<std::uintptr_t>& inputs, double divisor, std::uintptr_t out,
            std::size_t elements) {
  const DType type = to_dtype(dtype);
  if (inputs.empty()) throw nb::value_error("inputs is empty, must have at least one address");
  if (!std::isfinite(divisor) || divisor == 0.0) {
    throw nb::value_error(("divisor is " + std::to_string(divisor) + ", must be finite and not 0").c_str());
  }
  std::vector<const std::byte*> pointers;
  for (const std::uintptr_t input : inputs)
    pointers.push_back(to_pointer("an entry of inputs", input, elements));
  std::byte* const destination = to_pointer("out", out, elements);
  const nb::gil_scoped_release unlocked;
  optireduce::reduce(type, pointers, divisor, destination, elements);
}

std::uint64_t fingerprint(const std::vector<std::pair<std::uintptr_t, std::size_t>>& pieces) {
  const nb::gil_scoped_release unlocked;
  std::uint64_t all = 0;
  for (const auto& [address, bytes] : pieces)
    all = optireduce::fingerprint({to_pointer("an entry of pieces", address, bytes), bytes}, all);
  return all;
}

}  // namespace

void bind_kernels(nb::module_& m) {
  m.def("reduce", &reduce, nb::arg("dtype"), nb::arg("inputs"), nb::arg("divisor"), nb::arg("out"),
        nb::arg("elements"),
        "Add the arrays at the addresses `inputs`, in that order, divide by `divisor` and write to the "
        "address `out`,\n"
        "which may be one of the inputs. `dtype` is the wire value of the element type.");
  m.def("fingerprint", &fingerprint, nb::arg("pieces"),
        "64 bits of memory, given as addresses and numbers of bytes. Equal memory has the same fingerprint, "
        "and "
        "memory\n"
        "that differs in one word has another.");
  m.def("simd_level", &optireduce::simd_level,
        "The instruction set of the kernels: \"avx2\", \"neon\" or \"plain\".");
}
