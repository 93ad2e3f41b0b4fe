// One all-reduce in flight: the shard this rank owns, and the shards of the others.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/foreign_shard.h"
#include "proto/outgoing.h"
#include "proto/owned_shard.h"
#include "proto/packet.h"
#include "proto/report.h"
#include "proto/run.h"
#include "proto/schedule.h"
#include "proto/wide.h"

namespace optireduce {

/// What a rank asks for.
struct StartOptions {
  Duration timeout;          // an operation that must be complete fails after it
  std::uint16_t weight = 1;  // samples behind this rank's contribution; 0: it has none
  /// Names the sequence of operations on the same buffer; 0: none. What one of them lacks and comes later is
  /// added to the next.
  std::uint32_t stream = 0;
  /// Its time limit is that of an operation which is so many bytes larger, counted from when all that began
  /// before must be over, and it never ends early.
  std::size_t patience_bytes = 0;
  /// No gradient: asks for lost packets again, also where other operations with a deadline do not, and who
  /// misses it is not absent.
  bool repairs = false;
  /// Its deadline is so many times the usual one, 1 or more. Infinite: it has none, as in the warm-up, and
  /// may yet end without all data if others have done so.
  double slack = 1.0;
  /// Second stage alone: what the packets of our shard lack, see OwnedShard::set_lost.
  std::vector<std::uint16_t> lacking = {};
  /// Data of a narrow type that stands for these float32: they are what is contributed, they get the result,
  /// and the data is room to round to, with whatever it holds. Not for gathers.
  WideMemory wide = {};
};

/// The time limits of one operation.
struct Bound {
  Duration hard;        // tB: it ends, whatever is missing
  Duration drain;       // how long sending a whole reduced shard takes
  Duration margin;      // between the end of sending and the hard bound
  Duration early;       // tC
  Duration early_wait;  // x * tC: from the last news to the end, once nearly all has been sent
};

class Operation {
 public:
  Operation(std::uint64_t number, const Descriptor& descriptor, std::byte* data, const EndpointConfig& config,
            Time now, const StartOptions& options);

  std::uint64_t number() const { return number_; }
  const Descriptor& descriptor() const { return descriptor_; }
  Time started() const { return started_; }
  /// When it fails if it is not complete: for operations without a bound.
  Time deadline() const { return deadline_; }
  std::size_t bytes() const { return schedule_.bytes(); }
  Rank size() const { return size_; }
  /// Adds so many times `correction`, in the form that travels, to what this place of the result is here.
  void correct(Place place, const std::byte* correction, double factor) const;
  /// What we contribute at that place, in the form that travels; while nothing has been placed there.
  std::vector<std::byte> contribution(Place place) const;
  std::uint32_t stream() const { return stream_; }
  std::size_t patience_bytes() const { return patience_bytes_; }
  double slack() const { return slack_; }
  bool repairs() const { return repairs_; }
  /// Whether a rank that contributes nothing to it may be absent: not for what is sent beside gradients.
  bool takes_attendance() const { return takes_attendance_; }
  std::uint16_t weight() const { return weight_; }
  bool abstains() const { return weight_ == 0; }
  /// Nothing is added: every rank sends its own shard to all others.
  bool gathers() const { return is_gather() || stages_ == Stages::Second; }
  /// A gather by itself, not a part of an all-reduce: what does not come keeps its value.
  bool is_gather() const { return descriptor_.op == ReduceOp::Gather; }
  Stages stages() const { return stages_; }
  /// One of several that make up an all-reduce.
  bool is_part() const { return is_part_; }

  Rank owned_index() const { return schedule_.shard_of(me_); }
  Rank foreign_index(Rank owner) const { return schedule_.shard_of(owner); }

  /// Whether a run's place and lengths are those of a shard; nothing is touched otherwise.
  bool fits(const Run& run) const;
  /// For runs that fit. Bytes that were new.
  std::uint32_t accept_contribution(Time now, const Run& run);
  std::uint32_t accept_reduced(Time now, const Run& run);
  void note_abstention(const Run& run);

  /// Reduced packets for peers whose windows admit them; `to_group`: for all of them at once.
  bool next_reduced(Time now, const std::vector<Peer>& peers, bool to_group, OutgoingBatch& batch);
  /// A contribution to any owner whose window admits it, taking turns, starting with our neighbour so that
  /// ranks do not all send to the same owner at once. Owners that wait for more room are marked as blocked:
  /// an older operation always goes first.
  bool next_contribution(const std::vector<Peer>& peers, std::vector<bool>& blocked, OutgoingBatch& batch);
  /// Describes the first packets of `repair` to send again.
  void fill_repair(const Repair& repair, OutgoingBatch& batch) const;
  void stamp(const OutgoingBatch& batch, std::uint32_t timestamp);
  /// Whether something waits for that peer: contributions for its window, reduced packets for its window or,
  /// if they go to the group, for anybody's.
  bool holds_back_contributions(Rank peer) const { return !foreign_[peer].all_sent(); }
  bool holds_back_reduced(Rank peer) const { return owned_.holds_back(peer); }

