// The shard that this rank reduces: contributions come in from everybody, are added in rank order as soon as
// a packet has all of them, and go out again to everybody.
//
// A bounded operation may stop waiting for some contributions, or some ranks: a packet is then divided by the
// contributions it has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "proto/inbound_flow.h"
#include "proto/outgoing.h"
#include "proto/run.h"
#include "proto/wide.h"

namespace optireduce {

/// Packets that were reduced without a rank's contribution.
struct LostContributions {
  Rank peer = 0;
  std::uint32_t first_packet = 0;
  std::uint32_t packets = 0;
};

class OwnedShard {
 public:
  OwnedShard(const Shard& shard, const Descriptor& descriptor, const EndpointConfig& config,
             std::uint16_t weight, std::byte* data, const Wide& wide, Time now);

  /// Takes consecutive packets from one peer; returns how many bytes of them were new.
  std::uint32_t accept(Time now, Rank from, std::uint32_t first_packet, const Run& run);

  /// Nothing more will come from that peer, or nobody waits for it.
  void stop_waiting_for(Rank peer);
  /// That peer takes part but has nothing to add.
  void note_abstention(Rank peer);
  bool waits_for(Rank peer) const { return waited_[peer]; }
  /// The same for a rank that is known to be absent: what it does not contribute is not counted as lost.
  void excuse(Rank peer);
  /// Reduces what is there until at most so many packets wait for contributions. Begins at the end of the
  /// shard: contributions leave in order, so those of the last chunks are the least likely to come in time.
  void close_down_to(std::uint32_t unreduced_packets);
  std::uint32_t unreduced_packets() const { return shard_.packets() - reduced_packets_; }
  /// Whether every rank that is waited for has sent nearly everything.
  bool seen_last() const;
  /// Whether somebody is waited for whose contributions are not all there.
  bool waits() const;

  /// That peer does not need the reduced shard from us any more.
  void stop_sending_to(Rank peer) { receives_[peer] = false; }
  /// The peer has received that many of our reduced chunks without a hole.
  void note_ack(Rank peer, std::uint32_t chunks);

  /// The next reduced packets for those peers that have not been sent them and whose windows admit them.
  bool next_batch(const std::vector<Peer>& peers, OutgoingBatch& batch);
  /// The next ones for everybody at once, when all windows that set the pace admit them. Not after
  /// next_batch.
  bool next_group_batch(Time now, const std::vector<Peer>& peers, OutgoingBatch& batch);
  void stamp(const OutgoingBatch& batch, std::uint32_t timestamp);
  /// Whether reduced packets wait for that peer's window.
  bool holds_back(Rank peer) const { return receives_[peer] && sent_position_[peer] < log_packets_; }

  /// The requested packets that were sent, and lost.
  std::uint64_t to_repair(const RequestEntry& entry, const RequestContext& context) const;

  bool complete() const;
  const Shard& shard() const { return shard_; }
  const std::byte* data() const { return data_; }
  /// Contributions that a reduced packet lacks; in a part of a group without those of excused ranks.
  std::uint16_t lost_in(std::uint32_t packet) const { return lost_.empty() ? 0 : lost_[packet]; }
  /// Packets from `first` on, at most `most`, that lack equally many.
  std::uint32_t equal_run(std::uint32_t first, std::uint32_t most) const;
  /// Contributions that packets were reduced without.
  const std::vector<LostContributions>& holes() const { return holes_; }
  /// What the packets of a shard that comes reduced from elsewhere lack (see lost_in); empty: nothing.
  void set_lost(std::vector<std::uint16_t> lost) { lost_ = std::move(lost); }
  const std::vector<std::uint16_t>& lost() const { return lost_; }
  /// The weights of all ranks that contributed to any packet.
  std::uint64_t contributed_weight() const;
  /// First stage alone: makes every packet stand for contributed_weight(), so that one number can say what
  /// the shard weighs. Once, when all is reduced.
  void level();
  /// Ranks that contributed infinities or NaNs.
  const std::vector<Rank>& non_finite() const { return non_finite_; }
  InboundFlow& flow(Rank peer) { return flows_[peer]; }
  const InboundFlow& flow(Rank peer) const { return flows_[peer]; }

