#include "sim/network.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace optireduce::sim {
namespace {

[[noreturn]] void bad_argument(const std::string& what) {
  throw std::invalid_argument(what);
}

}  // namespace

Network::Network(SimOptions options)
    : options_(checked(std::move(options))), random_(options_.seed), now_(options_.begin) {
  GroupConfig config = options_.protocol;
  config.size = options_.ranks;
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    config.rank = rank;
    config.seal = seal_of(options_, rank);
    nodes_.push_back(std::make_unique<Node>(config, options_));
  }
  for (const Crash& crash : options_.crashes) events_.add(crash.at, EventKind::Crash, crash.rank);
  for (const Restart& restart : options_.restarts) events_.add(restart.at, EventKind::Restart, restart.rank);
  for (const Departure& departure : options_.departures)
    events_.add(departure.at, EventKind::Leave, departure.rank);
}

Stats Network::stats(Rank rank) const {
  return group(rank).stats();
}

const Group& Network::group(Rank rank) const {
  if (rank >= options_.ranks) {
    bad_argument("rank is " + std::to_string(rank) + ", must be below " + std::to_string(options_.ranks));
  }
  return nodes_[rank]->group();
}

RunResult Network::run(const std::vector<Collective>& operations, Duration bound,
                       const CompletionHook& hook) {
  check_usable();
  run_ = {&operations, &hook, {}, 0};
  run_.result.reports.assign(operations.size(), std::vector<std::optional<Report>>(options_.ranks));
  const Time begin = now_;
  check_calls();
  schedule_calls();
  while (run_.missing > 0 && step(begin + bound)) {
  }
  run_.result.finished = run_.missing == 0;
  run_.result.elapsed = now_ - begin;
  abandoned_ = !run_.result.finished;
  RunResult result = std::move(run_.result);
  run_ = {};
  return result;
}

bool Network::settle(Duration bound) {
  check_usable();
  const Time until = now_ + bound;
  while (!quiet()) {
    if (!step(until)) return false;
  }
  return true;
}

// ---- Events
// -------------------------------------------------------------------------------------------------------

/// Groups of an abandoned run still point to the caller's data: they must not be called again.
void Network::check_usable() const {
  if (abandoned_) throw std::logic_error("a run of this network did not finish: make a new one");
}

void Network::check_calls() const {
  std::vector<Duration> previous(options_.ranks);
  for (std::size_t i = 0; i < run_.operations->size(); ++i) {
    const auto& calls = (*run_.operations)[i].calls;
    if (calls.size() != options_.ranks) {
      bad_argument("operation " + std::to_string(i) + " has " + std::to_string(calls.size()) +
                   " calls, must have one for each of " + std::to_string(options_.ranks) + " ranks");
    }
    for (Rank rank = 0; rank < options_.ranks; ++rank) {
      if (calls[rank].follows) continue;
      if (calls[rank].start < previous[rank]) {
        bad_argument("rank " + std::to_string(rank) + " starts operation " + std::to_string(i) +
                     " before the one before");
      }
      previous[rank] = calls[rank].start;
    }
  }
}

void Network::schedule_calls() {
  for (std::size_t i = 0; i < run_.operations->size(); ++i) {
    for (Rank rank = 0; rank < options_.ranks; ++rank) {
      const Call& call = (*run_.operations)[i].calls[rank];
      if (call.start == Call::kNever || nodes_[rank]->crashed()) continue;
      if (!call.follows) events_.add(now_ + call.start, EventKind::Call, rank, static_cast<std::uint32_t>(i));
      ++run_.missing;
      ++nodes_[rank]->owed;
    }
  }
}

/// Nothing will happen any more: only timers are under way, and they are of no use.
bool Network::quiet() const {
  return events_.idle() && std::all_of(nodes_.begin(), nodes_.end(),
                                       [](const auto& node) { return node->deadline() == Time::never(); });
}

