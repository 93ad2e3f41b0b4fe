#include "stage/inbox.h"

#include <algorithm>
#include <bit>

namespace optireduce {
namespace {

constexpr int kMaxDoublings = 6;
/// A lossy network loses requests and answers too: the first few are repeated without doubling the wait.
constexpr int kRequestsBeforeDoubling = 2;
/// A peer that was late for seconds must not wait for seconds more when its first packet after that is lost.
constexpr Duration kLongestWait = Duration::millis(200);

constexpr std::uint32_t kEndShare = 16;

/// A hole below the highest packet that arrived.
bool has_inner_hole(std::uint64_t received) {
  return (received & (received + 1)) != 0;
}

}  // namespace

Inbox::Inbox(const Shard& shard, Time now)
    : shard_(shard),
      received_(shard.chunks(), 0),
      missing_packets_(shard.packets()),
      progress_at_(now),
      requested_at_(now) {}

std::uint64_t Inbox::accept(Time now, std::uint32_t chunk, std::uint64_t packets) {
  const std::uint64_t fresh = packets & ~received_[chunk];
  if (fresh == 0) return 0;
  received_[chunk] |= fresh;
  missing_packets_ -= static_cast<std::uint32_t>(std::popcount(fresh));
  progress_at_ = now;
  requests_in_vain_ = 0;
  note_gap(now, chunk);
  return fresh;
}

void Inbox::give_up(std::uint32_t chunk, std::uint64_t packets) {
  const std::uint64_t given_up = packets & ~received_[chunk];
  received_[chunk] |= given_up;
  missing_packets_ -= static_cast<std::uint32_t>(std::popcount(given_up));
  while (first_hole_ < received_.size() && received_[first_hole_] == shard_.full_mask(first_hole_))
    ++first_hole_;
}

void Inbox::note_gap(Time now, std::uint32_t chunk) {
  const auto chunks = static_cast<std::uint32_t>(received_.size());
  while (first_hole_ < chunks && received_[first_hole_] == shard_.full_mask(first_hole_)) ++first_hole_;
  highest_chunk_ = std::max(highest_chunk_, chunk);
  gap_in_highest_ = has_inner_hole(received_[highest_chunk_]);
  const bool unasked = std::max(first_hole_, requested_chunks_) < highest_chunk_ ||
                       (gap_in_highest_ && highest_chunk_ >= requested_chunks_);
  if (!has_gap() || !unasked) {
    fresh_gap_since_ = Time::never();
  } else if (fresh_gap_since_ == Time::never()) {
    fresh_gap_since_ = now;
  }
}

/// Near the end a sender has no reason to pause, and a request in vain is for little.
Duration Inbox::silence_of(const RepairTimers& timers) const {
  const bool nearly_complete = missing_packets_ <= shard_.packets() / kEndShare;
  return nearly_complete ? timers.retry : timers.silence;
}

Time Inbox::request_due(const RepairTimers& timers) const {
  if (complete()) return Time::never();
  const int doublings = std::clamp(requests_in_vain_ - kRequestsBeforeDoubling, 0, kMaxDoublings);
  const auto doubled = [&](Duration wait) {
    return std::min(wait * (std::int64_t{1} << doublings), std::max(wait, kLongestWait));
  };
  const Time silence_ends = std::max(progress_at_, requested_at_) + doubled(silence_of(timers));
  const Time retry = has_gap() ? std::min(silence_ends, requested_at_ + doubled(timers.retry)) : silence_ends;
  return has_fresh_gap() ? std::min(retry, fresh_gap_since_ + timers.reorder) : retry;
}

void Inbox::take_missing(Time now, const RepairTimers& timers, std::size_t limit,
                         std::vector<RequestEntry>& out) {
  const bool silent = now - progress_at_ >= silence_of(timers);
  const bool only_fresh = has_fresh_gap() && now - requested_at_ < timers.retry;
  const auto chunks = static_cast<std::uint32_t>(received_.size());
  const std::uint32_t first = only_fresh ? std::max(first_hole_, requested_chunks_) : first_hole_;
  const std::uint32_t end = silent ? chunks : std::min(chunks, highest_chunk_ + 1);
  std::uint32_t chunk = first;
  for (; chunk < end && out.size() < limit; ++chunk) {
    std::uint64_t missing = shard_.full_mask(chunk) & ~received_[chunk];
    if (!silent && chunk == highest_chunk_) missing &= std::bit_floor(received_[chunk]) - 1;
    if (missing != 0) out.push_back({chunk, missing});
  }
  requested_chunks_ = std::max(requested_chunks_, std::min(chunk, highest_chunk_ + 1));
  fresh_gap_since_ = Time::never();
  requested_at_ = now;
  ++requests_in_vain_;
}

}  // namespace optireduce
