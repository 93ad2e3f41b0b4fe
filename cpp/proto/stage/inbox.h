// The receiver's view of one peer's packets for one shard: what has arrived, what is missing, when to ask for
// it.
#pragma once

#include <vector>

#include "base/rank_mask.h"
#include "geometry/schedule.h"
#include "path/rtt.h"

namespace optireduce {

class Inbox {
 public:
  Inbox() = default;
  Inbox(const Shard& shard, Time now);

  /// Marks packets as received; returns those that are new.
  std::uint64_t accept(Time now, std::uint32_t chunk, std::uint64_t packets);

  /// Packets that are not wanted any more, whether they came or not.
  void give_up(std::uint32_t chunk, std::uint64_t packets);

  /// Nothing more is wanted.
  bool complete() const { return missing_packets_ == 0; }
  std::uint64_t received(std::uint32_t chunk) const {
    return chunk < received_.size() ? received_[chunk] : 0;  // a flow that brings nothing has no chunks
  }
  /// Chunks from the start of the shard that have no hole.
  std::uint32_t whole_chunks() const { return first_hole_; }
  std::uint32_t missing_packets() const { return missing_packets_; }
  /// Calls visit(packet of the shard) for every packet that is missing.
  template <typename Visit>
  void for_each_missing(Visit visit) const {
    for (std::uint32_t chunk = 0; chunk < received_.size(); ++chunk)
      shard_.for_each_packet(chunk, shard_.full_mask(chunk) & ~received_[chunk], visit);
  }

  /// The sender has sent nearly everything (the last-percentile mark).
  void mark_last() { seen_last_ = true; }
  bool seen_last() const { return seen_last_; }

  /// Whoever is asked has sent everything: what is missing is asked for at once.
  void note_all_sent() { progress_at_ = requested_at_ = kNotYet; }
  /// Ranks that do not have it any more.
  void note_refusal(Rank rank) {
    refused_by_ |= bit_of(rank);
    requested_at_ = progress_at_ = kNotYet;
  }
  RankMask refused_by() const { return refused_by_; }

  /// When to ask for missing packets. A gap below something that arrived is soon suspicious; silence only
  /// after a while, doubled for requests in vain.
  Time request_due(const RepairTimers& timers) const;
  /// Requests in a row that nothing came of.
  int requests_in_vain() const { return requests_in_vain_; }

  /// Lists what to ask for now (at most `limit` entries) and restarts the timer. After a silence longer than
  /// `timers.silence` that includes all that lies beyond what was seen: the sender knows what it has sent.
  void take_missing(Time now, const RepairTimers& timers, std::size_t limit, std::vector<RequestEntry>& out);

 private:
  static constexpr Time kNotYet{};  // long before any packet

  bool has_fresh_gap() const { return fresh_gap_since_ != Time::never(); }
  bool has_gap() const { return first_hole_ < highest_chunk_ || gap_in_highest_; }
  void note_gap(Time now, std::uint32_t chunk);
  Duration silence_of(const RepairTimers& timers) const;

  Shard shard_;
  std::vector<std::uint64_t> received_;  // by chunk
  std::uint32_t missing_packets_ = 0;
  std::uint32_t first_hole_ = 0;          // every chunk before is complete
  std::uint32_t highest_chunk_ = 0;       // the last chunk of which something arrived
  bool gap_in_highest_ = false;           // a hole below a received packet of that chunk
  std::uint32_t requested_chunks_ = 0;    // holes in chunks before this one were asked for
  Time fresh_gap_since_ = Time::never();  // a gap that was not asked for yet
  Time progress_at_;
  Time requested_at_;
  int requests_in_vain_ = 0;
  bool seen_last_ = false;
  RankMask refused_by_ = 0;
};

}  // namespace optireduce
