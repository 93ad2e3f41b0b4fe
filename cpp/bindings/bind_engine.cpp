#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/delivery.h"
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
  if (code < 0 || code > static_cast<int>(DType::Last)) {
    throw std::invalid_argument(
        "dtype code " + std::to_string(code) +
        " is not 0 (float32), 1 (float64), 2 (bfloat16), 3 (float16) or 4 (int8 blocks)");
  }
  return static_cast<DType>(code);
}

std::uint32_t checked_weight(int weight) {
  if (weight < 0 || weight > 65'535)
    throw std::invalid_argument("weight " + std::to_string(weight) + " is not between 0 and 65535");
  return static_cast<std::uint32_t>(weight);
}

float checked_scale(double scale) {
  if (!(scale > 0) || scale > 3e38)
    throw std::invalid_argument("scale " + std::to_string(scale) + " is not a positive number");
  return static_cast<float>(scale);
}

const char* name_of(MembershipEvent::Kind kind) {
  switch (kind) {
    case MembershipEvent::Kind::Removed:
      return "removed";
    case MembershipEvent::Kind::Left:
      return "left";
    case MembershipEvent::Kind::Returned:
      return "returned";
    case MembershipEvent::Kind::LeftBehind:
      return "left behind";
    default:
      return "unreached";
  }
}

std::uint32_t checked_elements(std::size_t elements) {
  if (elements > 0xffff'ffff)
    throw std::invalid_argument("elements " + std::to_string(elements) +
                                " is more than one operation can hold");
  return static_cast<std::uint32_t>(elements);
}

ReduceOp checked_op(int code) {
  if (code < 0 || code > static_cast<int>(ReduceOp::Last))
    throw std::invalid_argument("op code " + std::to_string(code) +
                                " is not 0 (sum), 1 (mean), 2 (gather) or 3 (weighted mean)");
  return static_cast<ReduceOp>(code);
}

nb::dict as_dict(const EngineStats& stats) {
  nb::dict d = as_dict(stats.protocol);
  d["deadline_seconds_per_mib"] = stats.policy.deadline.seconds();
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

/// A field of one of the structs inside the options.
template <typename Class, typename Part, typename Value>
void bind_field(Class& cls, const char* name, Part& (*part)(EngineOptions&), Value Part::* field) {
  cls.def_prop_rw(
      name, [part, field](EngineOptions& o) { return part(o).*field; },
      [part, field](EngineOptions& o, Value value) { part(o).*field = value; });
}

/// The same for a duration, in seconds.
template <typename Class, typename Part>
void bind_seconds(Class& cls, const char* name, Part& (*part)(EngineOptions&), Duration Part::* field) {
  cls.def_prop_rw(
      name, [part, field](EngineOptions& o) { return (part(o).*field).seconds(); },
      [part, field](EngineOptions& o, double value) { part(o).*field = seconds(value); });
}

EngineOptions& itself(EngineOptions& o) {
  return o;
}
GroupConfig& group_of(EngineOptions& o) {
  return o.group;
}
PathOptions& path_of(EngineOptions& o) {
  return o.group.path;
}
BestEffortOptions& best_effort_of(EngineOptions& o) {
  return o.group.best_effort;
}
SocketOptions& socket_of(EngineOptions& o) {
  return o.socket;
}
ImpairmentOptions& impairment_of(EngineOptions& o) {
  return o.impairment;
}

void bind_options(nb::module_& m) {
  nb::class_<EngineOptions> options(m, "EngineOptions");
  options.def(nb::init<>());
  options.def_prop_rw(
      "delivery", [](const EngineOptions& o) { return delivery_name(o.group.delivery); },
      [](EngineOptions& o, const std::string& name) { o.group.delivery = delivery_of(name); });
  bind_field(options, "window_bytes", path_of, &PathOptions::window_bytes);
  bind_field(options, "early_bytes", group_of, &GroupConfig::early_bytes);
  bind_field(options, "log_bytes", group_of, &GroupConfig::log_bytes);
  bind_field(options, "shuffle", group_of, &GroupConfig::shuffle);
  bind_field(options, "max_lag", group_of, &GroupConfig::max_lag);
  bind_field(options, "exclude_at_most", group_of, &GroupConfig::exclude_at_most);
  bind_field(options, "fixed_membership", group_of, &GroupConfig::fixed_membership);
  bind_field(options, "incarnation", group_of, &GroupConfig::incarnation);
  bind_field(options, "min_ranks", group_of, &GroupConfig::min_ranks);
  bind_seconds(options, "quorum_seconds", group_of, &GroupConfig::quorum_wait);
  bind_seconds(options, "exact_silence_seconds", group_of, &GroupConfig::exact_silence);
  bind_field(options, "warmup_operations", best_effort_of, &BestEffortOptions::warmup_operations);
  bind_field(options, "bound_percentile", best_effort_of, &BestEffortOptions::percentile);
  bind_field(options, "bound_least", best_effort_of, &BestEffortOptions::least);
  bind_field(options, "bound_most", best_effort_of, &BestEffortOptions::most);
  bind_seconds(options, "spin_seconds", itself, &EngineOptions::spin);
  bind_field(options, "receive_buffer_bytes", socket_of, &SocketOptions::receive_buffer_bytes);
  bind_field(options, "use_gso", socket_of, &SocketOptions::use_gso);
  bind_field(options, "use_gro", socket_of, &SocketOptions::use_gro);
  bind_field(options, "drop", impairment_of, &ImpairmentOptions::drop);
  bind_field(options, "duplicate", impairment_of, &ImpairmentOptions::duplicate);
  bind_field(options, "reorder", impairment_of, &ImpairmentOptions::reorder);
  bind_field(options, "impairment_seed", impairment_of, &ImpairmentOptions::seed);
}

using PythonEvent = std::tuple<std::string, Rank, std::uint64_t, std::uint64_t>;

std::vector<PythonEvent> events_of(Engine& engine) {
  std::vector<MembershipEvent> taken;
  {
    nb::gil_scoped_release released;
    taken = engine.take_events();
  }
  std::vector<PythonEvent> events;
  for (const MembershipEvent& event : taken) {
    events.emplace_back(name_of(event.kind), event.rank, event.view, event.operation);
  }
  return events;
}

}  // namespace

void bind_engine(nb::module_& m) {
  using Released = nb::call_guard<nb::gil_scoped_release>;
  bind_options(m);
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
            options.group.rows = rows;
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
      .def(
          "redirect",
          [](Engine& self, int rank, const std::string& address, std::uint16_t port) {
            self.redirect(checked_rank("rank", rank, 0), address, port);
          },
          nb::arg("rank"), nb::arg("address"), nb::arg("port"), Released())
      .def("open_group", &Engine::open_group, nb::arg("address"), nb::arg("ttl"), Released())
      .def("join_group", &Engine::join_group, nb::arg("addresses"), nb::arg("ports"), Released())
      .def(
          "probe_group", [](Engine& self, double timeout) { return self.probe_group(seconds(timeout)); },
          nb::arg("timeout_seconds"), Released())
      .def("use_group", &Engine::use_group, nb::arg("use"), Released())
      .def(
          "all_reduce",
          [](Engine& self, std::uintptr_t pointer, std::size_t elements, int dtype, int op, double timeout,
             bool bounded, int weight, std::uint32_t stream, std::uint64_t step, double scale,
             bool stays_readable, std::uintptr_t wide, std::size_t wide_values, std::uint64_t rounding_seed) {
            return self.start(
                {.descriptor = {checked_elements(elements), checked_dtype(dtype), checked_op(op), bounded},
                 .data = reinterpret_cast<std::byte*>(pointer),
                 .timeout = seconds(timeout),
                 .weight = checked_weight(weight),
                 .stream = stream,
                 .step = step,
                 .scale = checked_scale(scale),
                 .stays_readable = stays_readable,
                 .wide = {reinterpret_cast<float*>(wide), wide_values, rounding_seed}});
          },
          nb::arg("pointer"), nb::arg("elements"), nb::arg("dtype"), nb::arg("op"),
          nb::arg("timeout_seconds"), nb::kw_only(), nb::arg("bounded") = false, nb::arg("weight") = 1,
          nb::arg("stream") = 0, nb::arg("step") = 0, nb::arg("scale") = 1.0,
          nb::arg("stays_readable") = false, nb::arg("wide") = 0, nb::arg("wide_values") = 0,
          nb::arg("rounding_seed") = 0, Released())
      .def("release", &Engine::release, Released())
      .def(
          "take_residual",
          [](Engine& self, std::uint32_t stream) {
            KeptValues kept;
            {
              nb::gil_scoped_release released;
              kept = self.take_residual(stream);
            }
            return nb::make_tuple(static_cast<int>(kept.type), kept.scale,
                                  nb::bytes(kept.values.data(), kept.values.size()));
          },
          nb::arg("stream"))
      .def(
          "position",
          [](Engine& self) {
            const Position position = self.position();
            return std::tuple(position.completed, position.digest);
          },
          Released())
      .def(
          "restore",
          [](Engine& self, std::uint64_t completed, std::uint64_t digest, std::uint64_t step) {
            self.restore({completed, digest}, step);
          },
          nb::arg("completed"), nb::arg("digest"), nb::arg("step"), Released())
      .def("prepare_to_leave", &Engine::prepare_to_leave, Released())
      .def("may_leave", &Engine::may_leave, Released())
      .def("keeps_residual", &Engine::keeps_residual, Released())
      .def(
          "next_uncalled",
          [](Engine& self, double limit) {
            using What = std::tuple<std::uint64_t, std::size_t, int, int, bool, std::uint32_t>;
            const std::optional<Uncalled> found = self.next_uncalled(seconds(limit));
            if (!found) return std::optional<What>();
            const Descriptor& what = found->descriptor;
            return std::optional<What>({found->number, what.elements, static_cast<int>(what.dtype),
                                        static_cast<int>(what.op), what.bounded, found->stream});
          },
          nb::arg("timeout_seconds"), Released())
      .def(
          "check",
          [](Engine& self, std::uint64_t step, std::uint64_t hash) {
            std::vector<std::pair<std::uint64_t, std::vector<std::pair<Rank, std::uint64_t>>>> settled;
            for (CheckedStep& each : self.check(step, hash))
              settled.emplace_back(each.step, std::move(each.hashes));
            return settled;
          },
          nb::arg("step"), nb::arg("hash"), Released())
      .def("is_left_behind", &Engine::is_left_behind, Released())
      .def("behind", &Engine::behind, Released())
      .def("give_up_replay", &Engine::give_up_replay, Released())
      .def("events", [](Engine& self) { return events_of(self); })
      .def(
          "watch_outside", [](Engine& self, double limit) { self.watch_outside(seconds(limit)); },
          nb::arg("limit_seconds"), Released())
      .def("gone",
           [](Engine& self) {
             Gone gone;
             {
               nb::gil_scoped_release released;
               gone = self.gone();
             }
             return nb::make_tuple(gone.left, gone.lost);
           })
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
