// The hierarchical form of the protocol, for many ranks. They stand in rows of equal length; the ranks with
// the same index in all rows are a column. An all-reduce has three stages, each of which is an Endpoint's
// (a "lane") over a row or a column:
//   scatter   within the row: every rank ends with its piece of the bucket, reduced over the row
//   across    within the column: an all-reduce of that piece
//   gather    within the row: every rank gets all pieces
// so that a rank exchanges with (row - 1) + (column - 1) others instead of all. Gathers run flat, in a fourth
// lane, over all ranks.
//
// Every rank takes its all-reduces through every lane in the order of its calls, so that the n-th operation
// of a lane is the same everywhere. Any number are under way, in different lanes too. An operation that fails
// takes its number in the lanes that it has not entered, and tells the ranks there.
//
// A row's piece weighs in the column what the ranks that contributed to it weigh, so that the result is the
// mean over all contributions, wherever they got lost.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "proto/endpoint.h"
#include "proto/lane.h"
#include "proto/protocol.h"
#include "proto/schedule.h"

namespace optireduce {

class Grid final : public Protocol {
 public:
  Grid(EndpointConfig config, const Rows& rows, BufferPool& pool);

  std::uint64_t start(Time now, const Descriptor& descriptor, std::byte* data,
                      const StartOptions& options) override;
  void ping_silent_peers() override { flat().ping_silent_peers(); }
  void ping_absent_peers(Time now) override;
  void ping_unfinished_peers() override;
  void say_goodbye(Time now) override;
  void handle_datagram(Time now, Datagram datagram) override;
  void handle_timeout(Time now) override;
  bool poll_transmit(Time now, Transmit& out) override;
  Time poll_timeout() const override;
  std::optional<Report> poll_completion() override;
  std::optional<MembershipEvent> poll_event() override;

  bool heard(Rank peer) const override;
  bool idle() const override;
  bool everyone_caught_up() const override;
  bool has_quorum() const override;
  /// Lanes do not tell who has left.
  bool may_have_quorum() const override { return true; }
  Stats stats() const override;
  PolicySnapshot policy(std::size_t bytes) const override;
  bool absent(Rank peer) const override { return absent_in_[peer] != 0; }
  bool wants_late_packets() const override;
  std::size_t archived_bytes() const override;
  std::uint64_t completed(std::uint8_t lane) const override;
  Rank lane_ranks(std::uint8_t lane) const override;

 private:
  enum LaneNumber : std::uint8_t { kScatter, kAcross, kGather, kFlat, kLanes };

  /// An all-reduce in one of the first three lanes, or between them.
  struct UnderWay {
    std::uint64_t number;  // for our caller
    Descriptor descriptor;
    std::byte* data;
    StartOptions options;
    Time started;
    Time left_lane;  // when it was through with the lane before
    Shard piece;
    Rank piece_index;
    std::uint8_t may_enter;  // this lane, and those before it
    std::vector<std::uint16_t> lacking;
    Report report;
    bool failed;
    std::optional<RejectBody> rejection;
  };

  Endpoint& flat();
  std::uint64_t start_flat(Time now, const Descriptor& descriptor, std::byte* data,
                           const StartOptions& options);
  /// Moves operations on as far as they get; false if none moved.
  bool advance(Time now);
  bool take_completions(Time now);
  bool enter_next(Time now, LaneNumber lane);
  void enter(Time now, LaneNumber lane, UnderWay& operation);
  void leave(Time now, LaneNumber lane, const Report& report);
  /// Where the data stands for the caller's float32, they get what it holds.
  static void widen(const UnderWay& operation);
  void fail(Time now, std::uint64_t sequence, UnderWay& operation);
  void finish(Time now, UnderWay& operation);
  bool too_few(UnderWay& operation) const;
  Rank known_present() const;
  Rank least_ranks() const;
  Duration time_left(Time now, LaneNumber lane, const UnderWay& operation) const;
  void take_events();
  void forward(Time now, Rank from, const Datagram& datagram, std::uint32_t begin, std::uint32_t end);

  EndpointConfig config_;  // of the whole group
  BufferPool& pool_;
  Rank row_size_;
  Rank column_size_;
  Rank index_;  // in the row
  std::array<Lane, kLanes> lanes_;
  std::map<std::uint64_t, UnderWay> operations_;         // by their number in the lanes
  std::array<std::uint64_t, kFlat> entered_{};           // operations below have entered that lane
  std::map<std::uint64_t, std::uint64_t> flat_numbers_;  // in the flat lane to our caller's
  std::uint64_t next_number_ = 0;
  std::deque<Report> completions_;
  std::deque<MembershipEvent> events_;
  std::vector<std::uint8_t> absent_in_;  // by rank: a bit for each lane
  Stats own_;                            // what lanes cannot count
};

/// The protocol of one rank, with all that belongs to it: flat without rows.
std::unique_ptr<Protocol> make_protocol(const EndpointConfig& config, const Rows& rows, BufferPool& pool);

}  // namespace optireduce
