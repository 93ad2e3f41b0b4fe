// The first stage. As an owner: contributions to our shard come in from every member and are added in rank
// order as soon as a packet has all of them, or when the shard is closed. As a contributor: our own
// contribution goes out to the owners of the other shards. A rank that only listens owns an empty shard and
// sends nothing.
//
// In a grid, contributions to the shards of other rows go to our row's relays (stage/relay.h), and what comes
// from our column are sums of rows: our own row is added up first, then the rows in their order. Of a relayed
// shard only our row is added up, into memory of its own.
//
// Ranks are places among the operation's members here.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "stage/decided.h"
#include "stage/outbox.h"

namespace optireduce {

class ReduceScatter {
 public:
  ReduceScatter(const OperationSetup& setup, const Schedule& schedule, Time now)
      : ReduceScatter(setup, schedule, setup.me, now) {}
  /// Of that owner's shard: ours, or one that we relay.
  ReduceScatter(const OperationSetup& setup, const Schedule& schedule, Rank owner, Time now);

  // ---- As an owner, or as a relay

  /// Takes consecutive packets of one member's contribution; returns how many bytes of them were new.
  std::uint32_t accept(Time now, Rank from, const ReceivedRun& run, Bucket& bucket);
  /// That member takes part but has nothing to add.
  void note_abstention(Rank from, Bucket& bucket);
  /// Our own contribution is in the bucket from now on, to all packets that are not decided, and on its way
  /// to the other owners, unless we abstain.
  void begin(const Weights& weights, Bucket& bucket);
  /// Nothing more is waited for: decides the rest with the contributions that are here, but at most down to
  /// so many undecided packets, from the end of the shard.
  void close(Bucket& bucket, std::uint32_t undecided_packets = 0);
  /// That member's contribution is not waited for any more.
  void stop_waiting_for(Rank place, Bucket& bucket);
  /// As a relay: the owner has decided these packets, and what we add up comes too late.
  void give_up(std::uint32_t chunk, std::uint64_t packets);
  /// As a relay: what we added up, in the order of the shard's memory; null: nothing so far.
  const std::byte* sums() const { return sums_.empty() ? nullptr : sums_.data(); }
  std::size_t engine_bytes() const { return sums_.size(); }

  const Decided& decided() const { return decided_; }
  std::uint64_t decided(std::uint32_t chunk) const {
    return chunk < chunks_.size() ? chunks_[chunk].decided : 0;
  }
  std::uint32_t undecided_packets() const { return undecided_; }
  /// Whether that place gives us contributions to the shard.
  bool takes_from(Rank place) const { return setup_.takes_from(place, owner_); }
  /// Whether what it gives is the sum of its row: then the details of a bounded one say who is in it.
  bool stands_for_row(Rank place) const { return owner_ == setup_.me && setup_.speaks_for_row(place); }
  /// Whether a member's contribution is missing that is waited for.
  bool lacks(Rank place) const;
  bool seen_last() const;
  const Shard& shard() const { return shard_; }
  Rank index() const { return index_; }
  Inbox& inbox(Rank place) { return inboxes_[place]; }
  const Inbox& inbox(Rank place) const { return inboxes_[place]; }
  /// When a member's last contribution came; never while something is missing.
  Time complete_at(Rank place) const { return complete_at_[place]; }
  /// Packets that were decided without that member's contribution.
  std::uint32_t excluded_packets(Rank place) const { return excluded_[place]; }
  /// Best effort: members and packets that were decided without them.
  const std::vector<std::pair<Rank, std::uint32_t>>& missing() const { return missing_; }
  /// Behind our contribution; of nothing before the process has begun.
  const Weights& own_weights() const { return own_weights_; }
  /// The weights of all members that contributed to any packet. Not of weighted means: there packets differ.
  std::uint64_t contributed_weight() const;
  /// Places whose contributions were not finite.
  const std::set<Rank>& non_finite() const { return non_finite_; }

  // ---- As a contributor

  Outbox& outbox(Rank place) { return outboxes_[place]; }
  const Outbox& outbox(Rank place) const { return outboxes_[place]; }
  bool all_sent() const;

 private:
  struct Piece {
    ReceivedRun run;
    Rank from;
    std::uint32_t first_bit;  // of the chunk
  };
  struct Chunk {
    std::vector<Piece> pieces;  // contributions that wait for the others, in the buffers they arrived in
    std::uint64_t decided = 0;
  };

  void decide_ready(std::uint32_t chunk, Bucket& bucket);
  void decide_all_ready(Bucket& bucket);
  void decide(std::uint32_t chunk, std::uint64_t bits, Bucket& bucket);
  void decide_packet(std::uint32_t packet, Bucket& bucket);
  void find_contributions(std::uint32_t packet, Bucket& bucket);
  void choose_inputs(std::uint32_t packet, Bucket& bucket);
  void choose_row_sums(std::uint32_t packet, Bucket& bucket);
  bool add_up_row(std::uint32_t packet, Bucket& bucket, std::byte* to);
  void tidy(std::uint32_t chunk);
  bool is_empty(Rank place) const { return setup_.tells_sets() && sets_[place] == 0; }
  std::uint64_t detail_of(std::uint32_t packet);
  double divisor() const;
  double best_effort_divisor(std::uint32_t contributions, std::uint64_t weights) const;
  void blame(const std::byte* result, std::size_t elements);

  OperationSetup setup_;
  Rank owner_;  // of the shard
  Rank index_;
  Shard shard_;
  std::vector<Inbox> inboxes_;           // by place
  std::vector<Time> complete_at_;        // by place
  std::vector<std::uint32_t> weights_;   // by place; 0: has not contributed to any packet
  std::vector<std::uint32_t> excluded_;  // by place: packets
  std::vector<bool> waited_;             // by place
  std::vector<bool> abstained_;          // by place
  bool own_ = false;                     // our contribution is in the bucket
  Weights own_weights_{0};
  std::vector<Chunk> chunks_;
  std::uint32_t first_open_chunk_ = 0;  // all before are decided
  Decided decided_;
  std::uint32_t undecided_;
  std::set<Rank> non_finite_;
  std::vector<std::pair<Rank, std::uint32_t>> missing_;  // place and packet; best effort only
  std::vector<Outbox> outboxes_;                         // by place

  Bucket::Memory sums_;  // of our row, as a relay

  std::vector<const std::byte*> by_place_, inputs_;  // scratch: one packet's contributions ...
  std::uint64_t included_weight_ = 0;                // ... and what they weigh, of a weighted mean
  std::vector<std::uint64_t> sets_;                  // scratch: who is in the sums of other rows
  std::vector<std::byte> row_sum_;                   // scratch
};

}  // namespace optireduce
