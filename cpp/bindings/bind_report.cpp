// How an operation ended, as Python sees it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "operation/call.h"

namespace nb = nanobind;
using namespace optireduce;

namespace {

const char* name_of(ClosedBy closed_by) {
  switch (closed_by) {
    case ClosedBy::Early:
      return "early";
    case ClosedBy::Deadline:
      return "deadline";
    default:
      return "complete";
  }
}

using PythonExcluded = std::tuple<Rank, std::uint64_t>;
using PythonHole = std::tuple<std::string, Rank, std::size_t, std::size_t>;

std::vector<PythonExcluded> excluded_of(const Report& report) {
  std::vector<PythonExcluded> excluded;
  for (const Excluded& each : report.excluded) excluded.emplace_back(each.rank, each.bytes);
  return excluded;
}

std::vector<PythonHole> holes_of(const Report& report) {
  std::vector<PythonHole> holes;
  for (const Hole& hole : report.lost.holes) {
    const char* stage = hole.stage == PacketType::Contribution ? "contribution" : "decision";
    holes.emplace_back(stage, hole.peer, hole.begin, hole.bytes);
  }
  return holes;
}

}  // namespace

void bind_report(nb::module_& m) {
  nb::class_<Report>(m, "Report")
      .def_ro("operation", &Report::operation)
      .def_ro("bytes", &Report::bytes)
      .def_prop_ro("elapsed_seconds", [](const Report& r) { return r.elapsed.seconds(); })
      .def_prop_ro("stood_still_seconds", [](const Report& r) { return r.stood_still.seconds(); })
      .def_ro("repaired_bytes", &Report::repaired_bytes)
      .def_ro("bounded", &Report::bounded)
      .def_prop_ro("closed_by", [](const Report& r) { return name_of(r.closed_by); })
      .def_ro("view", &Report::view)
      .def_ro("members", &Report::members)
      .def_prop_ro("excluded", &excluded_of)
      .def_ro("void_bytes", &Report::void_bytes)
      .def_prop_ro("carried_bytes", [](const Report& r) { return r.own.carried; })
      .def_prop_ro("residual_bytes", [](const Report& r) { return r.own.residual; })
      .def_prop_ro("dropped_bytes", [](const Report& r) { return r.own.dropped; })
      .def_prop_ro("oldest_steps", [](const Report& r) { return r.own.oldest_steps; })
      .def_ro("non_finite", &Report::non_finite)
      .def_prop_ro("waited_for", [](const Report& r) { return r.late.waited_for; })
      .def_prop_ro("waited_seconds", [](const Report& r) { return r.late.waited.seconds(); })
      .def_prop_ro("behind_seconds", [](const Report& r) { return r.late.behind.seconds(); })
      .def_prop_ro("deadline_seconds", [](const Report& r) { return r.policy.deadline.seconds(); })
      .def_prop_ro("usual_seconds", [](const Report& r) { return r.policy.usual.seconds(); })
      .def_prop_ro("early_seconds", [](const Report& r) { return r.policy.early.seconds(); })
      .def_prop_ro("early_fraction", [](const Report& r) { return r.policy.early_fraction; })
      .def_prop_ro("incast", [](const Report& r) { return r.policy.incast; })
      .def_prop_ro("window_bytes", [](const Report& r) { return r.policy.window_bytes; })
      .def_prop_ro("rtt_seconds", [](const Report& r) { return r.policy.rtt.seconds(); })
      .def_prop_ro("bytes_per_second", [](const Report& r) { return r.policy.bytes_per_second; })
      .def_prop_ro("lost_contribution_bytes", [](const Report& r) { return r.lost.contribution_bytes; })
      .def_prop_ro("lost_decision_bytes", [](const Report& r) { return r.lost.decision_bytes; })
      .def_prop_ro("holes", &holes_of)
      .def_prop_ro("error_code", [](const Report& r) { return static_cast<int>(r.error); })
      .def_ro("error", &Report::message)
      .def_ro("ranks", &Report::ranks);
}
