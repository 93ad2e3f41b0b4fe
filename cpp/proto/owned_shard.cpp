#include "proto/owned_shard.h"

#include <algorithm>
#include <bit>

#include "kernels/finite.h"
#include "kernels/reduce.h"

namespace optireduce {

OwnedShard::OwnedShard(const Shard& shard, const Descriptor& descriptor, const EndpointConfig& config,
                       std::uint16_t weight, std::byte* data, const Wide& wide, Time now)
    : shard_(shard),
      me_(config.rank),
      size_(config.size),
      stages_(config.stages),
      is_part_(config.is_part()),
      weight_unit_(config.weight_unit),
      descriptor_(descriptor),
      data_(data + shard.begin),
      wide_(wide),
      flows_(size_, InboundFlow(shard, now)),
      weights_(size_, 1),
      contributed_(size_, false),
      abstained_(size_, false),
      excused_(size_, false),
      waited_(size_, true),
      chunks_(shard.chunks()),
      receives_(size_, stages_ != Stages::First),
      sent_position_(size_, 0),
      acked_chunks_(size_, 0),
      sent_(std::size_t{size_} * shard.chunks(), 0),
      sent_at_(std::size_t{size_} * shard.chunks(), 0),
      by_rank_(size_, nullptr) {
  weights_[me_] = weight;
  contributed_[me_] = weight != 0;
  abstained_[me_] = weight == 0;
  waited_[me_] = receives_[me_] = false;
  if (size_ == 1) reduced_packets_ = shard_.packets();  // alone: the sum is there already
  if (!adds() && size_ > 1) take_own();
}

/// Nothing is added: what is ours can leave at once.
void OwnedShard::take_own() {
  abstained_.assign(size_, true);
  waited_.assign(size_, false);
  for (std::uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) reduce_ready(chunk);
}

// ---- Contributions

std::uint32_t OwnedShard::accept(Time now, Rank from, std::uint32_t first_packet, const Run& run) {
  const std::uint32_t chunk = first_packet / shard_.chunk_packets;
  const std::uint32_t first_bit = first_packet % shard_.chunk_packets;
  const std::uint64_t fresh = flows_[from].accept(now, chunk, Shard::mask_of(first_bit, run.packets));
  if (fresh == 0) return 0;
  weights_[from] = run.header.count;
  contributed_[from] = true;
  chunks_[chunk].pieces.push_back({run, from, first_bit});
  reduce_ready(chunk);
  return shard_.bytes_of(chunk, fresh);
}

void OwnedShard::stop_waiting_for(Rank peer) {
  if (!waited_[peer]) return;
  waited_[peer] = false;
  for (std::uint32_t chunk = first_open_chunk_; chunk < chunks_.size(); ++chunk) reduce_ready(chunk);
}

void OwnedShard::note_abstention(Rank peer) {
  abstained_[peer] = true;
  stop_waiting_for(peer);
}

bool OwnedShard::waits() const {
  for (Rank rank = 0; rank < size_; ++rank) {
    if (waited_[rank] && !flows_[rank].complete()) return true;
  }
  return false;
}

bool OwnedShard::seen_last() const {
  for (Rank rank = 0; rank < size_; ++rank) {
    if (waited_[rank] && !flows_[rank].complete() && !flows_[rank].seen_last()) return false;
  }
  return true;
}

void OwnedShard::excuse(Rank peer) {
  excused_[peer] = true;
  stop_waiting_for(peer);
}

void OwnedShard::close_down_to(std::uint32_t unreduced_packets) {
  for (auto chunk = static_cast<std::uint32_t>(chunks_.size());
       chunk-- > first_open_chunk_ && this->unreduced_packets() > unreduced_packets;) {
    const std::uint64_t open = shard_.full_mask(chunk) & ~chunks_[chunk].reduced;
    if (open != 0) reduce_bits(chunk, open);
  }
}

// ---- Reduction

void OwnedShard::reduce_ready(std::uint32_t index) {
  std::uint64_t ready = shard_.full_mask(index) & ~chunks_[index].reduced;
  for (Rank rank = 0; rank < size_ && ready != 0; ++rank) {
    if (waited_[rank]) ready &= flows_[rank].received(index);
  }
  if (ready != 0) reduce_bits(index, ready);
}

void OwnedShard::reduce_bits(std::uint32_t index, std::uint64_t bits) {
  Chunk& chunk = chunks_[index];
  for (std::uint64_t rest = bits; rest != 0; rest &= rest - 1) {
    reduce_packet(index, static_cast<std::uint32_t>(std::countr_zero(rest)));
  }
  chunk.reduced |= bits;
  reduced_packets_ += static_cast<std::uint32_t>(std::popcount(bits));
  log(index, bits);
  if (chunk.reduced == shard_.full_mask(index)) std::vector<Piece>().swap(chunk.pieces);
  while (first_open_chunk_ < chunks_.size() &&
         chunks_[first_open_chunk_].reduced == shard_.full_mask(first_open_chunk_)) {
    ++first_open_chunk_;
  }
}

void OwnedShard::reduce_packet(std::uint32_t chunk, std::uint32_t bit) {
  if (!adds()) return;
  const std::uint32_t packet = chunk * shard_.chunk_packets + bit;
  const std::byte* own = data_ + shard_.place_of(packet);
  std::fill(by_rank_.begin(), by_rank_.end(), nullptr);
  if (weights_[me_] != 0) by_rank_[me_] = own;
  for (const Piece& piece : chunks_[chunk].pieces) {
    if (bit >= piece.first_bit && bit - piece.first_bit < piece.run.packets) {
      by_rank_[piece.from] = piece.run.payload(bit - piece.first_bit);
    }
  }
  inputs_.clear();
  std::uint64_t weights = 0;
  Rank missing = 0, lost = 0;
  for (Rank rank = 0; rank < size_; ++rank) {
    if (by_rank_[rank] != nullptr) {
      if (rank != me_ || !wide_) inputs_.push_back(by_rank_[rank]);
      weights += weights_[rank];
    } else if (!abstained_[rank]) {
      ++missing;
      if (!excused_[rank] || !is_part_) ++lost;
      note_hole(rank, packet);
    }
  }
  if (lost != 0) {
    if (lost_.empty()) lost_.resize(shard_.packets(), 0);
    lost_[packet] = lost;
  }
  if (inputs_.empty() && !adds_wide()) return clear(packet);  // nobody had anything: no gradient
  const auto contributions = static_cast<std::uint32_t>(size_ - missing);
  if (stages_ == Stages::First && missing != 0) partial_.push_back({packet, contributions, weights});
  add_up(packet, divisor_for(contributions, weights));
  const std::size_t elements = shard_.length_of(packet) / size_of(descriptor_.dtype);
  if (!all_finite(descriptor_.dtype, own, elements)) blame(elements);
}

void OwnedShard::add_up(std::uint32_t packet, double divisor) {
  std::byte* own = data_ + shard_.place_of(packet);
  const Place place = place_of(packet);
  if (adds_wide()) return wide_.reduce(place, inputs_, divisor, own);
  reduce(descriptor_.dtype, inputs_, divisor, own, place.bytes / size_of(descriptor_.dtype));
  if (!wide_) return;
  wide_.widen(place, own);
  finish_streaming();
}

void OwnedShard::clear(std::uint32_t packet) {
  std::fill_n(data_ + shard_.place_of(packet), shard_.length_of(packet), std::byte{0});
  if (wide_) wide_.zero(place_of(packet));
}

/// Finds out who sent what is no number. Our own contribution has been overwritten: it is to blame where no
/// other is (or the sum was too large for its type).
void OwnedShard::blame(std::size_t elements) {
  bool found = false;
  for (Rank rank = 0; rank < size_; ++rank) {
    const bool theirs = rank != me_ && by_rank_[rank] != nullptr;
    if (!theirs || all_finite(descriptor_.dtype, by_rank_[rank], elements)) continue;
    found = true;
    note_non_finite(rank);
  }
  if (!found) note_non_finite(me_);
}

void OwnedShard::note_non_finite(Rank rank) {
  if (std::find(non_finite_.begin(), non_finite_.end(), rank) == non_finite_.end())
    non_finite_.push_back(rank);
}

/// A contribution that a packet was reduced without is not wanted any more.
void OwnedShard::note_hole(Rank rank, std::uint32_t packet) {
  const std::uint32_t bit = packet % shard_.chunk_packets;
  flows_[rank].give_up(packet / shard_.chunk_packets, std::uint64_t{1} << bit);
  if (last_hole_.empty()) last_hole_.assign(size_, kNoHole);
  if (last_hole_[rank] != kNoHole) {
    LostContributions& last = holes_[last_hole_[rank]];
    if (last.first_packet + last.packets == packet) {
      ++last.packets;
      return;
    }
  }
  last_hole_[rank] = holes_.size();
  holes_.push_back({rank, packet, 1});
}

/// The mean of what is there, and a sum scaled up as if it were the mean of all. Below half of the ranks the
/// few that are left must not speak for all: the result shrinks towards zero instead.
double OwnedShard::divisor_for(std::uint32_t contributions, std::uint64_t weights) const {
  const bool mean = descriptor_.op == ReduceOp::Mean;
  // The first stage alone: the second divides by the weights. A number that is the same everywhere keeps sums
  // from growing out of narrow types; level() does the rest where something is missing.
  if (stages_ == Stages::First) return mean ? size_ : 1.0;
  if (mean)
    return static_cast<double>(std::max<std::uint64_t>(weights, 1)) / weight_unit_ * floored(contributions);
  return contributions * floored(contributions) / size_;
}

double OwnedShard::floored(std::uint32_t contributions) const {
  // In a row or column a few absent ranks may be most of it, while most of the group is there.
  const auto excused = is_part_ ? std::count(excused_.begin(), excused_.end(), true) : 0;
  return std::max<double>(contributions, static_cast<double>(size_ - excused) / 2) / contributions;
}

std::uint64_t OwnedShard::contributed_weight() const {
  std::uint64_t weight = 0;
  for (Rank rank = 0; rank < size_; ++rank) {
    if (contributed_[rank]) weight += weights_[rank];
  }
  return weight;
}

double OwnedShard::level_divisor(std::uint32_t contributions, std::uint64_t weights) const {
  if (descriptor_.op == ReduceOp::Mean)
    return static_cast<double>(weights) / static_cast<double>(contributed_weight()) * floored(contributions);
  return contributions * floored(contributions) / size_;
}

void OwnedShard::level() {
  for (const Partial& partial : partial_) {
    if (partial.weights == 0) continue;  // zero as it is
    const double divisor = level_divisor(partial.contributions, partial.weights);
    if (divisor == 1.0) continue;
    std::byte* own = data_ + shard_.place_of(partial.packet);
    inputs_.assign(1, own);
    reduce(descriptor_.dtype, inputs_, divisor, own,
           shard_.length_of(partial.packet) / size_of(descriptor_.dtype));
  }
  partial_.clear();
}

// ---- Reduced packets

void OwnedShard::log(std::uint32_t chunk, std::uint64_t bits) {
  while (bits != 0) {
    const auto first_bit = static_cast<std::uint32_t>(std::countr_zero(bits));
    const auto packets = static_cast<std::uint32_t>(std::countr_one(bits >> first_bit));
    const std::uint32_t first = chunk * shard_.chunk_packets + first_bit;
    const bool continues =
        !log_.empty() && first_bit != 0 && log_.back().first_packet + log_.back().packets == first;
    if (continues) {
      log_.back().packets += packets;
    } else {
      log_.push_back({first, packets, log_packets_});
    }
    log_packets_ += packets;
    bits &= ~Shard::mask_of(first_bit, packets);
  }
}

const OwnedShard::LogEntry& OwnedShard::entry_at(std::uint32_t position) const {
  const auto next =
      std::upper_bound(log_.begin(), log_.end(), position,
                       [](std::uint32_t wanted, const LogEntry& entry) { return wanted < entry.position; });
  return *(next - 1);
}

std::uint32_t OwnedShard::equal_run(std::uint32_t first, std::uint32_t most) const {
  if (lost_.empty()) return most;
  std::uint32_t packets = 1;
  while (packets < most && lost_[first + packets] == lost_[first]) ++packets;
  return packets;
}

void OwnedShard::stamp(const OutgoingBatch& batch, std::uint32_t timestamp) {
  const std::uint32_t chunk = batch.first_packet / shard_.chunk_packets;
  for (Rank peer : batch.to) {
    sent_[slot(peer, chunk)] |= Shard::mask_of(batch.first_packet % shard_.chunk_packets, batch.packets);
    sent_at_[slot(peer, chunk)] = timestamp;
  }
}

void OwnedShard::note_ack(Rank peer, std::uint32_t chunks) {
  acked_chunks_[peer] = std::clamp(chunks, acked_chunks_[peer], shard_.chunks());
}

std::uint64_t OwnedShard::to_repair(const RequestEntry& entry, const RequestContext& context) const {
  if (entry.chunk >= chunks_.size()) return 0;
  const std::size_t at = slot(context.from, entry.chunk);
  return context.is_lost(sent_at_[at]) ? entry.missing & sent_[at] : 0;
}

bool OwnedShard::complete() const {
  if (unreduced_packets() != 0) return false;
  for (Rank rank = 0; rank < size_; ++rank) {
    if (holds_back(rank)) return false;
  }
  return true;
}

std::uint32_t OwnedShard::first_unacked_chunk() const {
  std::uint32_t first = shard_.chunks();
  for (Rank rank = 0; rank < size_; ++rank) {
    if (rank != me_) first = std::min(first, acked_chunks_[rank]);
  }
  return first;
}

}  // namespace optireduce