  /// The first chunk that some peer is not known to have; all before it need never be sent again.
  std::uint32_t first_unacked_chunk() const;

 private:
  struct Piece {
    Run run;
    Rank from;
    std::uint32_t first_bit;  // of the chunk
  };
  struct Chunk {
    std::vector<Piece> pieces;  // contributions that wait for the others, in the buffers they arrived in
    std::uint64_t reduced = 0;
  };
  /// Consecutive packets of one chunk that were reduced one after the other.
  struct LogEntry {
    std::uint32_t first_packet;
    std::uint32_t packets;
    std::uint32_t position;  // packets logged before it
  };

  /// A packet that was reduced without some contributions.
  struct Partial {
    std::uint32_t packet;
    std::uint32_t contributions;
    std::uint64_t weights;
  };

  static constexpr std::size_t kNoHole = ~std::size_t{0};

  bool adds() const { return descriptor_.op != ReduceOp::Gather && stages_ != Stages::Second; }
  void take_own();
  void reduce_ready(std::uint32_t chunk);
  void reduce_bits(std::uint32_t chunk, std::uint64_t bits);
  void reduce_packet(std::uint32_t chunk, std::uint32_t bit);
  void add_up(std::uint32_t packet, double divisor);
  void clear(std::uint32_t packet);
  void blame(std::size_t elements);
  /// Our contribution is read from the caller's float32, not from the data.
  bool adds_wide() const { return wide_ && weights_[me_] != 0; }
  Place place_of(std::uint32_t packet) const {
    return {shard_.begin + shard_.place_of(packet), shard_.length_of(packet)};
  }
  void note_non_finite(Rank rank);
  void note_hole(Rank rank, std::uint32_t packet);
  double floored(std::uint32_t contributions) const;
  double divisor_for(std::uint32_t contributions, std::uint64_t weights) const;
  double level_divisor(std::uint32_t contributions, std::uint64_t weights) const;
  void log(std::uint32_t chunk, std::uint64_t bits);
  const LogEntry& entry_at(std::uint32_t position) const;
  void begin_batch(std::uint32_t position, std::uint32_t most, OutgoingBatch& batch) const;
  void finish_batch(std::uint32_t position, OutgoingBatch& batch);
  bool sends_last_percent(std::uint32_t position) const {
    return position + shard_.packets() / 100 >= shard_.packets();
  }
  std::size_t slot(Rank peer, std::uint32_t chunk) const {
    return std::size_t{peer} * shard_.chunks() + chunk;
  }

  Shard shard_;
  Rank me_;
  Rank size_;
  Stages stages_;
  bool is_part_;  // of a group: others there do not know whom this part does without
  double weight_unit_;
  Descriptor descriptor_;
  std::byte* data_;  // of the shard, in the bucket
  Wide wide_;
  std::vector<InboundFlow> flows_;      // by rank
  std::vector<std::uint16_t> weights_;  // by rank
  std::vector<bool> contributed_;       // by rank: to any packet
  std::vector<bool> abstained_;         // by rank
  std::vector<bool> excused_;           // by rank
  std::vector<bool> waited_;            // by rank
  std::vector<Chunk> chunks_;
  std::uint32_t reduced_packets_ = 0;
  std::uint32_t first_open_chunk_ = 0;  // all before are reduced
  std::vector<std::uint16_t> lost_;     // by packet: see lost_in; empty while nothing is
  std::vector<Partial> partial_;        // first stage alone
  std::vector<Rank> non_finite_;
  std::vector<LostContributions> holes_;
  std::vector<std::size_t> last_hole_;  // by rank: its last one in holes_
  std::vector<LogEntry> log_;           // what was reduced, in the order it is to be sent
  std::uint32_t log_packets_ = 0;

  std::vector<bool> receives_;                // by rank
  std::vector<std::uint32_t> sent_position_;  // by rank: packets of the log that were sent to it
  std::vector<std::uint32_t> acked_chunks_;   // by rank
  std::vector<std::uint64_t> sent_;           // by rank and chunk
  std::vector<std::uint32_t> sent_at_;        // by rank and chunk: timestamp of the last packets of it

  std::vector<const std::byte*> by_rank_, inputs_;  // scratch: one packet's contributions in its own type
};

}  // namespace optireduce
