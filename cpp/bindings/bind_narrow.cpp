// Python's view of the narrow forms of float32: memory is passed as addresses, which the caller keeps alive.
#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/bfloat16.h"
#include "kernels/int8_block.h"

namespace nb = nanobind;

namespace {

template <typename T>
T* to_pointer(const char* field, std::uintptr_t address, std::size_t values) {
  if (address == 0 && values != 0) {
    throw nb::value_error(
        (std::string(field) + " is address 0, must point to memory for " + std::to_string(values) + " values")
            .c_str());
  }
  return reinterpret_cast<T*>(address);
}

void int8_encode(std::uintptr_t values, std::size_t count, std::uint64_t seed, std::uintptr_t blocks) {
  const float* const source = to_pointer<const float>("values", values, count);
  std::byte* const destination = to_pointer<std::byte>("blocks", blocks, count);
  const nb::gil_scoped_release unlocked;
  optireduce::int8_encode(source, count, seed, destination);
}

void int8_decode(std::uintptr_t blocks, std::size_t count, std::uintptr_t values) {
  const std::byte* const source = to_pointer<const std::byte>("blocks", blocks, count);
  float* const destination = to_pointer<float>("values", values, count);
  const nb::gil_scoped_release unlocked;
  optireduce::int8_decode(source, count, destination);
}

void bfloat16_encode(std::uintptr_t values, std::size_t count, std::uintptr_t halves) {
  const float* const source = to_pointer<const float>("values", values, count);
  std::byte* const destination = to_pointer<std::byte>("halves", halves, count);
  const nb::gil_scoped_release unlocked;
  optireduce::bfloat16_encode(source, count, destination);
}

void bfloat16_decode(std::uintptr_t halves, std::size_t count, std::uintptr_t values) {
  const std::byte* const source = to_pointer<const std::byte>("halves", halves, count);
  float* const destination = to_pointer<float>("values", values, count);
  const nb::gil_scoped_release unlocked;
  optireduce::bfloat16_decode(source, count, destination);
}

}  // namespace

void bind_narrow(nb::module_& m) {
  m.attr("INT8_BLOCK_BYTES") = optireduce::kInt8BlockBytes;
  m.attr("INT8_BLOCK_VALUES") = optireduce::kInt8BlockValues;
  m.def("int8_encode", &int8_encode, nb::arg("values"), nb::arg("count"), nb::arg("seed"), nb::arg("blocks"),
        "Round `count` float32 at random, right on average, to blocks of 62 numbers in 64 bytes at the "
        "address\n"
        "`blocks`. Use each seed once.");
  m.def("int8_decode", &int8_decode, nb::arg("blocks"), nb::arg("count"), nb::arg("values"),
        "The `count` float32 that the blocks stand for.");
  m.def("bfloat16_encode", &bfloat16_encode, nb::arg("values"), nb::arg("count"), nb::arg("halves"),
        "Round `count` float32 to bfloat16: to nearest, halves to even.");
  m.def("bfloat16_decode", &bfloat16_decode, nb::arg("halves"), nb::arg("count"), nb::arg("values"),
        "The `count` float32 that the bfloat16 are.");
}