/// The next event, if it is not after `until`.
bool Network::step(Time until) {
  if (events_.empty() || events_.next_time() > until) return false;
  const Event event = events_.take();
  count_event();
  now_ = event.at;
  dispatch(event);
  return true;
}

void Network::dispatch(const Event& event) {
  if (event.kind == EventKind::Enter) return enter(event);    // the switch does not care how the rank is
  if (event.kind == EventKind::Arrive) return arrive(event);  // also while the rank does not run
  if (event.kind == EventKind::Crash) return crash(event.rank);
  if (event.kind == EventKind::Restart) {
    note(EventKind::Restart, event.rank, 0, 0);
    nodes_[event.rank]->restart();
    return pump(event.rank);
  }
  if (nodes_[event.rank]->crashed() || postpone(event)) return;
  switch (event.kind) {
    case EventKind::Wake:
      return wake(event.rank);
    case EventKind::Timer:
      return expire(event);
    case EventKind::Leave:
      return leave(event.rank);
    case EventKind::Act:
      note(EventKind::Act, event.rank, 0, event.index);
      nodes_[event.rank]->note_run(now_);
      if (run_.operations != nullptr) acts_[event.index]();
      return;
    default:
      return call(event);
  }
}

/// Puts off what a rank cannot do while it does not run.
bool Network::postpone(const Event& event) {
  Node& node = *nodes_[event.rank];
  const Time runs_at = node.runs_at(now_);
  if (runs_at == now_) return false;
  if (event.kind == EventKind::Timer && event.at == node.timer) node.timer = runs_at;
  if (event.kind == EventKind::Call && event.at == node.only_call) node.only_call = runs_at;
  events_.add(runs_at, event.kind, event.rank, event.index);
  return true;
}

/// All packets of a delivery have come to the ingress port.
void Network::enter(const Event& event) {
  const Delivery& delivery = fabric_.enter(now_, event);
  note(EventKind::Enter, event.rank, delivery.from, delivery.mask);
  fabric_.pass(event);
}

void Network::arrive(const Event& event) {
  Delivery delivery = fabric_.take(event);
  note(EventKind::Arrive, event.rank, delivery.from, delivery.mask, delivery.first());
  Node& node = *nodes_[event.rank];
  if (node.crashed()) {
    counters_.crash_dropped += delivery.packets();
    return;
  }
  node.receive(std::move(delivery), options_.receive_buffer_bytes, counters_);
  if (node.wake != Time::never()) return;
  const Time looks_at = node.runs_at(now_) + random_.duration_up_to(options_.wake_delay);
  if (looks_at == now_) return wake(event.rank);
  node.wake = looks_at;
  events_.add(looks_at, EventKind::Wake, event.rank);
}

void Network::wake(Rank rank) {
  Node& node = *nodes_[rank];
  node.wake = Time::never();
  note(EventKind::Wake, rank, 0, 0);
  node.note_run(now_);
  node.read_inbox(now_, counters_);
  pump(rank);
}

void Network::call(const Event& event) {
  const Collective& operation = (*run_.operations)[event.index];
  const Call& mine = operation.calls[event.rank];
  Node& node = *nodes_[event.rank];
  if (node.only_call && event.at != node.only_call) return;  // of a process before, or before a snapshot
  note(EventKind::Call, event.rank, 0, event.index);
  node.note_run(now_);
  const std::uint64_t number = node.group().start(node.clock(now_), {.descriptor = mine.descriptor,
                                                                     .data = mine.data,
                                                                     .timeout = operation.timeout,
                                                                     .weight = mine.weight,
                                                                     .stream = mine.stream,
                                                                     .step = mine.step,
                                                                     .scale = mine.scale,
                                                                     .stays_readable = mine.stays_readable,
                                                                     .wide = mine.wide});
  node.called[number] = event.index;
  pump(event.rank);
}

void Network::expire(const Event& event) {
  Node& node = *nodes_[event.rank];
  if (event.at == node.timer) node.timer = Time::never();
  if (node.deadline() > now_) return arm_timer(event.rank);  // it was moved to later meanwhile
  note(EventKind::Timer, event.rank, 0, 0);
  node.note_run(now_);
  node.group().handle_timeout(node.clock(now_));
  pump(event.rank);
}

