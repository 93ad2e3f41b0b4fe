#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/stats_dict.h"
#include "engine/engine.h"

namespace nb = nanobind;
using namespace optireduce;

namespace {

Duration seconds(double s) {
  constexpr double kCentury = 3e9;  // "no limit" for people who pass infinity
  return s < 0 ? Duration{-1} : Duration::from_seconds(s < kCentury ? s : kCentury);
}

Rank checked_rank(const char* field, int value, int least) {
  if (value < least || value > 65'535) {
    throw std::invalid_argument(std::string(field) + " " + std::to_string(value) + " is not between " +
                                std::to_string(least) + " and 65535");
  }
  return static_cast<Rank>(value);
}

DType checked_dtype(int code) {
  if (code < 0 || code > static_cast<int>(DType::Float16)) {
    throw std::invalid_argument("dtype code " + std::to_string(code) +
                                " is not 0 (float32), 1 (float64), 2 (bfloat16) or 3 (float16)");
  }
  return static_cast<DType>(code);
}

ReduceOp checked_op(int code) {
  if (code != 0 && code != 1)
    throw std::invalid_argument("op code " + std::to_string(code) + " is not 0 (sum) or 1 (mean)");
  return static_cast<ReduceOp>(code);
}

nb::dict as_dict(const EngineStats& stats) {
  nb::dict d = as_dict(stats.protocol);
  d["socket_drops"] = stats.socket_drops;
  d["send_failures"] = stats.send_failures;
  d["buffer_bytes"] = stats.buffer_bytes;
  d["wait_seconds"] = stats.wait_seconds;
  return d;
}

void bind_options(nb::module_& m) {
  nb::class_<EngineOptions>(m, "EngineOptions")
      .def(nb::init<>())
      .def_rw("window_bytes", &EngineOptions::window_bytes)
      .def_rw("early_bytes", &EngineOptions::early_bytes)
      .def_prop_rw(
          "spin_seconds", [](const EngineOptions& o) { return o.spin.seconds(); },
          [](EngineOptions& o, double s) { o.spin = seconds(s); })
      .def_prop_rw(
          "receive_buffer_bytes", [](const EngineOptions& o) { return o.socket.receive_buffer_bytes; },
          [](EngineOptions& o, std::size_t bytes) { o.socket.receive_buffer_bytes = bytes; })
      .def_prop_rw(
          "use_gso", [](const EngineOptions& o) { return o.socket.use_gso; },
          [](EngineOptions& o, bool use) { o.socket.use_gso = use; })
      .def_prop_rw(
          "use_gro", [](const EngineOptions& o) { return o.socket.use_gro; },
          [](EngineOptions& o, bool use) { o.socket.use_gro = use; })
      .def_prop_rw(
          "drop", [](const EngineOptions& o) { return o.impairment.drop; },
          [](EngineOptions& o, double p) { o.impairment.drop = p; })
      .def_prop_rw(
          "duplicate", [](const EngineOptions& o) { return o.impairment.duplicate; },
          [](EngineOptions& o, double p) { o.impairment.duplicate = p; })
      .def_prop_rw(
          "reorder", [](const EngineOptions& o) { return o.impairment.reorder; },
          [](EngineOptions& o, double p) { o.impairment.reorder = p; })
      .def_prop_rw(
          "impairment_seed", [](const EngineOptions& o) { return o.impairment.seed; },
          [](EngineOptions& o, std::uint64_t seed) { o.impairment.seed = seed; });
}

void bind_report(nb::module_& m) {
  nb::class_<Report>(m, "Report")
      .def_ro("operation", &Report::operation)
      .def_ro("bytes", &Report::bytes)
      .def_prop_ro("elapsed_seconds", [](const Report& r) { return r.elapsed.seconds(); })
      .def_ro("repaired_bytes", &Report::repaired_bytes)
      .def_ro("lost_bytes", &Report::lost_bytes)
      .def_prop_ro("error_code", [](const Report& r) { return static_cast<int>(r.error); })
      .def_ro("error", &Report::message)
      .def_ro("ranks", &Report::ranks);
}

}  // namespace

void bind_engine(nb::module_& m) {
  using Released = nb::call_guard<nb::gil_scoped_release>;
  bind_options(m);
  bind_report(m);
  nb::class_<Engine>(m, "Engine")
      .def(
          "__init__",
          [](Engine* self, int rank, int size, const std::string& bind_address, std::uint64_t token,
             const EngineOptions& options) {
            const Rank checked_size = checked_rank("size", size, 1);
            const Rank checked = checked_rank("rank", rank, 0);
            if (checked >= checked_size)
              throw std::invalid_argument("rank " + std::to_string(rank) + " is not below size " +
                                          std::to_string(size));
            new (self) Engine(checked, checked_size, bind_address, token, options);
          },
          nb::arg("rank"), nb::arg("size"), nb::arg("bind_address"), nb::arg("token"), nb::arg("options"))
      .def_prop_ro("ports", &Engine::ports)
      .def_prop_ro("grant_bytes", &Engine::grant_bytes)
      .def("open", &Engine::open, nb::arg("addresses"), nb::arg("ports"), Released())
      .def(
          "begin",
          [](Engine& self, std::size_t mtu, const std::vector<std::size_t>& grants, double timeout) {
            return self.begin(mtu, grants, seconds(timeout));
          },
          nb::arg("mtu"), nb::arg("grants"), nb::arg("timeout_seconds"), Released())
      .def(
          "all_reduce",
          [](Engine& self, std::uintptr_t pointer, std::size_t elements, int dtype, int op, double timeout) {
            return self.all_reduce(reinterpret_cast<std::byte*>(pointer), elements, checked_dtype(dtype),
                                   checked_op(op), seconds(timeout));
          },
          nb::arg("pointer"), nb::arg("elements"), nb::arg("dtype"), nb::arg("op"),
          nb::arg("timeout_seconds"), Released())
      .def(
          "wait",
          [](Engine& self, std::uint64_t operation, double limit) {
            return self.wait(operation, seconds(limit));
          },
          nb::arg("operation"), nb::arg("timeout_seconds"), Released())
      .def("stats",
           [](Engine& self) {
             EngineStats stats;
             {
               nb::gil_scoped_release released;
               stats = self.stats();
             }
             return as_dict(stats);
           })
      .def(
          "close", [](Engine& self, double linger) { self.close(seconds(linger)); },
          nb::arg("linger_seconds"), Released());
}
