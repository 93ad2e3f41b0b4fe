// Reduced packets that an operation had to end without, and that are fetched afterwards. This rank's replica
// has missed a part of an update that the others have. Until the packet comes, a loan stands in for it: a
// share of what this rank itself contributed, which points the same way. When the packet comes it is added to
// the result of the next operation on the same buffer, and the loan taken back: one step late, but not lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "proto/inbound_flow.h"
#include "proto/operation.h"
#include "proto/run.h"

namespace optireduce {

class LateRepair {
 public:
  /// `limit_bytes`: of loans, and of packets that have come and wait for the next operation. Beyond half of
  /// it nothing is lent, beyond all of it new packets are dropped.
  explicit LateRepair(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// Wants what `operation`, which is over, lacks, and notes what we contributed there: call it before that
  /// is overwritten. Only operations of a stream can be corrected later.
  void want(const Operation& operation);
  /// Puts the loans into the operation's result, where zeros are.
  void lend(const Operation& operation) const;
  bool wants_any() const { return !wanted_.empty(); }
  /// Of loans and of packets that have come.
  std::size_t bytes() const { return bytes_; }

  /// Takes reduced packets of an operation that is over; how many bytes of them were wanted.
  std::uint32_t accept(Time now, const Run& run);

  /// Adds to the operation's result what has come since for its stream; how many bytes.
  std::uint64_t correct(const Operation& operation);

  /// Nothing more will come from that owner: for this operation, or at all.
  void give_up(std::uint64_t operation, Rank owner);
  void give_up_on(Rank owner);
  /// Owners do not keep operations for ever.
  void forget_below(std::uint64_t operation);

  /// Calls visit(operation, owner, flow) for all that is missing.
  template <typename Visit>
  void for_each(Visit visit) {
    for (auto& [key, wanted] : wanted_) visit(key.first, key.second, wanted.flow);
  }
  InboundFlow* find(std::uint64_t operation, Rank owner);

 private:
  using Bytes = std::vector<std::byte>;
  struct Wanted {
    std::uint32_t stream;
    Descriptor descriptor;
    Rank shard_index;
    Shard shard;
    InboundFlow flow;
    double lent_share;                     // of our contribution
    std::map<std::uint32_t, Bytes> loans;  // by packet: our contribution
  };
  using Key = std::pair<std::uint64_t, Rank>;  // operation and owner
  using Entries = std::map<Key, Wanted>;
  struct Piece {
    std::size_t begin;  // in the bucket
    Bytes data;
    double factor;  // 1: a packet that has come; negative: a loan that is taken back
  };
  struct Correction {
    Descriptor descriptor;
    std::vector<Piece> pieces;
  };

  void note_loans(const Operation& operation, Wanted& wanted);
  void keep(Wanted& wanted, std::uint32_t packet, const std::byte* payload);
  Entries::iterator forget(Entries::iterator wanted);

  std::size_t limit_bytes_;
  std::size_t bytes_ = 0;
  Entries wanted_;
  std::map<std::uint32_t, Correction> corrections_;  // by stream
};

}  // namespace optireduce
