#include "stage/reduce_scatter.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "kernels/finite.h"
#include "kernels/reduce.h"

namespace optireduce {

ReduceScatter::ReduceScatter(const OperationSetup& setup, const Schedule& schedule, Rank owner, Time now)
    : setup_(setup),
      owner_(owner),
      index_(setup.serves() ? schedule.shard_of(owner) : Rank{0}),
      shard_(setup.serves() ? schedule.shard(index_) : Shard{}),
      inboxes_(setup.places()),
      complete_at_(setup.places(), Time::never()),
      weights_(setup.places(), 0),
      excluded_(setup.places(), 0),
      waited_(setup.places(), false),
      abstained_(setup.places(), !setup.adds()),
      chunks_(shard_.chunks()),
      decided_(owner == setup.me ? setup.usual_detail() : setup.usual_row_detail()),
      undecided_(shard_.packets()),
      by_place_(setup.places(), nullptr),
      sets_(setup.places(), 0) {
  for (Rank place = 0; place < setup.places(); ++place) {
    const bool ours = setup.serves() && place == setup.me;
    waited_[place] = ours || (setup.adds() && takes_from(place));
    if (ours || takes_from(place)) {
      inboxes_[place] = Inbox(shard_, now);
    } else {
      abstained_[place] = true;
    }
  }
  if (owner != setup.me) return;
  outboxes_.reserve(setup.places());
  for (Rank place = 0; place < setup.places(); ++place)
    outboxes_.emplace_back(schedule.shard(schedule.shard_of(place)));
}

// ---- Contributions

std::uint32_t ReduceScatter::accept(Time now, Rank from, const ReceivedRun& run, Bucket& bucket) {
  const std::uint32_t first = run.header.offset / shard_.payload_bytes;
  const std::uint32_t chunk = first / shard_.chunk_packets;
  const std::uint32_t first_bit = first % shard_.chunk_packets;
  const std::uint64_t fresh = inboxes_[from].accept(now, chunk, Shard::mask_of(first_bit, run.packets));
  if (fresh == 0) return 0;
  weights_[from] = weight_of(run.header);
  if (inboxes_[from].complete()) complete_at_[from] = now;
  chunks_[chunk].pieces.push_back({run, from, first_bit});
  decide_ready(chunk, bucket);
  return shard_.bytes_of(chunk, fresh);
}

void ReduceScatter::note_abstention(Rank from, Bucket& bucket) {
  abstained_[from] = true;
  stop_waiting_for(from, bucket);
}

void ReduceScatter::stop_waiting_for(Rank place, Bucket& bucket) {
  if (!waited_[place]) return;
  waited_[place] = false;
  decide_all_ready(bucket);
}

void ReduceScatter::begin(const Weights& weights, Bucket& bucket) {
  const Rank me = setup_.me;
  if (!setup_.serves()) return;
  own_ = setup_.adds() && !weights.abstains();
  own_weights_ = weights;
  weights_[me] = own_ ? weights.usual() : 0;
  if (weights.abstains()) abstained_[me] = true;
  waited_[me] = false;
  for (Rank place = 0; own_ && place < setup_.places(); ++place) {
    if (place != me && owner_ == me && !setup_.relays(place)) outboxes_[place].begin();
  }
  decide_all_ready(bucket);
}

void ReduceScatter::close(Bucket& bucket, std::uint32_t undecided) {
  for (auto chunk = static_cast<std::uint32_t>(chunks_.size());
       chunk-- > first_open_chunk_ && undecided_packets() > undecided;) {
    const std::uint64_t open = shard_.full_mask(chunk) & ~chunks_[chunk].decided;
    if (open != 0) decide(chunk, open, bucket);
  }
}

bool ReduceScatter::lacks(Rank place) const {
  if (!waited_[place]) return false;
  return place == setup_.me || !inboxes_[place].complete();
}

bool ReduceScatter::seen_last() const {
  for (Rank place = 0; place < setup_.places(); ++place) {
    if (lacks(place) && !inboxes_[place].seen_last()) return false;
  }
  return true;
}

bool ReduceScatter::all_sent() const {
  return std::all_of(outboxes_.begin(), outboxes_.end(), [](const Outbox& each) { return each.all_sent(); });
}

std::uint64_t ReduceScatter::contributed_weight() const {
  return std::accumulate(weights_.begin(), weights_.end(), std::uint64_t{0});
}

// ---- Decisions

void ReduceScatter::decide_all_ready(Bucket& bucket) {
  for (std::uint32_t chunk = first_open_chunk_; chunk < chunks_.size(); ++chunk) decide_ready(chunk, bucket);
}

void ReduceScatter::decide_ready(std::uint32_t index, Bucket& bucket) {
  if (waited_[setup_.me]) return;  // our own contribution is not in yet
  std::uint64_t ready = shard_.full_mask(index) & ~chunks_[index].decided;
  for (Rank place = 0; place < setup_.places() && ready != 0; ++place) {
    if (waited_[place]) ready &= inboxes_[place].received(index);
  }
  if (ready != 0) decide(index, ready, bucket);
}

void ReduceScatter::decide(std::uint32_t index, std::uint64_t bits, Bucket& bucket) {
  Chunk& chunk = chunks_[index];
  if (setup_.adds())
    shard_.for_each_packet(index, bits, [&](std::uint32_t packet) { decide_packet(packet, bucket); });
  chunk.decided |= bits;
  decided_.add(shard_, index, bits);
  undecided_ -= static_cast<std::uint32_t>(std::popcount(bits));
  tidy(index);
}

void ReduceScatter::give_up(std::uint32_t index, std::uint64_t packets) {
  const std::uint64_t open = packets & shard_.full_mask(index) & ~chunks_[index].decided;
  chunks_[index].decided |= open;
  undecided_ -= static_cast<std::uint32_t>(std::popcount(open));
  for (Rank place = 0; place < setup_.places(); ++place) {
    if (place != setup_.me && !takes_from(place)) continue;
    const std::uint64_t late = open & ~inboxes_[place].received(index);
    if (waited_[place]) excluded_[place] += static_cast<std::uint32_t>(std::popcount(late));
    inboxes_[place].give_up(index, open);
  }
  tidy(index);
}

/// Contributions to what is decided are not needed any more.
void ReduceScatter::tidy(std::uint32_t index) {
  Chunk& chunk = chunks_[index];
  if (chunk.decided == shard_.full_mask(index)) std::vector<Piece>().swap(chunk.pieces);
  while (first_open_chunk_ < chunks_.size() &&
         chunks_[first_open_chunk_].decided == shard_.full_mask(first_open_chunk_)) {
    ++first_open_chunk_;
  }
}

void ReduceScatter::decide_packet(std::uint32_t packet, Bucket& bucket) {
  // Alone: the sum is there already. A narrow form is not: a rank that returns gets it.
  const bool whole = setup_.descriptor.op == ReduceOp::Sum || own_weights_.of(shard_, packet) == 1;
  if (setup_.places() == 1 && own_ && whole && !bucket.narrow()) return;
  find_contributions(packet, bucket);
  const std::uint64_t detail = detail_of(packet);
  decided_.set_detail(shard_, packet, detail);
  const std::size_t elements = shard_.length_of(packet) / size_of(setup_.descriptor.dtype);
  if (owner_ != setup_.me) {
    sums_.resize(shard_.bytes);
    std::byte* const sum = sums_.data() + shard_.place_of(packet);
    if (!add_up_row(packet, bucket, sum)) std::memset(sum, 0, shard_.length_of(packet));
    return blame(sum, elements);
  }
  choose_inputs(packet, bucket);
  const bool own = setup_.routes == nullptr && by_place_[setup_.me] != nullptr;
  if (inputs_.empty() && !own) return bucket.zero(index_, shard_, packet);  // void: nobody had anything
  double by = divisor();
  if (setup_.best_effort && detail != 0) {
    std::uint64_t weights = 0;
    for (Rank place = 0; place < setup_.places(); ++place)
      weights += by_place_[place] != nullptr ? weights_[place] : 0;
    by = best_effort_divisor(static_cast<std::uint32_t>(setup_.places() - detail), weights);
  }
  const bool is_sum_already = own && inputs_.size() == 1 && by == 1.0 && !bucket.narrow();
  if (!is_sum_already) bucket.reduce(index_, shard_, packet, inputs_, own, by);
  blame(bucket.data(index_, shard_) + shard_.place_of(packet), elements);
}

/// Fills by_place_ and sets_.
void ReduceScatter::find_contributions(std::uint32_t packet, Bucket& bucket) {
  std::fill(by_place_.begin(), by_place_.end(), nullptr);
  const std::uint32_t bit = packet % shard_.chunk_packets;
  if (own_) by_place_[setup_.me] = bucket.data(index_, shard_) + shard_.place_of(packet);
  included_weight_ = own_ ? own_weights_.of(shard_, packet) : 0;
  for (const Piece& piece : chunks_[packet / shard_.chunk_packets].pieces) {
    if (bit < piece.first_bit || bit - piece.first_bit >= piece.run.packets) continue;
    if (by_place_[piece.from] == nullptr) included_weight_ += weight_of(piece.run.header);
    by_place_[piece.from] = piece.run.payload(bit - piece.first_bit);
    if (stands_for_row(piece.from)) sets_[piece.from] = piece.run.header.detail & setup_.row_set(piece.from);
  }
}

/// Fills inputs_: in rank order, or in the order of the rows.
void ReduceScatter::choose_inputs(std::uint32_t packet, Bucket& bucket) {
  if (setup_.routes != nullptr) return choose_row_sums(packet, bucket);
  inputs_.clear();
  for (Rank place = 0; place < setup_.places(); ++place) {
    const bool widened = place == setup_.me && bucket.narrow();  // the bucket itself adds the caller's values
    if (by_place_[place] != nullptr && !widened) inputs_.push_back(by_place_[place]);
  }
}

void ReduceScatter::choose_row_sums(std::uint32_t packet, Bucket& bucket) {
  const Routes& routes = *setup_.routes;
  row_sum_.resize(shard_.payload_bytes);
  const bool any = add_up_row(packet, bucket, row_sum_.data());
  inputs_.clear();
  for (Rank row = 0; row < routes.rows().size(); ++row) {
    const Rank place = routes.in_row(row, setup_.me);
    const bool empty = place == setup_.me ? !any : by_place_[place] == nullptr || is_empty(place);
    if (!empty) inputs_.push_back(place == setup_.me ? row_sum_.data() : by_place_[place]);
  }
}

/// Adds what has come from our own row, in rank order; false: nothing has.
bool ReduceScatter::add_up_row(std::uint32_t packet, Bucket& bucket, std::byte* to) {
  inputs_.clear();
  for (Rank place = 0; place < setup_.places(); ++place) {
    if (by_place_[place] == nullptr || stands_for_row(place)) continue;
    if (place == setup_.me && bucket.narrow()) bucket.round(place_of(shard_, packet));
    inputs_.push_back(by_place_[place]);
  }
  if (inputs_.empty()) return false;
  const std::size_t elements = shard_.length_of(packet) / size_of(setup_.descriptor.dtype);
  reduce(setup_.descriptor.dtype, inputs_, setup_.part(), to, elements);
  return true;
}

/// Who is in the packet; a contribution that is not is not wanted any more. All that a rank without samples
/// has is in a weighted mean.
std::uint64_t ReduceScatter::detail_of(std::uint32_t packet) {
  std::uint64_t included = 0, missing = 0;
  for (Rank place = 0; place < setup_.places(); ++place) {
    if (by_place_[place] != nullptr) {
      included |= stands_for_row(place) ? sets_[place] : setup_.bit_of(place);
      continue;
    }
    if (abstained_[place]) {
      if (setup_.descriptor.op == ReduceOp::WeightedMean) included |= setup_.bit_of(place);
      continue;
    }
    ++missing;
    ++excluded_[place];
    if (setup_.best_effort) missing_.emplace_back(place, packet);
    inboxes_[place].give_up(packet / shard_.chunk_packets, std::uint64_t{1} << packet % shard_.chunk_packets);
  }
  return setup_.tells_sets() ? included : missing;
}

/// A bounded mean divides by all members, whoever is included: an excluded contribution comes later, so that
/// every gradient counts once. A weighted mean divides by the weights that are included: an excluded
/// contribution comes later with its weight, so that every sample counts once.
double ReduceScatter::divisor() const {
  if (setup_.descriptor.op == ReduceOp::WeightedMean)
    return static_cast<double>(std::max<std::uint64_t>(included_weight_, 1));
  if (setup_.descriptor.op != ReduceOp::Mean) return 1.0;
  if (setup_.tells_sets()) return setup_.places() / setup_.part();
  return static_cast<double>(std::max<std::uint64_t>(contributed_weight(), 1)) / setup_.part();
}

/// The papers': the mean of the contributions that came, and a sum scaled up as if it were of all. Below half
/// of the ranks the result shrinks towards zero instead.
double ReduceScatter::best_effort_divisor(std::uint32_t contributions, std::uint64_t weights) const {
  const double floor = std::max<double>(contributions, setup_.places() / 2.0) / contributions;
  if (setup_.descriptor.op == ReduceOp::Mean)
    return static_cast<double>(std::max<std::uint64_t>(weights, 1)) * floor;
  return contributions * floor / setup_.places();
}

/// Finds out who contributed what is not finite. Our own contribution has been overwritten: it is to blame
/// where no other is (or the sum was too large for its type). Of another row its relay tells.
void ReduceScatter::blame(const std::byte* result, std::size_t elements) {
  if (all_finite(setup_.descriptor.dtype, result, elements)) return;
  bool found = false;
  for (Rank place = 0; place < setup_.places(); ++place) {
    const std::byte* theirs = by_place_[place];
    if (theirs == nullptr || theirs == result || all_finite(setup_.descriptor.dtype, theirs, elements))
      continue;
    found = true;
    if (!stands_for_row(place)) non_finite_.insert(place);
  }
  if (!found) non_finite_.insert(setup_.me);
}

}  // namespace optireduce