/// The process ends: after its goodbye it answers nobody.
void Network::leave(Rank rank) {
  note(EventKind::Leave, rank, 0, 0);
  Node& node = *nodes_[rank];
  node.group().say_goodbye(node.clock(now_));
  pump(rank);
  crash(rank);
}

/// Nobody waits for the reports that the rank owes.
void Network::crash(Rank rank) {
  note(EventKind::Crash, rank, 0, 0);
  run_.missing -= nodes_[rank]->owed;
  nodes_[rank]->crash();
}

void Network::note(EventKind kind, Rank rank, Rank from, std::uint64_t detail,
                   std::span<const std::byte> first) {
  const TraceEntry entry{now_, kind, rank, from, detail, first};
  trace_.add(entry);
  if (options_.observer) options_.observer(entry);
}

void Network::count_event() {
  if (++counters_.events <= options_.max_events) return;
  throw std::runtime_error("no end after max_events = " + std::to_string(options_.max_events) +
                           " events, at " + std::to_string(Duration{now_.ns}.seconds()) +
                           " s of virtual time, seed " + std::to_string(options_.seed));
}

// ---- Return of a rank
// --------------------------------------------------------------------------------------------------

void Network::plan(Time at, Rank rank, std::function<void()> act) {
  events_.add(at, EventKind::Act, rank, static_cast<std::uint32_t>(acts_.size()));
  acts_.push_back(std::move(act));
}

void Network::restore(Rank rank, const Position& position, std::uint64_t step) {
  Node& node = *nodes_[rank];
  node.group().restore(node.clock(now_), position, step);
  const std::size_t next = position.completed, all = run_.operations->size();
  for (std::size_t i = next; i < all; ++i) run_.result.reports[i][rank].reset();
  run_.missing += all - next;  // also what was called in vain, and is called again
  run_.missing -= std::exchange(node.owed, all - next);
  node.only_call = Time::never();
  call_next(rank, next);
  pump(rank);
}

// ---- After every call into a group
// ----------------------------------------------------------------------------

void Network::pump(Rank rank) {
  Node& node = *nodes_[rank];
  const Time shown = node.clock(now_);
  for (transmit_.clear(); node.group().poll_transmit(shown, transmit_); transmit_.clear()) {
    count_event();
    fabric_.send(now_, rank, transmit_);
  }
  collect_completions(rank);
  arm_timer(rank);
}

void Network::collect_completions(Rank rank) {
  Node& node = *nodes_[rank];
  while (auto report = node.group().poll_completion()) {
    const auto found = node.called.find(report->operation);
    if (found == node.called.end()) continue;
    const std::uint32_t index = found->second;
    node.called.erase(found);
    note(EventKind::Complete, rank, 0, index);
    if (*run_.hook) (*run_.hook)(index, rank, *report);
    run_.result.reports[index][rank] = std::move(report);
    --run_.missing;
    --node.owed;
    call_next(rank, index + 1);
  }
}

void Network::call_next(Rank rank, std::size_t index) {
  if (index >= run_.operations->size()) return;
  const Call& next = (*run_.operations)[index].calls[rank];
  if (!next.follows || next.start == Call::kNever) return;
  events_.add(now_ + next.start, EventKind::Call, rank, static_cast<std::uint32_t>(index));
  if (nodes_[rank]->only_call) nodes_[rank]->only_call = now_ + next.start;
}

/// Keeps an event under way that is not later than what the group wants. A timer that moves to later costs
/// nothing until the event comes.
void Network::arm_timer(Rank rank) {
  Node& node = *nodes_[rank];
  const Time wanted = node.deadline();
  if (wanted >= node.timer) return;
  node.timer = std::max(wanted, now_);
  events_.add(node.timer, EventKind::Timer, rank);
}

}  // namespace optireduce::sim
