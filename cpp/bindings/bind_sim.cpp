// Python's view of the simulator: times in seconds, memory as addresses, which the caller keeps alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <limits>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/sim_convert.h"
#include "bindings/stats_dict.h"
#include "geometry/schedule.h"
#include "sim/network.h"

namespace nb = nanobind;
using namespace optireduce;

void bind_sim_options(nb::module_& m);

namespace {

using Reports = std::vector<std::vector<std::optional<Report>>>;

Duration start_of(double value) {
  return value == std::numeric_limits<double>::infinity() ? sim::Call::kNever
                                                          : sim_seconds("start_seconds", value);
}

Descriptor to_descriptor(std::uint64_t elements, int dtype, int op, bool bounded) {
  if (elements > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("elements is " + std::to_string(elements) + ", must be below 2^32");
  }
  if (dtype < 0 || dtype > static_cast<int>(DType::Last)) {
    throw std::invalid_argument("dtype is " + std::to_string(dtype) + ", must be in 0 .. 4");
  }
  if (op < 0 || op > static_cast<int>(ReduceOp::Last)) {
    throw std::invalid_argument("op is " + std::to_string(op) +
                                ", must be 0 (sum), 1 (mean), 2 (gather) or 3 (weighted mean)");
  }
  return {static_cast<std::uint32_t>(elements), static_cast<DType>(dtype), static_cast<ReduceOp>(op),
          bounded};
}

std::uint32_t to_weight(std::int64_t weight) {
  if (weight < 0 || weight > std::numeric_limits<std::uint16_t>::max()) {
    throw std::invalid_argument("weight is " + std::to_string(weight) + ", must be in 0 .. 65535");
  }
  return static_cast<std::uint32_t>(weight);
}

void init_call(sim::Call* self, std::uintptr_t pointer, std::uint64_t elements, int dtype, int op,
               double start, bool follows, bool bounded, std::int64_t weight, std::uint32_t stream,
               std::uint64_t step, bool stays_readable) {
  if (pointer == 0 && elements != 0)
    throw std::invalid_argument("a call's pointer is 0, must be its array's address");
  new (self) sim::Call{.descriptor = to_descriptor(elements, dtype, op, bounded),
                       .data = reinterpret_cast<std::byte*>(pointer),
                       .start = start_of(start),
                       .weight = to_weight(weight),
                       .follows = follows,
                       .stream = stream,
                       .step = step,
                       .stays_readable = stays_readable};
}

Reports run(sim::Network& network, const std::vector<std::vector<sim::Call>>& operations, double timeout,
            double bound) {
  std::vector<sim::Collective> collectives;
  for (const auto& calls : operations) {
    collectives.push_back({calls, sim_seconds("timeout_seconds", timeout)});
  }
  sim::RunResult result = network.run(collectives, sim_seconds("bound_seconds", bound));
  if (!result.finished) {
    throw std::runtime_error("not every rank has a report after bound_seconds = " + std::to_string(bound) +
                             " of virtual time");
  }
  return std::move(result.reports);
}

nb::dict as_dict(const sim::Counters& counters) {
  nb::dict d;
  d["events"] = counters.events;
  d["sent"] = counters.sent;
  d["sent_bytes"] = counters.sent_bytes;
  d["delivered"] = counters.delivered;
  d["lost"] = counters.lost;
  d["cut"] = counters.cut;
  d["queue_dropped"] = counters.queue_dropped;
  d["buffer_dropped"] = counters.buffer_dropped;
  d["crash_dropped"] = counters.crash_dropped;
  d["duplicated"] = counters.duplicated;
  d["reordered"] = counters.reordered;
  d["hostile"] = counters.hostile;
  d["foreign"] = counters.foreign;
  d["foreign_dropped"] = counters.foreign_dropped;
  return d;
}

}  // namespace

void bind_sim(nb::module_& m) {
  using Released = nb::call_guard<nb::gil_scoped_release>;
  bind_sim_options(m);
  nb::class_<sim::Call>(m, "SimulationCall")
      .def("__init__", &init_call, nb::arg("pointer"), nb::arg("elements"), nb::arg("dtype"), nb::arg("op"),
           nb::kw_only(), nb::arg("start_seconds"), nb::arg("follows"), nb::arg("bounded"), nb::arg("weight"),
           nb::arg("stream"), nb::arg("step"), nb::arg("stays_readable") = false);
  nb::class_<sim::Network>(m, "Simulation")
      .def(nb::init<sim::SimOptions>(), nb::arg("options"))
      .def("run", &run, nb::arg("operations"), nb::arg("timeout_seconds"), nb::arg("bound_seconds"),
           Released())
      .def(
          "settle",
          [](sim::Network& self, double bound) { return self.settle(sim_seconds("bound_seconds", bound)); },
          nb::arg("bound_seconds"), Released())
      .def(
          "stats",
          [](const sim::Network& self, std::int64_t rank) {
            return as_dict(self.stats(sim_rank("rank", rank)));
          },
          nb::arg("rank"))
      .def(
          "take_residual",
          [](sim::Network& self, std::int64_t rank, std::uint32_t stream) {
            const KeptValues kept = self.group(sim_rank("rank", rank)).take_residual(stream);
            return nb::bytes(kept.values.data(), kept.values.size());
          },
          nb::arg("rank"), nb::arg("stream"))
      .def("counters", [](const sim::Network& self) { return as_dict(self.counters()); })
      .def_prop_ro("now_seconds", [](const sim::Network& self) { return Duration{self.now().ns}.seconds(); })
      .def_prop_ro("trace_hash", &sim::Network::trace_hash);
}
