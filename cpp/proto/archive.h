// Reduced chunks of operations that are over here but perhaps not everywhere: the caller has its buffer back,
// so a peer that misses a packet is answered from this copy. Only chunks that some peer may lack are copied:
// at most about a window's worth when nothing was lost, whole shards while a rank is absent.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "proto/operation.h"

namespace optireduce {

class Archive {
 public:
  /// `limit_bytes` is for bounded operations: the oldest of them are forgotten beyond it. Others are kept
  /// until every peer has them.
  explicit Archive(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  void keep(const Operation& operation, std::uint32_t timestamp);
  /// Forgets operations that every peer has completed. Bounded ones may still be wanted after that.
  void forget_below(std::uint64_t operation, bool bounded_too);

  bool holds(std::uint64_t operation) const { return entries_.contains(operation); }
  std::uint64_t to_repair(std::uint64_t operation, const RequestEntry& entry,
                          const RequestContext& context) const;
  /// Describes packets to send again; false if they are not kept.
  bool fill_repair(const Repair& repair, OutgoingBatch& batch) const;
  void stamp(const OutgoingBatch& batch, std::uint32_t timestamp);
  std::size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    Descriptor descriptor;
    Rank shard_index;
    Shard shard;  // in the order of its packets, as `data` is
    std::uint32_t first_chunk;
    std::uint32_t kept_at;            // timestamp: nothing of it was sent later, but for repairs
    std::vector<std::byte> data;      // chunks first_chunk .. end
    std::vector<std::uint16_t> lost;  // by packet from first_chunk on; empty: none
    std::map<std::pair<Rank, std::uint32_t>, std::uint32_t> repaired_at;
  };
  using Entries = std::map<std::uint64_t, Entry>;

  Entries::iterator forget(Entries::iterator entry);
  void shrink();

  std::size_t limit_bytes_;
  Entries entries_;
  std::size_t bytes_ = 0;
};

}  // namespace optireduce
