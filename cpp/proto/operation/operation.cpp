#include "operation/operation.h"

#include <algorithm>
#include <utility>

#include "kernels/reduce.h"

namespace optireduce {

std::string describe(const Descriptor& descriptor) {
  return std::to_string(descriptor.elements) + " " + name_of(descriptor.dtype) + " (" +
         name_of(descriptor.op) + ")";
}

Operation::Operation(OperationSetup setup, Time now)
    : progress_at(now), exchange_(std::move(setup), now), begun_at_(places(), Time::never()) {}

ValueSpace Operation::value_space() const {
  return {.stream = setup().stream,
          .type = exchange_.bucket().value_type(),
          .bytes = exchange_.bucket().value_bytes(),
          .step = call_->step,
          .scale = call_->scale,
          .piece_bytes = setup().weighted() ? exchange_.bucket().value_begin({setup().payload_bytes, 0}) : 0};
}

// ---- The local process

void Operation::begin(Time now, const LocalCall& call, Residuals& residuals) {
  Bucket& bucket = exchange_.bucket();
  call_ = call;
  const std::vector<Bucket::Memory> before = bucket.begin(call.data, call.wide);
  if (!call.contributes) own_.dropped += bytes();
  if (setup().has_residuals()) residuals.note_begun(setup().stream, call.step);
  const bool takes = takes_residual(residuals);
  if (takes) prepare_for_residual(residuals);
  for (Rank owner = 0; owner < places(); ++owner)
    take_over_shard(owner, before[gather().index(owner)], takes, residuals);
  if (setup().serves()) note_begun(now, setup().me);
  exchange_.begin(call_->contributes ? call_->weights : Weights(0));
}

/// Without samples of its own a rank contributes its residual to a weighted mean, and nothing to others.
bool Operation::takes_residual(const Residuals& residuals) const {
  if (!setup().has_residuals() || !setup().serves() || !residuals.any(setup().stream)) return false;
  return call_->contributes && call_->intact && !call_->lent.any() &&
         (setup().weighted() || !call_->weights.abstains());
}

void Operation::prepare_for_residual(const Residuals& residuals) {
  if (!descriptor().bounded) call_->lent = residuals.lend(setup().stream);
  if (!setup().weighted()) return;
  if (call_->weights.abstains()) std::ranges::fill(exchange_.bucket().values({0, bytes()}), std::byte{0});
  call_->weights.divide(bytes(), setup().payload_bytes);
}

/// What was decided before the process began goes into its memory, and what it would have contributed there
/// becomes residual; to the rest residuals are added.
void Operation::take_over_shard(Rank owner, const Bucket::Memory& before, bool takes, Residuals& residuals) {
  Bucket& bucket = exchange_.bucket();
  const Rank index = gather().index(owner);
  const Shard& shard = gather().shard(owner);
  if (before.empty() && !takes) return;
  for (std::uint32_t packet = 0; packet < shard.packets(); ++packet) {
    const std::uint64_t held = exchange_.held(owner, packet / shard.chunk_packets);
    if ((held >> packet % shard.chunk_packets & 1) != 0) {
      if (carries_along()) keep_excluded(owner, packet, residuals);
      if (!before.empty()) bucket.put(index, shard, packet, before.data() + shard.place_of(packet));
    } else if (takes) {
      add_residual(shard, packet, residuals);
    }
  }
  finish_streaming();
}

void Operation::add_residual(const Shard& shard, std::uint32_t packet, Residuals& residuals) {
  const Bucket& bucket = exchange_.bucket();
  const Place place = optireduce::place_of(shard, packet);
  const Residuals::Carried added =
      residuals.add_to(value_space(), bucket.value_begin(place), bucket.values(place));
  own_.carried += added.bytes;
  if (setup().weighted()) call_->weights.add(shard, packet, added.weight);
}

/// Our contribution to a packet that was decided without it. Call it before the decision overwrites it.
void Operation::keep_excluded(Rank owner, std::uint32_t packet, Residuals& residuals) {
  const Bucket& bucket = exchange_.bucket();
  const Shard& shard = gather().shard(owner);
  const Place place = optireduce::place_of(shard, packet);
  if (!call_->intact) {
    own_.dropped += place.bytes;
    return;
  }
  const std::uint64_t dropped = residuals.dropped_bytes();
  residuals.keep(value_space(), bucket.value_begin(place), bucket.values(place),
                 setup().weighted() ? call_->weights.of(shard, packet) : 0);
  const std::uint64_t now_dropped = residuals.dropped_bytes() - dropped;
  own_.dropped += now_dropped;
  if (now_dropped == 0) own_.residual += place.bytes;
}

void Operation::note_begun(Time now, Rank place) {
  if (begun_at_[place] != Time::never()) return;
  begun_at_[place] = now;
  const auto gives = [this](Rank each) { return each == setup().me || setup().takes_from(each, setup().me); };
  if (half_begun_at_ == Time::never() && half_have_begun(gives)) half_begun_at_ = now;
  if (exchange_.relays().empty() || half_row_begun_at_ != Time::never()) return;
  const auto in_row = [this](Rank each) { return each == setup().me || setup().gives_to(each); };
  if (half_have_begun(in_row)) half_row_begun_at_ = now;
}

template <typename Counts>
bool Operation::half_have_begun(Counts counts) const {
  std::size_t all = 0, begun = 0;
  for (Rank place = 0; place < places(); ++place) {
    if (!counts(place)) continue;
    ++all;
    begun += begun_at_[place] != Time::never() ? 1 : 0;
  }
  return begun * 2 >= all;
}

void Operation::note_overwritten() {
  for (Rank owner = 0; begun() && owner < places(); ++owner) {
    for (std::uint32_t chunk = 0; chunk < gather().shard(owner).chunks(); ++chunk) {
      if (exchange_.held(owner, chunk) != 0) call_->intact = false;
    }
  }
}

void Operation::finish(Residuals& residuals) {
  finished_ = true;
  if (setup().has_residuals()) residuals.settle(setup().stream);
}

void Operation::give_back(Residuals& residuals) {
  if (!setup().has_residuals()) return;
  residuals.give_back(std::exchange(call_->lent, {}));
  residuals.settle(setup().stream);
}

// ---- Packets in

std::uint32_t Operation::accept_contribution(Time now, const ReceivedRun& run) {
  const Rank from = place_of(run.header.sender);
  note_begun(run.received_at, from);
  const Rank owner = gather().owner(run.header.shard);
  ReduceScatter& collector = *exchange_.collector(run.header.shard);
  if (!setup().tells_sets() || !collector.stands_for_row(from))
    exchange_.gather().note_received(owner, from, static_cast<std::uint32_t>(run.header.detail >> 32));
  if ((run.header.flags & kFlagLast) != 0) collector.inbox(from).mark_last();
  const std::uint32_t fresh = collector.accept(now, from, run, exchange_.bucket());
  if (fresh != 0) progress_at = now;
  return fresh;
}

std::uint32_t Operation::accept_decision(Time now, const ReceivedRun& run, Residuals& residuals) {
  const Rank owner = gather().owner(run.header.shard);
  if (place_of(run.header.sender) == owner) note_begun(run.received_at, owner);
  if ((run.header.flags & kFlagLast) != 0) exchange_.gather().inbox(owner).mark_last();
  const std::uint64_t fresh = exchange_.accept_decisions(now, run);
  if (fresh == 0) return 0;
  const Shard& shard = gather().shard(owner);
  const std::uint32_t first = run.header.offset / shard.payload_bytes;
  const std::uint32_t chunk = first / shard.chunk_packets;
  const bool excluded = carries_along() && (run.header.detail >> (setup().rank & 63u) & 1) == 0;
  shard.for_each_packet(chunk, fresh, [&](std::uint32_t packet) {
    if (excluded) keep_excluded(owner, packet, residuals);
    exchange_.bucket().put(run.header.shard, shard, packet, run.payload(packet - first));
  });
  finish_streaming();
  progress_at = now;
  return shard.bytes_of(chunk, fresh);
}

void Operation::note_abstention(Time now, Rank from) {
  const Rank place = place_of(from);
  if (place == kNoPlace || !setup().serves()) return;
  note_begun(now, place);
  exchange_.note_abstention(place);
}

// ---- Decisions

void Operation::close(Time now, ClosedBy reason, std::uint32_t undecided_packets) {
  closed_by_ = std::max(closed_by_, reason);
  closed_at_ = std::min(closed_at_, now);
  exchange_.scatter().close(exchange_.bucket(), undecided_packets);
}

void Operation::close_relays(Time now) {
  relays_closed_at_ = std::min(relays_closed_at_, now);
  exchange_.close_relays();
}

void Operation::make_void(Rank owner_rank, std::uint32_t chunk, std::uint64_t packets, Residuals& residuals) {
  const Rank owner = place_of(owner_rank);
  if (owner == kNoPlace || owner == setup().me) return;
  const Shard& shard = gather().shard(owner);
  if (chunk >= shard.chunks()) return;
  const std::uint64_t open = packets & shard.full_mask(chunk) & ~exchange_.held(owner, chunk);
  shard.for_each_packet(chunk, open, [&](std::uint32_t packet) {
    if (carries_along()) keep_excluded(owner, packet, residuals);
    exchange_.bucket().zero(gather().index(owner), shard, packet);
  });
  exchange_.make_void(owner, chunk, open);
}

}  // namespace optireduce
