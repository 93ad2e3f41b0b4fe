#include "group/calls.h"

#include <algorithm>
#include <stdexcept>

namespace optireduce {

void Calls::check(const Call& call) const {
  const Descriptor& what = call.descriptor;
  const std::string elements = std::to_string(what.elements);
  const std::size_t most = core_.most_bytes() / size_of(what.dtype);
  if (what.elements > most)
    throw std::invalid_argument("elements " + elements + " is more than one operation can hold (" +
                                std::to_string(most) + "): split it");
  if (what.op == ReduceOp::Gather && what.elements % core_.config.size != 0)
    throw std::invalid_argument("elements " + elements + " of a gather is not a multiple of " +
                                std::to_string(core_.config.size) + " ranks");
  const WideMemory& wide = call.wide;
  if (wide.values != nullptr &&
      (what.op == ReduceOp::Gather || !can_stand_for(what.dtype, what.elements, wide.count)))
    throw std::invalid_argument(describe(what) + " cannot stand for " + std::to_string(wide.count) +
                                " float32");
  if (what.bounded && what.op == ReduceOp::Gather)
    throw std::invalid_argument(describe(what) + " is bounded: only sums and means have deadlines");
  if (what.bounded && core_.config.delivery == Delivery::Carry && call.stream == 0)
    throw std::invalid_argument("stream is 0: a bounded call needs one, under which its residuals are kept");
}

std::uint64_t Calls::take(Time now, const Call& call) {
  check(call);
  LocalCall local{call, core_.progress.take_number(call.step), now};
  local.step = core_.progress.step_of(local.number);
  local.weights = Weights(call.weight);
  const GroupConfig& config = core_.config;
  const bool carries = config.delivery == Delivery::Carry, grid = !config.rows.empty();
  const bool weighted = local.descriptor.op == ReduceOp::WeightedMean;
  // Decisions name at most 64 ranks, a grid knows no best effort, and the sum of a row that says who is in it
  // has no room for its weight: there operations are exact.
  if (carries ? config.size > kMostNamed || (weighted && grid) : grid) local.descriptor.bounded = false;
  // Nothing is kept there that would have a weight of its own.
  if (weighted && (!carries || grid)) local.descriptor.op = ReduceOp::Mean;
  if (config.size == 1) local.wide = {};  // nothing will ever travel
  core_.waiting.push_back(local);
  core_.timers.set({TimerKind::Fail, local.number}, local.fails_at());
  return local.number;
}

const Descriptor* Calls::descriptor_of(std::uint64_t number) {
  const auto call = std::ranges::find(core_.waiting, number, &LocalCall::number);
  if (call != core_.waiting.end()) return &call->descriptor;
  const Operation* const operation = core_.operations.find_open(number);
  return operation == nullptr ? nullptr : &operation->descriptor();
}

std::optional<Uncalled> Calls::uncalled() const {
  const std::uint64_t number = core_.progress.next_call();
  const Operation* const operation = core_.operations.find_open(number);
  if (operation == nullptr) return std::nullopt;
  return Uncalled{number, operation->descriptor(), operation->setup().stream};
}

void Calls::begin_waiting(Time now) {
  while (!core_.waiting.empty() && may_begin(core_.waiting.front())) begin(now, core_.waiting.front());
}

bool Calls::may_begin(const LocalCall& call) const {
  const ViewChange& changes = members_.changes;
  if (members_.halted() || call.number >= members_.reach_end()) return false;
  // To begin may decide, and others were told that an exact operation is not decided.
  if (!call.descriptor.bounded && changes.changing()) return false;
  if (!members_.may_be_first(call.number) && core_.operations.find_open(call.number) == nullptr) return false;
  const std::uint64_t least = members_.least_completed();
  const std::uint64_t newest = core_.progress.step_of(least) + core_.config.max_lag;
  return least >= call.number || call.step <= newest;
}

void Calls::begin(Time now, LocalCall call) {
  Operation* operation = core_.operations.find_open(call.number);
  if (operation == nullptr) operation = &make_operation(now, call.number, call.descriptor, call.stream);
  if (refuse(now, call, *operation)) return;
  core_.waiting.pop_front();
  core_.progress.touch(call.number);
  call.contributes = members_.membership.serves(core_.config.rank, call.number);
  begin_operation(now, *operation, call);
  if (core_.best_effort.begin(*operation, core_.operations.bytes_before(call.number))) {
    check_best_effort(now, *operation);
  } else {
    check_shard(now, call.number);  // deadlines may count from our beginning
  }
  if (core_.operations.find_open(call.number) != operation) return;  // its time was over at once
  advance(now, *operation);
}

/// Packets of the operation say something else than the call, or a rank that it needs has left.
bool Calls::refuse(Time now, const LocalCall& call, const Operation& operation) {
  Rank first = core_.config.rank;  // whose packets came first
  for (Rank place = 0; place < operation.places(); ++place) {
    if (operation.begun_at(place) != Time::never()) first = operation.rank_at(place);
  }
  if (operation.descriptor() != call.descriptor || operation.setup().stream != call.stream) {
    reject(now, call.number,
           {RejectReason::Mismatch, first, core_.config.rank, call.descriptor, operation.descriptor()});
    return true;
  }
  const auto gone = std::ranges::find(core_.peers, true, &Peer::left);
  if (gone == core_.peers.end() || !core_.config.needs_everybody(call.descriptor.bounded)) return false;
  reject_deserted(now, call.number, call.descriptor, gone->rank);
  return true;
}

void Calls::begin_operation(Time now, Operation& operation, const LocalCall& call) {
  operation.begin(now, call, core_.residuals);
  core_.oldest_residual = core_.residuals.oldest(call.step);
  requests_.schedule(now, operation);
  if (!operation.call().weights.abstains() || !operation.setup().serves()) return;
  for (Rank place = 0; place < operation.places(); ++place) {
    if (operation.setup().gives_to(place)) core_.tell_abstention(operation, operation.rank_at(place));
  }
}

Operation& Calls::make_operation(Time now, std::uint64_t number, const Descriptor& descriptor,
                                 std::uint32_t stream) {
  const GroupConfig& config = core_.config;
  OperationSetup setup{.number = number,
                       .descriptor = descriptor,
                       .stream = stream,
                       .rank = config.rank,
                       .members = members_.owners(number),
                       .best_effort = config.delivery == Delivery::BestEffort,
                       .payload_bytes = config.path.payload_bytes,
                       .order_seed = config.shuffle && descriptor.bounded ? config.seal.shared_number() : 0};
  const bool complete = setup.places() == config.size;
  if (complete && !core_.routes.flat() && descriptor.op != ReduceOp::Gather) setup.routes = &core_.routes;
  if (members_.membership.serves(config.rank, number)) setup.me = setup.place_of(config.rank);
  Operation& operation = core_.operations.add(std::make_unique<Operation>(std::move(setup), now));
  members_.apply_fates(now, operation);
  return operation;
}

PolicySnapshot Calls::policy(std::size_t bytes) const {
  PolicySnapshot snapshot;
  if (core_.config.delivery == Delivery::BestEffort) core_.best_effort.describe(bytes, snapshot);
  snapshot.incast = core_.incast.value();
  snapshot.window_bytes = core_.config.path.window_bytes;
  for (const Peer& peer : core_.peers) {
    if (!peer.present()) continue;
    snapshot.window_bytes = std::min<std::uint64_t>(snapshot.window_bytes, peer.window.limit());
    snapshot.rtt = std::max(snapshot.rtt, peer.window.round_trip());
    const double seconds = peer.window.round_trip().seconds();
    if (seconds > 0) snapshot.bytes_per_second += static_cast<double>(peer.window.limit()) / seconds;
  }
  return snapshot;
}

}  // namespace optireduce
