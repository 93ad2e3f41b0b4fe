// The shard that this rank reduces: contributions come in from everybody, are added in rank order as soon as
// a packet has all of them, and go out again to everybody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "proto/inbound_flow.h"
#include "proto/outgoing.h"
#include "proto/run.h"

namespace optireduce {

class OwnedShard {
 public:
  OwnedShard(const Shard& shard, Rank me, Rank size, const Descriptor& descriptor, std::byte* data, Time now);

  /// Takes consecutive packets from one peer; returns how many bytes of them were new.
  std::uint32_t accept(Time now, Rank from, std::uint32_t first_packet, const Run& run);

  /// The peer has received that many of our reduced chunks without a hole.
  void note_ack(Rank peer, std::uint32_t chunks);

  /// The next reduced packets that nobody was sent yet.
  bool next_batch(OutgoingBatch& batch);
  void stamp(std::uint32_t first_packet, std::uint32_t timestamp);

  /// The requested packets that were sent, and lost.
  std::uint64_t to_repair(const RequestEntry& entry, const RequestContext& context) const;
  void stamp_repair(Rank peer, std::uint32_t chunk, std::uint32_t timestamp) {
    repaired_at_[{peer, chunk}] = timestamp;
  }

  bool complete() const { return reduced_packets_ == shard_.packets() && ready_.empty(); }
  const Shard& shard() const { return shard_; }
  const std::byte* chunk_data(std::uint32_t chunk) const;
  InboundFlow& flow(Rank peer) { return flows_[peer]; }
  const InboundFlow& flow(Rank peer) const { return flows_[peer]; }

  /// The first chunk that some peer is not known to have; all before it need never be sent again.
  std::uint32_t first_unacked_chunk() const;
  std::uint32_t sent_at(std::uint32_t chunk) const { return sent_at_[chunk]; }

 private:
  struct Piece {
    Run run;
    Rank from;
    std::uint32_t first_bit;  // of the chunk
  };
  struct Chunk {
    std::vector<Piece> pieces;  // contributions that wait for the others, in the buffers they arrived in
    std::uint64_t reduced = 0;
    std::uint64_t sent = 0;
  };

  void reduce_ready(std::uint32_t chunk);
  void reduce_packet(std::uint32_t chunk, std::uint32_t bit);

  Shard shard_;
  Rank me_;
  Rank size_;
  Descriptor descriptor_;
  std::byte* data_;                          // of the shard, in the bucket
  std::vector<InboundFlow> flows_;           // by rank
  std::vector<std::uint32_t> acked_chunks_;  // by rank
  std::vector<Chunk> chunks_;
  std::vector<std::uint32_t> sent_at_;  // by chunk: timestamp of its last first-time packets
  std::map<std::pair<Rank, std::uint32_t>, std::uint32_t> repaired_at_;
  std::deque<std::uint32_t> ready_;  // chunks with reduced packets that are not sent
  std::uint32_t reduced_packets_ = 0;
  std::vector<const std::byte*> inputs_;  // scratch: one packet's contributions, by rank
};

}  // namespace optireduce
