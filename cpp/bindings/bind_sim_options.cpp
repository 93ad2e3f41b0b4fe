// Python's view of what a simulated network is told before it runs: times in seconds.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "bindings/delivery.h"
#include "bindings/sim_convert.h"
#include "sim/options.h"

namespace nb = nanobind;
using namespace optireduce;

namespace {

using sim::ForcedLossOptions;
using sim::LinkOptions;
using sim::PortOptions;
using sim::SimOptions;

/// A duration that Python reads and writes in seconds.
template <typename Class, typename Owner>
void bind_seconds(Class& cls, const char* name, Duration Owner::* field) {
  cls.def_prop_rw(
      name, [field](const Owner& o) { return (o.*field).seconds(); },
      [field, name](Owner& o, double value) { o.*field = sim_seconds(name, value); });
}

/// A field of one of the option structs inside.
template <typename Class, typename Part, typename Value>
void bind_field(Class& cls, const char* name, Part& (*part)(SimOptions&), Value Part::* field) {
  cls.def_prop_rw(
      name, [part, field](SimOptions& o) { return part(o).*field; },
      [part, field](SimOptions& o, Value value) { part(o).*field = value; });
}

GroupConfig& protocol_of(SimOptions& options) {
  return options.protocol;
}

PathOptions& path_of(SimOptions& options) {
  return options.protocol.path;
}

BestEffortOptions& best_effort_of(SimOptions& options) {
  return options.protocol.best_effort;
}

void bind_link(nb::module_& m) {
  nb::class_<LinkOptions> link(m, "LinkOptions");
  link.def(nb::init<>())
      .def_rw("bits_per_second", &LinkOptions::bits_per_second)
      .def_rw("loss", &LinkOptions::loss)
      .def_rw("reorder", &LinkOptions::reorder)
      .def_rw("duplicate", &LinkOptions::duplicate)
      .def_rw("queue_bytes", &LinkOptions::queue_bytes)
      .def_rw("spike", &LinkOptions::spike);
  bind_seconds(link, "delay_seconds", &LinkOptions::delay);
  bind_seconds(link, "jitter_seconds", &LinkOptions::jitter);
  bind_seconds(link, "reorder_seconds", &LinkOptions::reorder_delay);
  bind_seconds(link, "spike_seconds", &LinkOptions::spike_delay);
}

void bind_port(nb::module_& m) {
  nb::class_<PortOptions>(m, "PortOptions")
      .def(nb::init<>())
      .def_rw("bits_per_second", &PortOptions::bits_per_second)
      .def_rw("queue_bytes", &PortOptions::queue_bytes)
      .def_rw("burst_bytes", &PortOptions::burst_bytes)
      .def_rw("policer", &PortOptions::policer)
      .def_rw("whole_batches", &PortOptions::whole_batches);
}

ForcedLossOptions::Pattern loss_pattern(const std::string& name) {
  if (name == "random") return ForcedLossOptions::Pattern::Random;
  if (name == "tail") return ForcedLossOptions::Pattern::Tail;
  if (name == "bursts") return ForcedLossOptions::Pattern::Bursts;
  if (name == "storms") return ForcedLossOptions::Pattern::Storms;
  throw std::invalid_argument("pattern is \"" + name +
                              "\", must be \"random\", \"tail\", \"bursts\" or \"storms\"");
}

ForcedLossOptions::Hopeless loss_hopeless(const std::string& name) {
  if (name == "nothing") return ForcedLossOptions::Hopeless::Nothing;
  if (name == "contributions") return ForcedLossOptions::Hopeless::Contributions;
  if (name == "everything") return ForcedLossOptions::Hopeless::Everything;
  throw std::invalid_argument("hopeless is \"" + name +
                              "\", must be \"nothing\", \"contributions\" or \"everything\"");
}

Seal::Kind seal_kind(const std::string& auth) {
  if (auth == "token") return Seal::Kind::Token;
  if (auth == "mac") return Seal::Kind::Tag;
  throw std::invalid_argument("auth is \"" + auth + "\", must be \"token\" or \"mac\"");
}

template <typename Class>
void bind_protocol(Class& options) {
  options.def_prop_rw(
      "auth", [](const SimOptions& o) { return o.seal == Seal::Kind::Tag ? "mac" : "token"; },
      [](SimOptions& o, const std::string& auth) { o.seal = seal_kind(auth); });
  options.def_prop_rw(
      "delivery", [](const SimOptions& o) { return delivery_name(o.protocol.delivery); },
      [](SimOptions& o, const std::string& name) { o.protocol.delivery = delivery_of(name); });
  bind_field(options, "payload_bytes", path_of, &PathOptions::payload_bytes);
  bind_field(options, "window_bytes", path_of, &PathOptions::window_bytes);
  bind_field(options, "early_bytes", protocol_of, &GroupConfig::early_bytes);
  bind_field(options, "log_bytes", protocol_of, &GroupConfig::log_bytes);
  bind_field(options, "multicast", protocol_of, &GroupConfig::multicast);
  bind_field(options, "shuffle", protocol_of, &GroupConfig::shuffle);
  bind_field(options, "max_lag", protocol_of, &GroupConfig::max_lag);
  bind_field(options, "exclude_at_most", protocol_of, &GroupConfig::exclude_at_most);
  bind_field(options, "fixed_membership", protocol_of, &GroupConfig::fixed_membership);
  bind_field(options, "min_ranks", protocol_of, &GroupConfig::min_ranks);
  bind_field(options, "warmup_operations", best_effort_of, &BestEffortOptions::warmup_operations);
  bind_field(options, "bound_percentile", best_effort_of, &BestEffortOptions::percentile);
  bind_field(options, "bound_least", best_effort_of, &BestEffortOptions::least);
  bind_field(options, "bound_most", best_effort_of, &BestEffortOptions::most);
  options.def_prop_rw(
      "quorum_seconds", [](const SimOptions& o) { return o.protocol.quorum_wait.seconds(); },
      [](SimOptions& o, double seconds) { o.protocol.quorum_wait = Duration::from_seconds(seconds); });
  options.def_prop_rw(
      "exact_silence_seconds", [](const SimOptions& o) { return o.protocol.exact_silence.seconds(); },
      [](SimOptions& o, double seconds) { o.protocol.exact_silence = Duration::from_seconds(seconds); });
}

template <typename Class>
void bind_paths(Class& options) {
  options
      .def(
          "set_link",
          [](SimOptions& o, std::int64_t from, std::int64_t to, const LinkOptions& link) {
            o.other_links[{sim_rank("source", from), sim_rank("destination", to)}] = link;
          },
          nb::arg("source"), nb::arg("destination"), nb::arg("link"))
      .def(
          "set_egress",
          [](SimOptions& o, std::int64_t rank, const PortOptions& port) {
            o.other_egress[sim_rank("rank", rank)] = port;
          },
          nb::arg("rank"), nb::arg("port"))
      .def(
          "set_ingress",
          [](SimOptions& o, std::int64_t rank, const PortOptions& port) {
            o.other_ingress[sim_rank("rank", rank)] = port;
          },
          nb::arg("rank"), nb::arg("port"))
      .def(
          "add_background",
          [](SimOptions& o, std::int64_t rank, double begin, double end, double bits_per_second) {
            o.backgrounds.push_back({sim_rank("rank", rank), sim_time("begin_seconds", begin),
                                     sim_time("end_seconds", end), bits_per_second});
          },
          nb::arg("rank"), nb::arg("begin_seconds"), nb::arg("end_seconds"), nb::arg("bits_per_second"))
      .def(
          "add_cut",
          [](SimOptions& o, std::int64_t from, std::int64_t to, double begin, double end) {
            o.cuts.push_back({sim_rank("source", from), sim_rank("destination", to),
                              sim_time("begin_seconds", begin), sim_time("end_seconds", end)});
          },
          nb::arg("source"), nb::arg("destination"), nb::arg("begin_seconds"), nb::arg("end_seconds"))
      .def(
          "add_group_outage",
          [](SimOptions& o, std::int64_t rank, double begin, double end) {
            o.group_outages.push_back(
                {sim_rank("rank", rank), sim_time("begin_seconds", begin), sim_time("end_seconds", end)});
          },
          nb::arg("rank"), nb::arg("begin_seconds"), nb::arg("end_seconds"));
}

template <typename Class>
void bind_hostile(Class& options) {
  options.def(
      "set_hostile",
      [](SimOptions& o, double forge, double truncate, double mangle, double replay, double replay_delay,
         double tamper) {
        o.hostile = {forge, truncate, mangle, replay, sim_seconds("replay_seconds", replay_delay), tamper};
      },
      nb::arg("forge"), nb::arg("truncate"), nb::arg("mangle"), nb::arg("replay"), nb::arg("replay_seconds"),
      nb::arg("tamper"));
}

template <typename Class>
void bind_rank_faults(Class& options) {
  options
      .def(
          "add_pause",
          [](SimOptions& o, std::int64_t rank, double begin, double end) {
            o.pauses.push_back(
                {sim_rank("rank", rank), sim_time("begin_seconds", begin), sim_time("end_seconds", end)});
          },
          nb::arg("rank"), nb::arg("begin_seconds"), nb::arg("end_seconds"))
      .def(
          "add_crash",
          [](SimOptions& o, std::int64_t rank, double at) {
            o.crashes.push_back({sim_rank("rank", rank), sim_time("at_seconds", at)});
          },
          nb::arg("rank"), nb::arg("at_seconds"))
      .def(
          "set_clock_offset",
          [](SimOptions& o, std::int64_t rank, double offset) {
            o.clock_offset[sim_rank("rank", rank)] = sim_seconds("offset_seconds", offset);
          },
          nb::arg("rank"), nb::arg("offset_seconds"))
      .def(
          "set_clock_drift",
          [](SimOptions& o, std::int64_t rank, double parts_per_million) {
            o.clock_drift[sim_rank("rank", rank)] = parts_per_million;
          },
          nb::arg("rank"), nb::arg("parts_per_million"));
}

}  // namespace

