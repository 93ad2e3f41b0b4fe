// N ranks in one process, in virtual time: the second driver of the protocol. Links lose, delay, reorder and
// copy packets, ports are shared; ranks pause, crash, come late or never, and have clocks of their own. All
// chance comes from one seed, so that every run can be repeated.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "operation/call.h"
#include "sim/counters.h"
#include "sim/event_queue.h"
#include "sim/fabric.h"
#include "sim/node.h"
#include "sim/options.h"
#include "sim/random.h"
#include "sim/trace.h"
#include "stage/bucket.h"
#include "wire/packet.h"

namespace optireduce::sim {

/// One rank's part in an operation.
struct Call {
  static constexpr Duration kNever{Time::never().ns};

  Descriptor descriptor;
  std::byte* data = nullptr;  // valid until the operation's report
  Duration start{};           // after the beginning of the run; kNever: the rank does not take part
  std::uint32_t weight = 1;   // samples behind the contribution
  bool follows = false;       // `start` is after the end of this rank's operation before, as in training
  std::uint32_t stream = 0;   // see optireduce::Call, as the rest
  std::uint64_t step = 0;
  float scale = 1;
  bool stays_readable = false;
  WideMemory wide = {};
};

/// One all-reduce: a call for each rank.
struct Collective {
  std::vector<Call> calls;
  Duration timeout = Duration::millis(60'000);
};

struct RunResult {
  std::vector<std::vector<std::optional<Report>>> reports;  // by operation, then rank
  bool finished = false;  // everybody who called has a report, or has crashed
  Duration elapsed;       // virtual
};

/// Called when an operation is over on a rank: which one of the run, where, and how.
using CompletionHook = std::function<void(std::size_t operation, Rank rank, const Report& report)>;

class Network {
 public:
  /// Throws std::invalid_argument that names the option.
  explicit Network(SimOptions options);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// Runs the operations, called by every rank in this order, until all reports are there or `bound` has
  /// passed: then the network can not be used any further. Throws std::runtime_error after max_events.
  RunResult run(const std::vector<Collective>& operations, Duration bound, const CompletionHook& hook = {});

  /// Runs on until nothing is under way and no group wants to be woken; false if that takes longer than
  /// `bound`.
  bool settle(Duration bound);

  /// For hooks: does something at that time, while the rank runs; not if it has crashed.
  void plan(Time at, Rank rank, std::function<void()> act);
  /// For such an act: the rank takes over a snapshot, and goes on with the operation of this run that follows
  /// it. In the first run of a network, whose operations all ranks call.
  void restore(Rank rank, const Position& position, std::uint64_t step);

  /// Somebody sends this packet in the name of `from`; it arrives a link's delay from now.
  void inject(Rank from, Rank to, std::vector<std::byte> packet) {
    fabric_.inject(now_, from, to, std::move(packet));
  }

  Time now() const { return now_; }
  Rank ranks() const { return options_.ranks; }
  Stats stats(Rank rank) const;
  const Group& group(Rank rank) const;
  Group& group(Rank rank) { return nodes_[rank]->group(); }
  bool crashed(Rank rank) const { return nodes_[rank]->crashed(); }
  const Counters& counters() const { return counters_; }
  /// Equal for equal options, operations and seeds.
  std::uint64_t trace_hash() const { return trace_.value(); }

 private:
  struct CurrentRun {
    const std::vector<Collective>* operations = nullptr;
    const CompletionHook* hook = nullptr;
    RunResult result;
    std::size_t missing = 0;  // reports
  };

  // Events.
  void check_calls() const;
  void schedule_calls();
  void check_usable() const;
  bool quiet() const;
  bool step(Time until);
  void dispatch(const Event& event);
  bool postpone(const Event& event);
  void enter(const Event& event);
  void arrive(const Event& event);
  void wake(Rank rank);
  void call(const Event& event);
  void expire(const Event& event);
  void leave(Rank rank);
  void crash(Rank rank);
  void note(EventKind kind, Rank rank, Rank from, std::uint64_t detail,
            std::span<const std::byte> first = {});
  void count_event();

  // After every call into a group.
  void pump(Rank rank);
  void collect_completions(Rank rank);
  void call_next(Rank rank, std::size_t index);
  void arm_timer(Rank rank);

  SimOptions options_;
  Random random_;
  Time now_;
  EventQueue events_;
  std::vector<std::unique_ptr<Node>> nodes_;
  Transmit transmit_;
  Counters counters_;
  Fabric fabric_{{options_, nodes_, random_, events_, counters_}};  // after what it refers to
  TraceHash trace_;
  CurrentRun run_;
  std::deque<std::function<void()>> acts_;  // of Act events
  bool abandoned_ = false;                  // a run ended without all its reports
};

}  // namespace optireduce::sim
