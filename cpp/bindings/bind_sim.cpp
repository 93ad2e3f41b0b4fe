// Python's view of the simulator: times in seconds, memory as addresses, which the caller keeps alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/stats_dict.h"
#include "proto/schedule.h"
#include "sim/network.h"

namespace nb = nanobind;
using namespace optireduce;

namespace {

// pointer, elements, dtype, op, start in seconds (infinity: never)
using PythonCall = std::tuple<std::uintptr_t, std::uint64_t, int, int, double>;
using Reports = std::vector<std::vector<std::optional<Report>>>;

Duration seconds(const char* field, double value) {
  constexpr double kCentury = 3e9;  // more would not fit 64 bits of nanoseconds
  if (!(value >= 0)) {
    throw std::invalid_argument(std::string(field) + " is " + std::to_string(value) +
                                ", must be 0 or more seconds");
  }
  return Duration::from_seconds(value < kCentury ? value : kCentury);
}

Duration start_of(double value) {
  return value == std::numeric_limits<double>::infinity() ? sim::Call::kNever : seconds("start", value);
}

Rank to_rank(const char* field, std::int64_t value) {
  if (value < 0 || value > std::numeric_limits<Rank>::max()) {
    throw std::invalid_argument(std::string(field) + " is " + std::to_string(value) +
                                ", must be in 0 .. 65535");
  }
  return static_cast<Rank>(value);
}

Descriptor to_descriptor(std::uint64_t elements, int dtype, int op) {
  if (elements > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("elements is " + std::to_string(elements) + ", must be below 2^32");
  }
  if (dtype < 0 || dtype > static_cast<int>(DType::Float16)) {
    throw std::invalid_argument("dtype is " + std::to_string(dtype) + ", must be in 0 .. 3");
  }
  if (op < 0 || op > static_cast<int>(ReduceOp::Mean)) {
    throw std::invalid_argument("op is " + std::to_string(op) + ", must be 0 (sum) or 1 (mean)");
  }
  return {static_cast<std::uint32_t>(elements), static_cast<DType>(dtype), static_cast<ReduceOp>(op)};
}

sim::Call to_call(const PythonCall& call) {
  const auto& [pointer, elements, dtype, op, start] = call;
  if (pointer == 0 && elements != 0)
    throw std::invalid_argument("a call's pointer is 0, must be its array's address");
  return {to_descriptor(elements, dtype, op), reinterpret_cast<std::byte*>(pointer), start_of(start)};
}

Reports run(sim::Network& network, const std::vector<std::vector<PythonCall>>& operations, double timeout,
            double bound) {
  std::vector<sim::Collective> collectives;
  for (const auto& calls : operations) {
    sim::Collective collective;
    collective.timeout = seconds("timeout_seconds", timeout);
    for (const PythonCall& call : calls) collective.calls.push_back(to_call(call));
    collectives.push_back(std::move(collective));
  }
  sim::RunResult result = network.run(collectives, seconds("bound_seconds", bound));
  if (!result.finished) {
    throw std::runtime_error("not every rank has a report after bound_seconds = " + std::to_string(bound) +
                             " of virtual time");
  }
  return std::move(result.reports);
}

/// A duration that Python reads and writes in seconds.
template <typename Class, typename Owner>
void bind_seconds(Class& cls, const char* name, Duration Owner::* field) {
  cls.def_prop_rw(
      name, [field](const Owner& o) { return (o.*field).seconds(); },
      [field, name](Owner& o, double value) { o.*field = seconds(name, value); });
}

void bind_link(nb::module_& m) {
  nb::class_<sim::LinkOptions> link(m, "LinkOptions");
  link.def(nb::init<>())
      .def_rw("bits_per_second", &sim::LinkOptions::bits_per_second)
      .def_rw("loss", &sim::LinkOptions::loss)
      .def_rw("reorder", &sim::LinkOptions::reorder)
      .def_rw("duplicate", &sim::LinkOptions::duplicate)
      .def_rw("queue_bytes", &sim::LinkOptions::queue_bytes);
  bind_seconds(link, "delay_seconds", &sim::LinkOptions::delay);
  bind_seconds(link, "jitter_seconds", &sim::LinkOptions::jitter);
  bind_seconds(link, "reorder_seconds", &sim::LinkOptions::reorder_delay);
}

Time at(const char* field, double value) {
  return Time{} + seconds(field, value);
}

void bind_options(nb::module_& m) {
  using sim::SimOptions;
  nb::class_<SimOptions> options(m, "SimulationOptions");
  options.def(nb::init<>())
      .def_prop_rw(
          "ranks", [](const SimOptions& o) { return o.ranks; },
          [](SimOptions& o, std::int64_t ranks) { o.ranks = to_rank("ranks", ranks); })
      .def_rw("seed", &SimOptions::seed)
      .def_rw("link", &SimOptions::link)
      .def_rw("coalesce", &SimOptions::coalesce)
      .def_rw("receive_buffer_bytes", &SimOptions::receive_buffer_bytes)
      .def_rw("max_events", &SimOptions::max_events)
      .def_prop_rw(
          "payload_bytes", [](const SimOptions& o) { return o.protocol.payload_bytes; },
          [](SimOptions& o, std::uint32_t bytes) { o.protocol.payload_bytes = bytes; })
      .def_prop_rw(
          "window_bytes", [](const SimOptions& o) { return o.protocol.window_bytes; },
          [](SimOptions& o, std::size_t bytes) { o.protocol.window_bytes = bytes; })
      .def_prop_rw(
          "early_bytes", [](const SimOptions& o) { return o.protocol.early_bytes; },
          [](SimOptions& o, std::size_t bytes) { o.protocol.early_bytes = bytes; });
  bind_seconds(options, "wake_seconds", &SimOptions::wake_delay);
  options
      .def(
          "set_link",
          [](SimOptions& o, std::int64_t from, std::int64_t to, const sim::LinkOptions& link) {
            o.other_links[{to_rank("source", from), to_rank("destination", to)}] = link;
          },
          nb::arg("source"), nb::arg("destination"), nb::arg("link"))
      .def(
          "add_cut",
          [](SimOptions& o, std::int64_t from, std::int64_t to, double begin, double end) {
            o.cuts.push_back({to_rank("source", from), to_rank("destination", to), at("begin_seconds", begin),
                              at("end_seconds", end)});
          },
          nb::arg("source"), nb::arg("destination"), nb::arg("begin_seconds"), nb::arg("end_seconds"))
      .def(
          "add_pause",
          [](SimOptions& o, std::int64_t rank, double begin, double end) {
            o.pauses.push_back({to_rank("rank", rank), at("begin_seconds", begin), at("end_seconds", end)});
          },
          nb::arg("rank"), nb::arg("begin_seconds"), nb::arg("end_seconds"));
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
  d["duplicated"] = counters.duplicated;
  d["reordered"] = counters.reordered;
  d["hostile"] = counters.hostile;
  return d;
}

}  // namespace

void bind_sim(nb::module_& m) {
  using Released = nb::call_guard<nb::gil_scoped_release>;
  bind_link(m);
  bind_options(m);
  nb::class_<sim::Network>(m, "Simulation")
      .def(nb::init<sim::SimOptions>(), nb::arg("options"))
      .def("run", &run, nb::arg("operations"), nb::arg("timeout_seconds"), nb::arg("bound_seconds"),
           Released())
      .def(
          "settle",
          [](sim::Network& self, double bound) { return self.settle(seconds("bound_seconds", bound)); },
          nb::arg("bound_seconds"), Released())
      .def(
          "stats",
          [](const sim::Network& self, std::int64_t rank) {
            return as_dict(self.stats(to_rank("rank", rank)));
          },
          nb::arg("rank"))
      .def("counters", [](const sim::Network& self) { return as_dict(self.counters()); })
      .def_prop_ro("now_seconds", [](const sim::Network& self) { return Duration{self.now().ns}.seconds(); })
      .def_prop_ro("trace_hash", &sim::Network::trace_hash);
}