void bind_sim_options(nb::module_& m) {
  bind_link(m);
  bind_port(m);
  nb::class_<SimOptions> options(m, "SimulationOptions");
  options.def(nb::init<>())
      .def_prop_rw(
          "ranks", [](const SimOptions& o) { return o.ranks; },
          [](SimOptions& o, std::int64_t ranks) { o.ranks = sim_rank("ranks", ranks); })
      .def_rw("seed", &SimOptions::seed)
      .def_prop_rw(
          "rows", [](const SimOptions& o) { return o.protocol.rows; },
          [](SimOptions& o, const Rows& rows) { o.protocol.rows = rows; })
      .def_rw("link", &SimOptions::link)
      .def_rw("egress", &SimOptions::egress)
      .def_rw("ingress", &SimOptions::ingress)
      .def(
          "set_forced_loss",
          [](SimOptions& o, const std::string& pattern, const std::string& hopeless, double share,
             double burst_packets, std::uint64_t first_operation, std::uint32_t least_elements) {
            o.forced_loss = {loss_pattern(pattern), loss_hopeless(hopeless), share,
                             burst_packets,         first_operation,         least_elements};
          },
          nb::arg("pattern"), nb::arg("hopeless"), nb::arg("share"), nb::arg("burst_packets"),
          nb::arg("first_operation"), nb::arg("least_elements"))
      .def_rw("coalesce", &SimOptions::coalesce)
      .def_rw("receive_buffer_bytes", &SimOptions::receive_buffer_bytes)
      .def_rw("max_events", &SimOptions::max_events);
  bind_seconds(options, "wake_seconds", &SimOptions::wake_delay);
  bind_protocol(options);
  bind_paths(options);
  bind_rank_faults(options);
  bind_hostile(options);
}
