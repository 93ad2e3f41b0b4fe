#include "group/requests.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace optireduce {

void Requests::schedule(Time now, Operation& operation) {
  const auto ahead = [&](const Peer& peer) { return peer.completed > operation.number(); };
  bool any = false;
  for (Rank place = 0;
       operation.begun() && std::ranges::any_of(core_.peers, ahead) && place < operation.places(); ++place) {
    Inbox& inbox = operation.exchange().gather().inbox(place);
    const Rank to = whom_to_ask(operation, place);
    if (to == core_.config.rank || core_.peers[to].completed <= operation.number()) continue;
    inbox.note_all_sent();
    any = true;
  }
  const Duration wait = any ? Duration{} : core_.config.path.repair_min;
  core_.timers.set_earlier({TimerKind::Request, operation.number()}, now + wait);
}

void Requests::ask(Time now, Operation& operation) {
  if (!core_.best_effort.repairs(operation) || members_.is_out_of_reach(operation.number())) return;
  Exchange& exchange = operation.exchange();
  Time next = Time::never();
  for (Rank owner = 0; owner < operation.places(); ++owner) {
    if (ReduceScatter* const collector = exchange.collector(exchange.gather().index(owner)))
      next = std::min(next, ask_for_contributions(now, operation, *collector));
    if (!wants_decisions(operation, owner) || operation.gather().complete(owner)) continue;
    const Rank to = whom_to_ask(operation, owner);
    if (to == core_.config.rank) continue;
    const Rank shard = operation.gather().index(owner);
    Inbox& inbox = exchange.gather().inbox(owner);
    next = std::min(next, ask_for(now, operation, inbox, to, PacketType::Decision, shard));
  }
  if (next != Time::never()) core_.timers.set_earlier({TimerKind::Request, operation.number()}, next);
}

Time Requests::ask_for_contributions(Time now, Operation& operation, ReduceScatter& collector) {
  Time next = Time::never();
  for (Rank place = 0; place < operation.places(); ++place) {
    const Rank rank = operation.rank_at(place);
    if (rank == core_.config.rank || !collector.lacks(place) || core_.peers[rank].left) continue;
    Inbox& inbox = collector.inbox(place);
    next = std::min(next, ask_for(now, operation, inbox, rank, PacketType::Contribution, collector.index()));
  }
  return next;
}

/// Asks for one inbox's missing packets if it is time; when to look again.
Time Requests::ask_for(Time now, const Operation& operation, Inbox& inbox, Rank to, PacketType wanted,
                       Rank shard) {
  const RepairTimers timers = core_.repair_timers(to);
  const Time due = inbox.request_due(timers);
  if (due > now) return due;
  Control control{.type = PacketType::Request,
                  .to = to,
                  .operation = operation.number(),
                  .shard = shard,
                  .payload = written(now, inbox, to, wanted)};
  if (!control.payload.empty()) core_.controls.push_back(std::move(control));
  return now + timers.retry;
}

/// For decisions: who hands them to us. If our relay is gone, their owner; of an owner that is gone any
/// holder can tell them. They are asked in turn, the owner first. Our own rank: nobody.
Rank Requests::whom_to_ask(const Operation& operation, Rank owner) const {
  const Rank rank = operation.rank_at(owner);
  const Rank above = operation.rank_at(operation.setup().above(operation.setup().me, owner));
  if (!core_.config.elastic()) return above;
  const Inbox& inbox = operation.gather().inbox(owner);
  RankMask turn = members_.holders(operation, rank) & ~inbox.refused_by();
  if (turn == 0) return core_.config.rank;
  if (turn == bit_of(rank)) return members_.membership.serves(above, operation.number()) ? above : rank;
  const int first = has(turn, rank) ? place_in(turn, rank) : 0;
  for (int skip = (first + inbox.requests_in_vain()) % count_of(turn); skip > 0; --skip) turn &= turn - 1;
  return lowest_of(turn);
}

/// The payload of a request for what is missing; empty: nothing is.
std::vector<std::byte> Requests::written(Time now, Inbox& inbox, Rank to, PacketType wanted) {
  /// More would be asked for before the first are answered.
  constexpr std::size_t kMost = 96;
  constexpr std::size_t kFixed = RequestBody::kFixedBytes, kEntry = RequestBody::kEntryBytes;
  const std::size_t room = (core_.config.path.payload_bytes - kFixed) / kEntry;
  RequestBody body{core_.peers[to].newest, wanted, {}};
  inbox.take_missing(now, core_.repair_timers(to), std::min(room, kMost), body.entries);
  if (body.entries.empty()) return {};
  ++core_.stats.requests_sent;
  return to_bytes(body);
}

/// A rank that replays asks for what we may have forgotten: it must find out that nobody has it.
bool Requests::is_gone(const ReceivedRun& run, const Operation* operation) const {
  if (members_.is_member(run.header.sender) || run.operation >= core_.progress.completed()) return false;
  if (operation == nullptr) return true;
  const Rank shard = run.header.shard;
  return shard < operation->places() && !operation->exchange().keeps(operation->gather().owner(shard));
}

void Requests::handle(Time now, const ReceivedRun& run) {
  ++core_.stats.requests_received;
  const Rank from = run.header.sender;
  const auto body = from_bytes<RequestBody>({run.payload(0), run.header.length}, core_.config.size);
  if (!body) {
    ++core_.stats.malformed_packets;
    return;
  }
  if (const RejectBody* rejection = core_.outcomes.rejection(run.operation))
    return core_.tell_rejection(run.operation, *rejection, from);
  const Operation* const operation = core_.operations.find(run.operation);
  const bool contribution = body->wanted == PacketType::Contribution;
  if (!contribution && is_gone(run, operation)) {
    core_.controls.push_back(
        {.type = PacketType::Gone, .to = from, .operation = run.operation, .shard = run.header.shard});
    return;
  }
  // Any header says that we are through: enough for a rank that waits for our contribution.
  if (operation == nullptr || (contribution && operation->finished()))
    return core_.tell(PacketType::Status, from);
  const OperationSetup& setup = operation->setup();
  if (contribution && operation->begun() && operation->call().weights.abstains() &&
      setup.gives_to(setup.place_of(from)))
    return core_.tell_abstention(*operation, from);
  const auto min_age = static_cast<std::uint32_t>(core_.repair_timers(from).retry.ns / 1000);
  const RequestContext context{operation->place_of(from), from, body->newest, as_timestamp(now), min_age};
  SendWindow& window = core_.peers[from].window;
  std::uint32_t lost = 0;
  for (const RequestEntry& entry : body->entries) {
    const std::uint64_t packets =
        operation->exchange().to_repair(body->wanted, run.header.shard, entry, context);
    if (packets == 0) continue;
    // Requests may come faster than a window lets their answers go: what is asked for twice is sent once.
    const Repair repair{body->wanted, run.operation, from, run.header.shard, entry.chunk};
    const RepairKey key{contribution, repair.operation, from, repair.shard, repair.chunk};
    core_.repairs.try_emplace(key, repair).first->second.packets |= packets;
    lost += static_cast<std::uint32_t>(std::popcount(packets));
  }
  if (lost != 0 && !operation->finished()) window.on_loss(now, lost);
}

}  // namespace optireduce