  bool complete() const;
  OwnedShard& owned() { return owned_; }
  const OwnedShard& owned() const { return owned_; }
  ForeignShard& foreign(Rank owner) { return foreign_[owner]; }
  const ForeignShard& foreign(Rank owner) const { return foreign_[owner]; }

  // ---- Who takes part

  /// That rank is absent: neither waited for nor sent to.
  void exclude(Rank peer);
  const std::vector<Rank>& excluded() const { return excluded_; }
  /// That rank is through with this operation: it contributes no more and needs nothing; what it has reduced
  /// can be asked for.
  void peer_is_through(Rank peer);
  /// That rank's reduced shard will not come.
  void write_off(Rank owner);
  /// Whether anything of this operation has come from that rank.
  bool heard(Rank peer) const { return first_seen_[peer] != Time::never(); }
  /// How much later than we the last of the ranks heard so far started.
  Duration skew() const;
  /// How much later than the median of the ranks heard so far this one started; negative: earlier.
  Duration behind() const;

  // ---- Time limits

  void set_bound(const Bound& bound) { bound_ = bound; }
  /// Ends it earlier than its bound.
  void hurry(Duration limit) { bound_->hard = std::min(bound_->hard, limit); }
  const std::optional<Bound>& bound() const { return bound_; }
  /// When the last packet came that was of use.
  Time progress_at() const { return progress_at_; }
  /// The longest time without one, until `now`.
  struct Idle {
    Time begin;
    Duration length;
  };
  Idle longest_idle(Time now) const;
  Time hard_deadline() const { return started_ + bound_->hard; }
  /// When contributions have to be given up so that what was reduced still gets everywhere in time: the more
  /// is unreduced, the earlier. Never, when nothing is.
  Time contributions_due() const;
  void close_due_contributions(Time now);
  /// When nearly everything has been sent and waiting any longer does not pay; never, while some rank still
  /// sends. `repair_wait`: how long repair may take.
  Time early_due(Duration repair_wait) const;
  /// All that is missing at the early deadline of stage 1 is given up. True if that was all there was to do.
  bool close_early();
  void close_all_contributions();

  ClosedBy closed_by() const { return closed_by_; }
  void note_closed(ClosedBy reason) { closed_by_ = std::max(closed_by_, reason); }
  bool lacks(Rank owner) const { return !foreign_[owner].complete(); }
  /// Lacks something that its owner may still have.
  bool still_open(Rank owner) const { return owner != me_ && open(owner); }
  /// Fills in what was lost, and zeroes what is missing; in a gather by itself it keeps its value.
  void settle_losses(Report& report);
  /// Of what present ranks owed us, the share that came.
  double arrived_share() const;

  /// Peers that this operation waits for: those whose contributions are furthest behind (the others wait for
  /// the same ranks, with full windows) or, if none is missing, those whose reduced shards are.
  std::vector<Rank> waiting_for() const;
  bool waits_for_contributions() const { return owned_.waits(); }
  /// "rank 2 has sent nothing of it", for people.
  std::string describe_wait(Rank peer, Rank name) const;

  std::uint64_t repaired_bytes = 0;
  bool catches_up = false;      // others were through with it when it started
  bool handed_over = false;     // first stage alone: it is over here, but peers may still miss our part
  std::size_t bytes_ahead = 0;  // of operations that were under way when this one started

 private:
  void label(OutgoingBatch& batch, PacketType type, Rank shard_index) const;
  void note_progress(Time now);
  bool all_owners_seen_last() const;
  std::vector<Hole> holes() const;
  /// Of so many contributions that a packet lacks, those of ranks that we do not do without ourselves. Others
  /// may see somebody absent who is there for us: what that costs is a loss like any other.
  std::uint32_t lost_to_us(std::uint32_t lacking) const;
  bool open(Rank owner) const { return !written_off_[owner] && !foreign_[owner].complete(); }

  std::uint64_t number_;
  Descriptor descriptor_;
  Rank me_;
  Rank size_;
  Rank group_size_;
  bool is_part_;
  Stages stages_;
  std::byte* data_;
  Wide wide_;
  std::uint32_t stream_;
  std::size_t patience_bytes_;
  double slack_;
  bool repairs_;
  bool takes_attendance_;
  std::uint16_t weight_;
  Time started_;
  Time deadline_;
  Time progress_at_;
  Idle longest_idle_;
  Schedule schedule_;
  OwnedShard owned_;
  std::vector<ForeignShard> foreign_;  // by owner; ours stays empty
  std::vector<bool> written_off_;      // by owner
  std::vector<Rank> excluded_;
  std::vector<Time> first_seen_;  // by rank
  Rank turn_;
  std::size_t foreign_incomplete_ = 0;
  struct Hollow {
    Rank owner;
    std::uint32_t first_packet;
    std::uint32_t packets;
  };
  std::vector<Hollow> hollow_;                 // packets that came without values
  std::uint64_t lost_contribution_bytes_ = 0;  // of reduced packets that came, times contributions they lack
  std::optional<Bound> bound_;
  ClosedBy closed_by_ = ClosedBy::Complete;
};

std::string describe(const Descriptor& descriptor);

}  // namespace optireduce
