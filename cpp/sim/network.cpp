#include "sim/network.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "sim/hostile.h"

namespace optireduce::sim {
namespace {

[[noreturn]] void bad_option(const std::string& what) {
  throw std::invalid_argument(what);
}

void check_share(const char* name, double value) {
  if (!(value >= 0 && value <= 1))
    bad_option(std::string(name) + " is " + std::to_string(value) + ", must be in [0, 1]");
}

void check_not_negative(const char* name, Duration value) {
  if (value.ns < 0)
    bad_option(std::string(name) + " is " + std::to_string(value.seconds()) + " s, must not be negative");
}

void check(const LinkOptions& link) {
  if (!(link.bits_per_second >= 0)) {
    bad_option("bits_per_second is " + std::to_string(link.bits_per_second) +
               ", must be 0 (unlimited) or more");
  }
  check_not_negative("delay", link.delay);
  check_not_negative("jitter", link.jitter);
  check_not_negative("reorder_delay", link.reorder_delay);
  check_share("loss", link.loss);
  check_share("reorder", link.reorder);
  check_share("duplicate", link.duplicate);
}

void check_rank(const char* name, Rank rank, Rank ranks) {
  if (rank >= ranks) {
    bad_option(std::string(name) + " is rank " + std::to_string(rank) + ", must be below " +
               std::to_string(ranks));
  }
}

SimOptions checked(SimOptions options) {
  if (options.ranks == 0) bad_option("ranks is 0, must be at least 1");
  const std::uint32_t payload = options.protocol.payload_bytes;
  if (payload % 16 != 0 || payload == 0 || payload + kHeaderBytes > WireBatch::kMaxBytes) {
    bad_option("payload_bytes is " + std::to_string(payload) +
               ", must be a multiple of 16 that fits a datagram");
  }
  check(options.link);
  for (const auto& [pair, link] : options.other_links) {
    check_rank("a link's sender", pair.first, options.ranks);
    check_rank("a link's receiver", pair.second, options.ranks);
    check(link);
  }
  for (const LinkCut& cut : options.cuts) {
    check_rank("a cut's sender", cut.from, options.ranks);
    check_rank("a cut's receiver", cut.to, options.ranks);
  }
  for (const Pause& pause : options.pauses) check_rank("a pause", pause.rank, options.ranks);
  for (const Departure& departure : options.departures) {
    check_rank("a departure", departure.rank, options.ranks);
    if (departure.at < options.begin) bad_option("a departure is before the network's beginning");
  }
  check_share("forge", options.hostile.forge);
  check_share("truncate", options.hostile.truncate);
  check_share("mangle", options.hostile.mangle);
  check_share("replay", options.hostile.replay);
  check_share("coalesce", options.coalesce);
  check_not_negative("wake_delay", options.wake_delay);
  return options;
}

}  // namespace

Network::Network(SimOptions options)
    : options_(checked(std::move(options))),
      random_(options_.seed),
      now_(options_.begin),
      links_(std::size_t{options_.ranks} * options_.ranks) {
  EndpointConfig config = options_.protocol;
  config.size = options_.ranks;
  if (config.token == 0) config.token = kDefaultToken;
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    config.rank = rank;
    nodes_.push_back(std::make_unique<Node>(config, options_.pauses));
  }
  for (const Departure& departure : options_.departures)
    events_.add(departure.at, EventKind::Leave, departure.rank);
}

const Stats& Network::stats(Rank rank) const {
  return endpoint(rank).stats();
}

const Endpoint& Network::endpoint(Rank rank) const {
  check_rank("the argument", rank, options_.ranks);
  return nodes_[rank]->endpoint();
}

