#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>
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

/// Errors tell the secret's length, never the secret.
Seal checked_seal(const std::string& auth, const nb::bytes& secret, Rank rank) {
  SipKey key;
  if (auth != "token" && auth != "mac")
    throw std::invalid_argument("auth is \"" + auth + "\", must be \"token\" or \"mac\"");
  if (secret.size() != sizeof key)
    throw std::invalid_argument("the secret has " + std::to_string(secret.size()) + " bytes, must have " +
                                std::to_string(sizeof key));
  std::memcpy(&key, secret.data(), sizeof key);
  return auth == "mac" ? Seal(key, rank) : Seal(key.low);
}

DType checked_dtype(int code) {
  if (code < 0 || code > static_cast<int>(kLastDType)) {
    throw std::invalid_argument(
        "dtype code " + std::to_string(code) +
        " is not 0 (float32), 1 (float64), 2 (bfloat16), 3 (float16) or 4 (int8 blocks)");
  }
  return static_cast<DType>(code);
}

std::uint16_t checked_weight(int weight) {
  if (weight < 0 || weight > 65'535)
    throw std::invalid_argument("weight " + std::to_string(weight) + " is not between 0 and 65535");
  return static_cast<std::uint16_t>(weight);
}

double checked_slack(double slack) {
  if (!(slack >= 1.0)) throw std::invalid_argument("slack " + std::to_string(slack) + " is not 1 or more");
  return slack;
}

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

const char* name_of(MembershipEvent::Kind kind) {
  switch (kind) {
    case MembershipEvent::Kind::Absent:
      return "absent";
    case MembershipEvent::Kind::Back:
      return "back";
    default:
      return "unreached";
  }
}

ReduceOp checked_op(int code) {
  if (code < 0 || code > 2)
    throw std::invalid_argument("op code " + std::to_string(code) +
                                " is not 0 (sum), 1 (mean) or 2 (gather)");
  return static_cast<ReduceOp>(code);
}

nb::dict as_dict(const EngineStats& stats) {
  nb::dict d = as_dict(stats.protocol);
  d["bound_seconds_per_mib"] = stats.policy.bound.seconds();
  d["early_seconds_per_mib"] = stats.policy.early.seconds();
  d["early_fraction"] = stats.policy.early_fraction;
  d["incast"] = stats.policy.incast;
  d["window_bytes"] = stats.policy.window_bytes;
  d["rtt_seconds"] = stats.policy.rtt.seconds();
  d["rate_bytes_per_second"] = stats.policy.bytes_per_second;
  d["socket_drops"] = stats.socket_drops;
  d["send_failures"] = stats.send_failures;
  d["buffer_bytes"] = stats.buffer_bytes;
  d["multicast"] = stats.multicast;
  d["wait_seconds"] = stats.wait_seconds;
  d["stood_still_seconds"] = stats.stood_still_seconds;
  return d;
}

void bind_options(nb::module_& m) {
  nb::class_<EngineOptions>(m, "EngineOptions")
      .def(nb::init<>())
      .def_rw("window_bytes", &EngineOptions::window_bytes)
      .def_rw("early_bytes", &EngineOptions::early_bytes)
      .def_prop_rw(
          "repair", [](const EngineOptions& o) { return o.bound.repair; },
          [](EngineOptions& o, bool repair) { o.bound.repair = repair; })
      .def_prop_rw(
          "late_repair", [](const EngineOptions& o) { return o.bound.late_repair; },
          [](EngineOptions& o, bool late) { o.bound.late_repair = late; })
      .def_prop_rw(
          "shuffle", [](const EngineOptions& o) { return o.bound.shuffle; },
          [](EngineOptions& o, bool shuffle) { o.bound.shuffle = shuffle; })
      .def_prop_rw(
          "warmup_operations", [](const EngineOptions& o) { return o.bound.warmup_operations; },
          [](EngineOptions& o, std::uint32_t count) { o.bound.warmup_operations = count; })
      .def_prop_rw(
          "bound_percentile", [](const EngineOptions& o) { return o.bound.percentile; },
          [](EngineOptions& o, double percentile) { o.bound.percentile = percentile; })
      .def_prop_rw(
          "bound_least", [](const EngineOptions& o) { return o.bound.least; },
          [](EngineOptions& o, double least) { o.bound.least = least; })
      .def_prop_rw(
          "bound_most", [](const EngineOptions& o) { return o.bound.most; },
          [](EngineOptions& o, double most) { o.bound.most = most; })
      .def_prop_rw(
          "absent_after", [](const EngineOptions& o) { return o.bound.absent_after; },
          [](EngineOptions& o, std::uint32_t count) { o.bound.absent_after = count; })
      .def_prop_rw(
          "min_ranks", [](const EngineOptions& o) { return o.bound.min_ranks; },
          [](EngineOptions& o, Rank ranks) { o.bound.min_ranks = ranks; })
      .def_prop_rw(
          "quorum_seconds", [](const EngineOptions& o) { return o.bound.quorum_wait.seconds(); },
          [](EngineOptions& o, double s) { o.bound.quorum_wait = seconds(s); })
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

using PythonLoss = std::tuple<Rank, std::uint64_t, std::uint64_t>;
using PythonHole = std::tuple<std::string, Rank, std::size_t, std::size_t>;
using PythonEvent = std::tuple<std::string, Rank, std::uint64_t>;

std::vector<PythonLoss> losses_of(const Report& report) {
  std::vector<PythonLoss> losses;
  for (const PeerLoss& loss : report.lost_by_peer)
    losses.emplace_back(loss.peer, loss.contribution_bytes, loss.reduced_bytes);
  return losses;
}

std::vector<PythonHole> holes_of(const Report& report) {
  std::vector<PythonHole> holes;
  for (const Hole& hole : report.holes) {
    const char* stage = hole.stage == PacketType::Contribution ? "contribution" : "reduced";
    holes.emplace_back(stage, hole.peer, hole.begin, hole.bytes);
  }
  return holes;
}

std::vector<PythonEvent> events_of(Engine& engine) {
  std::vector<MembershipEvent> taken;
  {
    nb::gil_scoped_release released;
    taken = engine.take_events();
  }
  std::vector<PythonEvent> events;
  for (const MembershipEvent& event : taken) {
    events.emplace_back(name_of(event.kind), event.rank, event.operation);
  }
  return events;
}

void bind_report(nb::module_& m) {
  nb::class_<Report>(m, "Report")
      .def_ro("operation", &Report::operation)
      .def_ro("bytes", &Report::bytes)
      .def_prop_ro("elapsed_seconds", [](const Report& r) { return r.elapsed.seconds(); })
      .def_prop_ro("stood_still_seconds", [](const Report& r) { return r.stood_still.seconds(); })
      .def_prop_ro("quorum_wait_seconds", [](const Report& r) { return r.quorum_wait.seconds(); })
      .def_ro("repaired_bytes", &Report::repaired_bytes)
      .def_prop_ro("lost_bytes",
                   [](const Report& r) { return r.contributions_lost_bytes + r.reduced_lost_bytes; })
      .def_ro("bounded", &Report::bounded)
      .def_prop_ro("closed_by", [](const Report& r) { return name_of(r.closed_by); })
      .def_ro("contributions_lost_bytes", &Report::contributions_lost_bytes)
      .def_ro("reduced_lost_bytes", &Report::reduced_lost_bytes)
      .def_ro("corrected_bytes", &Report::corrected_bytes)
      .def_ro("non_finite", &Report::non_finite)
      .def_prop_ro("lost_by_peer", &losses_of)
      .def_prop_ro("holes", &holes_of)
      .def_ro("absent", &Report::absent)
      .def_prop_ro("bound_seconds", [](const Report& r) { return r.policy.bound.seconds(); })
      .def_prop_ro("early_seconds", [](const Report& r) { return r.policy.early.seconds(); })
      .def_prop_ro("early_fraction", [](const Report& r) { return r.policy.early_fraction; })
      .def_prop_ro("incast", [](const Report& r) { return r.policy.incast; })
      .def_prop_ro("window_bytes", [](const Report& r) { return r.policy.window_bytes; })
      .def_prop_ro("rtt_seconds", [](const Report& r) { return r.policy.rtt.seconds(); })
      .def_prop_ro("rate_bytes_per_second", [](const Report& r) { return r.policy.bytes_per_second; })
      .def_prop_ro("behind_seconds", [](const Report& r) { return r.behind.seconds(); })
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
          [](Engine* self, int rank, int size, const std::string& bind_address, const std::string& auth,
             const nb::bytes& secret, EngineOptions options, const Rows& rows) {
            const Rank checked_size = checked_rank("size", size, 1);
            const Rank checked = checked_rank("rank", rank, 0);
            if (checked >= checked_size)
              throw std::invalid_argument("rank " + std::to_string(rank) + " is not below size " +
                                          std::to_string(size));
            options.rows = rows;
            new (self)
                Engine(checked, checked_size, bind_address, checked_seal(auth, secret, checked), options);
          },
          nb::arg("rank"), nb::arg("size"), nb::arg("bind_address"), nb::arg("auth"), nb::arg("secret"),
          nb::arg("options"), nb::arg("rows") = Rows{})
      .def_prop_ro("ports", &Engine::ports)
      .def_prop_ro("grant_bytes", &Engine::grant_bytes)
      .def("open", &Engine::open, nb::arg("addresses"), nb::arg("ports"), Released())
      .def(
          "begin",
          [](Engine& self, std::size_t mtu, const std::vector<std::size_t>& grants, double timeout) {
            return self.begin(mtu, grants, seconds(timeout));
          },
          nb::arg("mtu"), nb::arg("grants"), nb::arg("timeout_seconds"), Released())
      .def("open_group", &Engine::open_group, nb::arg("address"), nb::arg("ttl"), Released())
      .def("join_group", &Engine::join_group, nb::arg("addresses"), nb::arg("ports"), Released())
      .def(
          "probe_group", [](Engine& self, double timeout) { return self.probe_group(seconds(timeout)); },
          nb::arg("timeout_seconds"), Released())
      .def("use_group", &Engine::use_group, nb::arg("use"), Released())
      .def(
          "all_reduce",
          [](Engine& self, std::uintptr_t pointer, std::size_t elements, int dtype, int op, double timeout,
             bool bounded, int weight, std::uint32_t stream, std::size_t patience, bool repairs, double slack,
             std::uintptr_t wide, std::size_t wide_values, std::uint64_t rounding_seed) {
            StartOptions options{seconds(timeout), checked_weight(weight), stream, patience,
                                 repairs,          checked_slack(slack)};
            options.wide = {reinterpret_cast<float*>(wide), wide_values, rounding_seed};
            return self.all_reduce(reinterpret_cast<std::byte*>(pointer), elements, checked_dtype(dtype),
                                   checked_op(op), bounded, options);
          },
          nb::arg("pointer"), nb::arg("elements"), nb::arg("dtype"), nb::arg("op"),
          nb::arg("timeout_seconds"), nb::arg("bounded") = false, nb::arg("weight") = 1,
          nb::arg("stream") = 0, nb::arg("patience_bytes") = 0, nb::arg("repairs") = false,
          nb::arg("slack") = 1.0, nb::arg("wide") = 0, nb::arg("wide_values") = 0,
          nb::arg("rounding_seed") = 0, Released())
      .def("events", [](Engine& self) { return events_of(self); })
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
