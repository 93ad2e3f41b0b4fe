#include "proto/operation.h"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/reduce.h"

namespace optireduce {
namespace {

/// From here on the bucket does not fit the caches, and placing results past them saves reading the old
/// values.
constexpr std::size_t kStreamAboveBytes = 4 * 1024 * 1024;

/// Sorted holes with neighbours of the same kind as one.
std::vector<Hole> merged(const std::vector<Hole>& holes) {
  std::vector<Hole> merged;
  for (const Hole& hole : holes) {
    Hole* last = merged.empty() ? nullptr : &merged.back();
    const bool continues = last != nullptr && last->stage == hole.stage && last->peer == hole.peer &&
                           last->begin + last->bytes == hole.begin;
    if (continues) {
      last->bytes += hole.bytes;
    } else {
      merged.push_back(hole);
    }
  }
  return merged;
}

}  // namespace

std::string describe(const Descriptor& descriptor) {
  return std::to_string(descriptor.elements) + " " + name_of(descriptor.dtype) + " (" +
         name_of(descriptor.op) + ")";
}

Operation::Operation(std::uint64_t number, const Descriptor& descriptor, std::byte* data,
                     const EndpointConfig& config, Time now, const StartOptions& options)
    : number_(number),
      descriptor_(descriptor),
      me_(config.rank),
      size_(config.size),
      group_size_(config.group_size()),
      is_part_(config.is_part()),
      stages_(config.stages),
      data_(data),
      wide_(options.wide, descriptor.dtype),
      stream_(options.stream),
      patience_bytes_(options.patience_bytes),
      slack_(options.slack),
      repairs_(config.bound.repair || options.repairs),
      takes_attendance_(!options.repairs),
      weight_(options.weight),
      started_(now),
      deadline_(now + options.timeout),
      progress_at_(now),
      schedule_(descriptor, number, config.size, config.payload_bytes,
                config.bound.shuffle && descriptor.bounded ? config.seal.shared_number() : 0),
      owned_(schedule_.shard(schedule_.shard_of(me_)), descriptor, config, options.weight, data, wide_, now),
      foreign_(size_),
      written_off_(size_, false),
      first_seen_(size_, Time::never()),
      turn_(me_) {
  for (Rank owner = 0; owner < size_; ++owner) {
    if (owner == me_) continue;
    const Shard shard = schedule_.shard(schedule_.shard_of(owner));
    foreign_[owner] = ForeignShard(shard, data, wide_, now, stages_ != Stages::First);
    if (!foreign_[owner].complete()) ++foreign_incomplete_;
    if (abstains() || gathers()) foreign_[owner].stop_sending();
  }
  owned_.set_lost(options.lacking);
}

bool Operation::fits(const Run& run) const {
  const PacketType never = gathers()                  ? PacketType::Contribution
                           : stages_ == Stages::First ? PacketType::Reduced
                                                      : PacketType::Status;
  if (run.header.type == never) return false;
  const Rank owner = run.header.type == PacketType::Contribution ? me_ : run.header.sender;
  if (run.header.shard != schedule_.shard_of(owner)) return false;
  const Shard& shard = owner == me_ ? owned_.shard() : foreign_[owner].shard();
  if (!optireduce::fits(shard, run)) return false;
  // Without a deadline a sum that lacks our contribution cannot be.
  const std::uint32_t last = run.header.offset / shard.payload_bytes + run.packets - 1;
  return descriptor_.bounded || owner == me_ || last < foreign_[owner].sent_packets();
}

std::uint32_t Operation::accept_contribution(Time now, const Run& run) {
  const Rank from = run.header.sender;
  first_seen_[from] = std::min(first_seen_[from], run.received_at);
  owned_.note_ack(from, run.header.ack);
  if ((run.header.flags & kFlagLast) != 0) owned_.flow(from).mark_last();
  const std::uint32_t fresh = owned_.accept(now, from, run.header.offset / owned_.shard().payload_bytes, run);
  if (fresh != 0) note_progress(now);
  return fresh;
}

void Operation::note_abstention(const Run& run) {
  const Rank from = run.header.sender;
  first_seen_[from] = std::min(first_seen_[from], run.received_at);
  owned_.note_abstention(from);
}

std::uint32_t Operation::accept_reduced(Time now, const Run& run) {
  const Rank owner = run.header.sender;
  first_seen_[owner] = std::min(first_seen_[owner], run.received_at);
  ForeignShard& shard = foreign_[owner];
  if (shard.complete()) return 0;
  if ((run.header.flags & kFlagLast) != 0) shard.flow().mark_last();
  const std::uint32_t packet = run.header.offset / shard.shard().payload_bytes;
  const std::uint32_t bytes = shard.accept(now, packet, run, schedule_.bytes() >= kStreamAboveBytes);
  if (bytes != 0) note_progress(now);
  if (run.header.count != kHollow) {
    lost_contribution_bytes_ += std::uint64_t{bytes} * lost_to_us(run.header.count);
  } else if (bytes != 0) {
    hollow_.push_back({owner, packet, run.packets});
  }
  if (shard.complete() && !written_off_[owner]) --foreign_incomplete_;
  return bytes;
}

void Operation::note_progress(Time now) {
  longest_idle_ = longest_idle(now);
  progress_at_ = now;
}

Operation::Idle Operation::longest_idle(Time now) const {
  const Duration idle = now - progress_at_;
  return idle > longest_idle_.length ? Idle{progress_at_, idle} : longest_idle_;
}

bool Operation::next_reduced(Time now, const std::vector<Peer>& peers, bool to_group, OutgoingBatch& batch) {
  const bool any = to_group ? owned_.next_group_batch(now, peers, batch) : owned_.next_batch(peers, batch);
  if (!any) return false;
  label(batch, PacketType::Reduced, owned_index());
  batch.ack = 0;
  return true;
}

bool Operation::next_contribution(const std::vector<Peer>& peers, std::vector<bool>& blocked,
                                  OutgoingBatch& batch) {
  for (Rank tried = 0; tried < size_; ++tried) {
    turn_ = static_cast<Rank>((turn_ + 1) % size_);
    if (turn_ == me_ || blocked[turn_]) continue;
    if (!foreign_[turn_].next_batch(peers[turn_].window, batch)) {
      blocked[turn_] = !foreign_[turn_].all_sent();
      continue;
    }
    label(batch, PacketType::Contribution, foreign_index(turn_));
    batch.count = weight_;
    batch.to.assign(1, turn_);
    return true;
  }
  return false;
}

void Operation::fill_repair(const Repair& repair, OutgoingBatch& batch) const {
  const bool reduced = repair.type == PacketType::Reduced;
  const Rank owner = reduced ? me_ : repair.to;
  batch.shard = reduced ? owned_.shard() : foreign_[owner].shard();
  const auto first_bit = static_cast<std::uint32_t>(std::countr_zero(repair.packets));
  batch.first_packet = repair.chunk * batch.shard.chunk_packets + first_bit;
  const auto run = static_cast<std::uint32_t>(std::countr_one(repair.packets >> first_bit));
  batch.packets = reduced ? owned_.equal_run(batch.first_packet, run) : run;
  batch.count = reduced ? owned_.lost_in(batch.first_packet) : weight_;
  batch.data = reduced ? owned_.data() : foreign_[owner].data();
  batch.data_begin = 0;
  batch.ack = reduced ? 0 : foreign_[owner].flow().whole_chunks();
  batch.flags = kFlagResent;
  batch.to.assign(1, repair.to);
  label(batch, repair.type, schedule_.shard_of(owner));
}

void Operation::label(OutgoingBatch& batch, PacketType type, Rank shard_index) const {
  batch.type = type;
  batch.operation = number_;
  batch.descriptor = descriptor_;
  batch.shard_index = shard_index;
}

void Operation::stamp(const OutgoingBatch& batch, std::uint32_t timestamp) {
  if (batch.type == PacketType::Contribution) {
    foreign_[batch.to.front()].stamp(batch, timestamp);
  } else {
    owned_.stamp(batch, timestamp);
  }
}

bool Operation::complete() const {
  if (foreign_incomplete_ != 0 || !owned_.complete()) return false;
  // Nothing comes back that would say that our part has left.
  return stages_ != Stages::First || std::all_of(foreign_.begin(), foreign_.end(),
                                                 [](const ForeignShard& each) { return each.all_sent(); });
}

std::vector<Rank> Operation::waiting_for() const {
  std::vector<Rank> furthest_behind, reduced;
  std::uint32_t most_missing = 1;
  for (Rank peer = 0; peer < size_; ++peer) {
    if (peer == me_) continue;
    const std::uint32_t missing = owned_.flow(peer).missing_packets();
    if (missing > most_missing) furthest_behind.clear();
    if (missing >= most_missing) furthest_behind.push_back(peer);
    most_missing = std::max(most_missing, missing);
    if (!foreign_[peer].complete()) reduced.push_back(peer);
  }
  return furthest_behind.empty() ? reduced : furthest_behind;
}

// ---- Who takes part

void Operation::exclude(Rank peer) {
  excluded_.push_back(peer);
  owned_.excuse(peer);
  owned_.stop_sending_to(peer);
  foreign_[peer].stop_sending();
  write_off(peer);
}

std::uint32_t Operation::lost_to_us(std::uint32_t lacking) const {
  const auto known = static_cast<std::uint32_t>(is_part() ? 0 : excluded_.size());
  return lacking > known ? lacking - known : 0;
}

void Operation::peer_is_through(Rank peer) {
  owned_.stop_waiting_for(peer);
  owned_.stop_sending_to(peer);
  foreign_[peer].stop_sending();
  foreign_[peer].flow().hurry();
}

void Operation::write_off(Rank owner) {
  if (!open(owner)) return;
  written_off_[owner] = true;
  --foreign_incomplete_;
}

Duration Operation::skew() const {
  Time last = started_;
  for (Rank peer = 0; peer < size_; ++peer) {
    if (peer != me_ && heard(peer)) last = std::max(last, first_seen_[peer]);
  }
  return last - started_;
}

Duration Operation::behind() const {
  std::vector<Time> seen;
  for (Rank peer = 0; peer < size_; ++peer) {
    if (peer != me_ && heard(peer)) seen.push_back(first_seen_[peer]);
  }
  if (seen.empty()) return {};
  const auto middle = seen.begin() + static_cast<std::ptrdiff_t>(seen.size() / 2);
  std::nth_element(seen.begin(), middle, seen.end());
  return started_ - *middle;
}

// ---- Time limits

Time Operation::contributions_due() const {
  const std::uint32_t packets = owned_.shard().packets();
  if (owned_.unreduced_packets() == 0) return Time::never();
  const Duration needed = bound_->drain * owned_.unreduced_packets() / packets;
  const Time sent_by = hard_deadline() - bound_->margin;
  return std::max(started_, sent_by - needed);
}

void Operation::close_due_contributions(Time now) {
  const Time sent_by = hard_deadline() - bound_->margin;
  const std::int64_t left = std::max<std::int64_t>((sent_by - now).ns, 0);
  const std::int64_t drain = std::max<std::int64_t>(bound_->drain.ns, 1);
  const double allowed =
      static_cast<double>(owned_.shard().packets()) * static_cast<double>(left) / static_cast<double>(drain);
  const auto most = static_cast<std::uint32_t>(
      std::clamp(allowed, 0.0, static_cast<double>(owned_.unreduced_packets() - 1)));
  closed_by_ = ClosedBy::Deadline;
  owned_.close_down_to(most);
}

bool Operation::all_owners_seen_last() const {
  for (Rank owner = 0; owner < size_; ++owner) {
    if (owner != me_ && open(owner) && !foreign_[owner].flow().seen_last()) return false;
  }
  return true;
}

Time Operation::early_due(Duration repair_wait) const {
  const bool contributions = owned_.unreduced_packets() != 0;
  const bool all_sent = contributions ? owned_.seen_last() : all_owners_seen_last();
  return all_sent ? progress_at_ + std::max(bound_->early_wait, repair_wait) : Time::never();
}

bool Operation::close_early() {
  const bool contributions = owned_.unreduced_packets() != 0;
  closed_by_ = std::max(closed_by_, ClosedBy::Early);
  if (contributions) owned_.close_down_to(0);
  return !contributions;
}

void Operation::close_all_contributions() {
  closed_by_ = ClosedBy::Deadline;
  owned_.close_down_to(0);
}

/// Where in the bucket data is missing, in order.
std::vector<Hole> Operation::holes() const {
  std::vector<Hole> holes;
  const auto add = [&](PacketType stage, Rank peer, const Shard& shard, std::uint32_t first,
                       std::uint32_t packets) {
    for (std::uint32_t packet = first; packet < first + packets; ++packet)
      holes.push_back({stage, peer, shard.begin + shard.place_of(packet), shard.length_of(packet)});
  };
  for (const LostContributions& lost : owned_.holes())
    add(PacketType::Contribution, lost.peer, owned_.shard(), lost.first_packet, lost.packets);
  for (Rank owner = 0; owner < size_; ++owner) {
    if (owner == me_) continue;
    foreign_[owner].flow().for_each_hole([&](std::uint32_t first, std::uint32_t packets) {
      add(PacketType::Reduced, owner, foreign_[owner].shard(), first, packets);
    });
  }
  for (const Hollow& hollow : hollow_)
    add(PacketType::Reduced, hollow.owner, foreign_[hollow.owner].shard(), hollow.first_packet,
        hollow.packets);
  std::sort(holes.begin(), holes.end());
  return merged(holes);
}

void Operation::settle_losses(Report& report) {
  report.holes = holes();
  if (!is_gather()) {
    for (Rank owner = 0; owner < size_; ++owner) {
      if (owner != me_) foreign_[owner].zero_missing();
    }
  }
  std::vector<PeerLoss> losses(size_);
  for (const Hole& hole : report.holes) {
    const bool reduced = hole.stage == PacketType::Reduced;
    (reduced ? losses[hole.peer].reduced_bytes : losses[hole.peer].contribution_bytes) += hole.bytes;
    if (reduced) report.reduced_lost_bytes += hole.bytes;
  }
  for (Rank peer = 0; peer < size_; ++peer) {
    losses[peer].peer = peer;
    if (losses[peer].contribution_bytes + losses[peer].reduced_bytes != 0)
      report.lost_by_peer.push_back(losses[peer]);
  }
  std::uint64_t lost = lost_contribution_bytes_;
  for (std::uint32_t packet = 0; packet < owned_.shard().packets(); ++packet) {
    const std::uint16_t lacks = owned_.lost_in(packet);
    if (lacks != kHollow) lost += std::uint64_t{lost_to_us(lacks)} * owned_.shard().length_of(packet);
  }
  // The second stage counts ranks of the whole group, the others those that they add.
  const Rank ranks = stages_ == Stages::Second ? group_size_ : size_;
  report.contributions_lost_bytes = (lost + ranks - 1) / ranks;
}

void Operation::correct(Place place, const std::byte* correction, double factor) const {
  if (wide_) return wide_.add(place, correction, static_cast<float>(factor));
  const std::size_t elements = place.bytes / size_of(descriptor_.dtype);
  std::vector<std::byte> scaled(place.bytes);
  reduce(descriptor_.dtype, std::array{correction}, 1.0 / factor, scaled.data(), elements);
  std::byte* const result = data_ + place.begin;
  const std::array<const std::byte*, 2> inputs{result, scaled.data()};
  reduce(descriptor_.dtype, inputs, 1.0, result, elements);
}

std::vector<std::byte> Operation::contribution(Place place) const {
  std::vector<std::byte> ours(place.bytes);
  if (wide_) {
    wide_.narrow(place, ours.data());
  } else {
    std::copy_n(data_ + place.begin, place.bytes, ours.begin());
  }
  return ours;
}

double Operation::arrived_share() const {
  std::uint64_t owed = 0, missing = 0;
  for (Rank peer = 0; peer < size_; ++peer) {
    if (peer == me_ || !heard(peer)) continue;
    if (!gathers()) owed += owned_.shard().packets();
    if (stages_ != Stages::First) owed += foreign_[peer].shard().packets();
    missing += foreign_[peer].flow().missing_packets();
  }
  for (const LostContributions& lost : owned_.holes()) {
    if (heard(lost.peer)) missing += lost.packets;
  }
  return owed == 0 ? 1.0 : 1.0 - static_cast<double>(missing) / static_cast<double>(owed);
}

// ---- For people

std::string Operation::describe_wait(Rank peer, Rank called) const {
  const auto progress = [](const InboundFlow& flow, const Shard& shard) {
    if (flow.empty()) return std::string("nothing");
    return std::to_string(shard.packets() - flow.missing_packets()) + " of " +
           std::to_string(shard.packets()) + " packets";
  };
  const std::string name = "rank " + std::to_string(called);
  if (!owned_.flow(peer).complete())
    return name + " (received of its part: " + progress(owned_.flow(peer), owned_.shard()) + ")";
  return name + " (received of what it reduces: " + progress(foreign_[peer].flow(), foreign_[peer].shard()) +
         ")";
}

}  // namespace optireduce
