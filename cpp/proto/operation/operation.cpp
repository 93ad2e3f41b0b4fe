#include "operation/operation.h"

#include <algorithm>
#include <bit>

#include "kernels/reduce.h"

namespace optireduce {
namespace {

StageSetup stage_setup(const OperationSetup& setup, Rank me) {
  return {.me = me,
          .members = setup.members,
          .descriptor = setup.descriptor,
          .best_effort = setup.best_effort,
          .adds = setup.reduces && setup.descriptor.op != ReduceOp::Gather,
          .weight_unit = setup.weight_unit,
          .fixed_divisor = setup.fixed_divisor};
}

Rank find_place(const std::vector<Rank>& members, Rank rank) {
  const auto found = std::find(members.begin(), members.end(), rank);
  return found == members.end() ? kNoPlace : static_cast<Rank>(found - members.begin());
}

}  // namespace

std::string describe(const Descriptor& descriptor) {
  return std::to_string(descriptor.elements) + " " + name_of(descriptor.dtype) + " (" +
         name_of(descriptor.op) + ")";
}

Operation::Operation(OperationSetup setup, Time now)
    : progress_at(now),
      setup_(std::move(setup)),
      me_(setup_.serves ? find_place(setup_.members, setup_.rank) : kNoPlace),
      schedule_(setup_.descriptor, setup_.number, places(), setup_.payload_bytes, setup_.order_seed),
      bucket_(setup_.descriptor.dtype, schedule_.bytes(), places()),
      begun_at_(places(), Time::never()),
      turn_(me_ == kNoPlace ? Rank{0} : me_) {
  const StageSetup stage = stage_setup(setup_, me_);
  // A stage without adding is still a first stage: our shard is decided as it is.
  if (me_ != kNoPlace) scatter_ = std::make_unique<ReduceScatter>(stage, schedule_, now);
  if (setup_.gathers) gather_ = std::make_unique<AllGather>(stage, schedule_, now);
}

Rank Operation::place_of(Rank rank) const {
  return find_place(setup_.members, rank);
}

ValueSpace Operation::value_space() const {
  return {.stream = setup_.stream,
          .type = bucket_.value_type(),
          .bytes = bucket_.value_bytes(),
          .step = call_->step,
          .scale = call_->scale};
}

// ---- The local process

void Operation::begin(Time now, const LocalCall& call, Residuals& residuals) {
  call_ = call;
  bucket_.begin(call.data, call.wide);
  const bool contributes = call.contributes && call.weight != 0 && me_ != kNoPlace && setup_.reduces;
  if (!call.contributes) dropped_bytes_ += bytes();
  for (Rank owner = 0; owner < places(); ++owner) take_over_shard(owner, residuals);
  bucket_.forget_stand_ins();
  if (me_ == kNoPlace) return;
  note_begun(now, me_);
  for (Rank owner = 0; owner < places(); ++owner) {
    const bool sends = contributes && owner != me_ && descriptor().op != ReduceOp::Gather;
    if (sends) scatter_->outbox(owner).begin();
  }
  scatter_->begin(contributes || descriptor().op == ReduceOp::Gather || !setup_.reduces ? call.weight : 0,
                  bucket_);
}

/// What was decided before the process began goes into its memory, and what it would have contributed there
/// becomes residual; to the rest residuals are added.
void Operation::take_over_shard(Rank owner, Residuals& residuals) {
  const bool carries_along = carries() && call_->contributes && call_->weight != 0;
  const Rank index = schedule_.shard_of(owner);
  const Shard shard = schedule_.shard(index);
  const std::vector<std::byte>& before = bucket_.standing_in(index);
  if (before.empty() && !(carries_along && residuals.any(setup_.stream))) return;
  for (std::uint32_t packet = 0; packet < shard.packets(); ++packet) {
    const Place place = optireduce::place_of(shard, packet);
    if (is_held(owner, packet)) {
      if (carries_along) keep_excluded(owner, packet, residuals);
      if (!before.empty()) bucket_.put(index, shard, packet, before.data() + shard.place_of(packet));
    } else if (carries_along && me_ != kNoPlace && call_->intact) {
      carried_bytes_ += residuals.add_to(value_space(), bucket_.value_begin(place), bucket_.values(place));
    }
  }
  finish_streaming();
}

bool Operation::is_held(Rank owner, std::uint32_t packet) const {
  const Shard& shard = owner == me_ ? scatter_->shard() : gather_ ? gather_->shard(owner) : scatter_->shard();
  const std::uint32_t chunk = packet / shard.chunk_packets;
  const std::uint64_t bits = owner == me_ ? scatter_->decided(chunk)
                             : gather_    ? gather_->inbox(owner).received(chunk)
                                          : 0;
  return (bits >> packet % shard.chunk_packets & 1) != 0;
}

/// Our contribution to a packet that was decided without it. Call it before the decision overwrites it.
void Operation::keep_excluded(Rank owner, std::uint32_t packet, Residuals& residuals) {
  const Place place = optireduce::place_of(schedule_.shard(schedule_.shard_of(owner)), packet);
  if (!call_->intact) {
    dropped_bytes_ += place.bytes;
    return;
  }
  const std::uint64_t dropped = residuals.dropped_bytes();
  residuals.keep(value_space(), bucket_.value_begin(place), bucket_.values(place));
  const std::uint64_t now_dropped = residuals.dropped_bytes() - dropped;
  dropped_bytes_ += now_dropped;
  if (now_dropped == 0) residual_bytes_ += place.bytes;
}

void Operation::note_begun(Time now, Rank place) {
  if (begun_at_[place] != Time::never()) return;
  begun_at_[place] = now;
  const auto begun =
      std::count_if(begun_at_.begin(), begun_at_.end(), [](Time at) { return at != Time::never(); });
  if (half_begun_at_ == Time::never() && begun * 2 >= places()) half_begun_at_ = now;
}

// ---- Packets in

bool Operation::fits(const ReceivedRun& run) const {
  const Rank shard = run.header.shard;
  if (shard >= places()) return false;
  if (run.header.type == PacketType::Contribution) {
    const bool wanted = scatter_ && setup_.reduces && descriptor().op != ReduceOp::Gather;
    if (!wanted || shard != scatter_->index() || place_of(run.header.sender) == kNoPlace) return false;
    return scatter_->shard().fits(run);
  }
  if (!gather_ || gather_->owner(shard) == me_) return false;
  const Rank owner = gather_->owner(shard);
  if (!gather_->shard(owner).fits(run)) return false;
  // Without a deadline a sum that lacks our contribution cannot be.
  const std::uint32_t last = run.header.offset / setup_.payload_bytes + run.packets - 1;
  const bool needs_us = !descriptor().bounded && begun() && setup_.reduces && me_ != kNoPlace &&
                        descriptor().op != ReduceOp::Gather && call_->weight != 0;
  return !needs_us || last < scatter_->outbox(owner).sent_packets();
}

std::uint32_t Operation::accept_contribution(Time now, const ReceivedRun& run) {
  const Rank from = place_of(run.header.sender);
  note_begun(run.received_at, from);
  if ((run.header.flags & kFlagLast) != 0) scatter_->inbox(from).mark_last();
  const std::uint32_t fresh = scatter_->accept(now, from, run, bucket_);
  if (fresh != 0) progress_at = now;
  return fresh;
}

std::uint32_t Operation::accept_decision(Time now, const ReceivedRun& run, Residuals& residuals) {
  const Rank owner = gather_->owner(run.header.shard);
  const Rank from = place_of(run.header.sender);
  if (from != kNoPlace && from == owner) note_begun(run.received_at, from);
  if ((run.header.flags & kFlagLast) != 0) gather_->inbox(owner).mark_last();
  const std::uint64_t fresh = gather_->accept(now, owner, run);
  if (fresh == 0) return 0;
  const Shard& shard = gather_->shard(owner);
  const std::uint32_t first = run.header.offset / shard.payload_bytes;
  const std::uint32_t chunk = first / shard.chunk_packets;
  const bool excluded = begun() && call_->contributes && call_->weight != 0 && excludes_me(run.header.detail);
  for (std::uint64_t rest = fresh; rest != 0; rest &= rest - 1) {
    const std::uint32_t packet =
        chunk * shard.chunk_packets + static_cast<std::uint32_t>(std::countr_zero(rest));
    if (excluded) keep_excluded(owner, packet, residuals);
    bucket_.put(run.header.shard, shard, packet, run.payload(packet - first));
  }
  finish_streaming();
  progress_at = now;
  return shard.bytes_of(chunk, fresh);
}

void Operation::note_abstention(Time now, Rank from) {
  const Rank place = place_of(from);
  if (place == kNoPlace || !scatter_) return;
  note_begun(now, place);
  scatter_->note_abstention(place, bucket_);
}

// ---- Decisions

void Operation::close(Time now, ClosedBy reason, std::uint32_t undecided_packets) {
  closed_by_ = std::max(closed_by_, reason);
  closed_at_ = std::min(closed_at_, now);
  scatter_->close(bucket_, undecided_packets);
}

void Operation::remove_member(Rank rank) {
  const Rank place = place_of(rank);
  if (place == kNoPlace || place == me_) return;
  if (gather_) gather_->stop_sending_to(place);
  if (!scatter_) return;
  scatter_->outbox(place).stop();
  if (descriptor().bounded) scatter_->stop_waiting_for(place, bucket_);
}

void Operation::make_void(Rank owner_rank, std::uint32_t chunk, std::uint64_t packets, Residuals& residuals) {
  const Rank owner = place_of(owner_rank);
  if (owner == kNoPlace || !gather_ || owner == me_) return;
  const Shard& shard = gather_->shard(owner);
  if (chunk >= shard.chunks()) return;
  const std::uint64_t open = packets & shard.full_mask(chunk) & ~gather_->inbox(owner).received(chunk);
  const bool excluded = begun() && call_->contributes && call_->weight != 0 && carries();
  for (std::uint64_t rest = open; rest != 0; rest &= rest - 1) {
    const std::uint32_t packet =
        chunk * shard.chunk_packets + static_cast<std::uint32_t>(std::countr_zero(rest));
    if (excluded) keep_excluded(owner, packet, residuals);
    bucket_.zero(gather_->index(owner), shard, packet);
  }
  gather_->make_void(owner, chunk, open);
}

bool Operation::complete() const {
  if (!begun() || (gather_ && !gather_->complete())) return false;
  if (!scatter_) return true;
  if (scatter_->undecided_packets() != 0) return false;
  // Nothing comes back that would say that our part of a stage without results has left.
  return gather_ ? gather_->all_sent(scatter_->decided()) : scatter_->all_sent();
}

void Operation::finish(Residuals& residuals) {
  finished_ = true;
  if (carries()) residuals.settle(setup_.stream);
}

}  // namespace optireduce