RunResult Network::run(const std::vector<Collective>& operations, Duration bound,
                       const CompletionHook& hook) {
  check_usable();
  run_ = {&operations, &hook, {}, 0};
  run_.result.reports.assign(operations.size(), std::vector<std::optional<Report>>(options_.ranks));
  const Time begin = now_;
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

/// Endpoints of an abandoned run still point to the caller's data: they must not be called again.
void Network::check_usable() const {
  if (abandoned_) throw std::logic_error("a run of this network did not finish: make a new one");
}

void Network::schedule_calls() {
  std::vector<Duration> previous(options_.ranks);
  for (std::size_t i = 0; i < run_.operations->size(); ++i) {
    const auto& calls = (*run_.operations)[i].calls;
    if (calls.size() != options_.ranks) {
      bad_option("operation " + std::to_string(i) + " has " + std::to_string(calls.size()) +
                 " calls, must have one for each of " + std::to_string(options_.ranks) + " ranks");
    }
    for (Rank rank = 0; rank < options_.ranks; ++rank) {
      if (calls[rank].start < previous[rank]) {
        bad_option("rank " + std::to_string(rank) + " starts operation " + std::to_string(i) +
                   " before the one before");
      }
      previous[rank] = calls[rank].start;
      if (calls[rank].start == Call::kNever) continue;
      events_.add(now_ + calls[rank].start, EventKind::Call, rank, static_cast<std::uint32_t>(i));
      ++run_.missing;
    }
  }
}

/// Nothing will happen any more: only timers are under way, and they are of no use.
bool Network::quiet() const {
  return events_.only_timers() && std::all_of(nodes_.begin(), nodes_.end(), [](const auto& node) {
           return node->endpoint().poll_timeout() == Time::never();
         });
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
  if (event.kind == EventKind::Arrive) return arrive(event);  // also while the rank does not run
  if (postpone(event)) return;
  switch (event.kind) {
    case EventKind::Wake:
      return wake(event.rank);
    case EventKind::Timer:
      return expire(event);
    case EventKind::Leave:
      return leave(event.rank);
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
  events_.add(runs_at, event.kind, event.rank, event.index);
  return true;
}

void Network::arrive(const Event& event) {
  Delivery delivery = std::move(deliveries_[event.index]);
  free_slots_.push_back(event.index);
  note(EventKind::Arrive, event.rank, delivery.from, delivery.mask, delivery.first());
  Node& node = *nodes_[event.rank];
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
  node.read_inbox(now_, counters_);
  pump(rank);
}

void Network::call(const Event& event) {
  const Collective& operation = (*run_.operations)[event.index];
  const Call& mine = operation.calls[event.rank];
  note(EventKind::Call, event.rank, 0, event.index);
  Node& node = *nodes_[event.rank];
  const std::uint64_t number = node.endpoint().start(now_, mine.descriptor, mine.data, operation.timeout);
  node.called[number] = event.index;
  pump(event.rank);
}

void Network::expire(const Event& event) {
  Node& node = *nodes_[event.rank];
  if (event.at == node.timer) node.timer = Time::never();
  if (node.endpoint().poll_timeout() > now_) return arm_timer(event.rank);  // it was moved to later meanwhile
  note(EventKind::Timer, event.rank, 0, 0);
  node.endpoint().handle_timeout(now_);
  pump(event.rank);
}

void Network::leave(Rank rank) {
  note(EventKind::Leave, rank, 0, 0);
  nodes_[rank]->endpoint().say_goodbye(now_);
  pump(rank);
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

// ---- After every call into an endpoint
// ----------------------------------------------------------------------------

void Network::pump(Rank rank) {
  Endpoint& endpoint = nodes_[rank]->endpoint();
  for (transmit_.clear(); endpoint.poll_transmit(now_, transmit_); transmit_.clear()) {
    count_event();
    send(rank, transmit_);
  }
  collect_completions(rank);
  arm_timer(rank);
}

void Network::collect_completions(Rank rank) {
  Node& node = *nodes_[rank];
  while (auto report = node.endpoint().poll_completion()) {
    const auto found = node.called.find(report->operation);
    if (found == node.called.end()) continue;
    const std::uint32_t index = found->second;
    node.called.erase(found);
    note(EventKind::Complete, rank, 0, index);
    if (*run_.hook) (*run_.hook)(index, rank, *report);
    run_.result.reports[index][rank] = std::move(report);
    --run_.missing;
  }
}

/// Keeps an event under way that is not later than what the endpoint wants. A timer that moves to later costs
/// nothing until the event comes.
void Network::arm_timer(Rank rank) {
  Node& node = *nodes_[rank];
  const Time wanted = node.endpoint().poll_timeout();
  if (wanted >= node.timer) return;
  node.timer = std::max(wanted, now_);
  events_.add(node.timer, EventKind::Timer, rank);
}

// ---- Sending
// ------------------------------------------------------------------------------------------------------

void Network::send(Rank from, const Transmit& transmit) {
  const auto batch = assemble(transmit, from, options_.ranks);
  for (const Rank to : transmit.to) send_batch(from, to, batch);
}

void Network::send_batch(Rank from, Rank to, const std::shared_ptr<const WireBatch>& batch) {
  counters_.sent += batch->packets;
  counters_.sent_bytes += batch->bytes.size();
  if (is_cut(from, to)) {
    counters_.cut += batch->packets;
    return;
  }
  const LinkOptions& options = link_options(from, to);
  Link& link = links_[std::size_t{from} * options_.ranks + to];
  const bool coalesced = random_.chance(options_.coalesce);
  const Duration batch_jitter = random_.duration_up_to(options.jitter);
  Delivery together{batch, 0, from, true};
  Time together_at = now_;
  for (std::uint32_t i = 0; i < batch->packets; ++i) {
    const auto passed = link.serialise(now_, batch->length_of(i), options);
    if (!passed) {
      ++counters_.queue_dropped;
      continue;
    }
    const std::uint64_t bit = std::uint64_t{1} << i;
    if (random_.chance(options.duplicate)) {
      ++counters_.duplicated;
      deliver(*passed + options.delay + random_.duration_up_to(options.reorder_delay), to,
              {batch, bit, from, false});
    }
    const auto travelled = travel(options, random_, counters_);
    if (!travelled) continue;
    if (coalesced && *travelled == options.delay) {
      together.mask |= bit;
      together_at = *passed + *travelled + batch_jitter;
    } else {
      deliver(*passed + *travelled + random_.duration_up_to(options.jitter), to,
              {batch, bit, from, coalesced});
    }
  }
  if (together.mask != 0) deliver(together_at, to, std::move(together));
  send_hostile(from, to, *batch, options);
}

void Network::send_hostile(Rank from, Rank to, const WireBatch& batch, const LinkOptions& link) {
  const HostileOptions& hostile = options_.hostile;
  if (hostile.forge + hostile.truncate + hostile.mangle + hostile.replay <= 0) return;
  for (std::uint32_t i = 0; i < batch.packets; ++i) {
    for (HostilePacket& packet : sabotage(batch.packet(i), options_.ranks, hostile, random_)) {
      ++counters_.hostile;
      const Time at = now_ + link.delay + packet.delay;
      deliver(at, to, {single_packet(std::move(packet.bytes)), 1, from, random_.chance(0.5)});
    }
  }
}

void Network::deliver(Time at, Rank to, Delivery delivery) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::uint32_t>(deliveries_.size()));
    deliveries_.emplace_back();
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  deliveries_[slot] = std::move(delivery);
  events_.add(at, EventKind::Arrive, to, slot);
}

const LinkOptions& Network::link_options(Rank from, Rank to) const {
  if (options_.other_links.empty()) return options_.link;
  const auto found = options_.other_links.find({from, to});
  return found == options_.other_links.end() ? options_.link : found->second;
}

bool Network::is_cut(Rank from, Rank to) const {
  return std::any_of(options_.cuts.begin(), options_.cuts.end(), [&](const LinkCut& cut) {
    return cut.from == from && cut.to == to && now_ >= cut.begin && now_ < cut.end;
  });
}

}  // namespace optireduce::sim
