// The messages by which members agree on a view, and their encoding. Little-endian; decoding trusts nothing.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "views/view.h"

namespace optireduce {

struct Ballot {
  std::uint32_t round = 0;  // 0: none
  Rank rank = 0;
  auto operator<=>(const Ballot&) const = default;
  static void fields(auto& codec, auto& ballot) { codec.all(ballot.round, ballot.rank); }
};

/// What a rank that wants to come back says about itself.
struct Join {
  std::uint32_t incarnation = 0;
  std::uint64_t known = 0;  // highest view number that it has seen
  std::uint64_t completed = 0;
  std::uint64_t digest = 0;  // of everything below `completed`
  bool operator==(const Join&) const = default;
  static void fields(auto& codec, auto& join) {
    codec.all(join.incarnation, join.known, join.completed, join.digest);
  }
};

enum class Verdict : std::uint8_t { Later = 0, Fits = 1, Snapshot = 2, Last = Snapshot };

/// The packets of one owner's shard whose decision a rank can send to others, as one word for each chunk. Of
/// an operation that it has not completed that is every decision it knows. A rank reports a shard only if it
/// knows its number of packets. Packets known to be void are held.
struct HeldShard {
  std::uint64_t operation = 0;
  Rank owner = 0;
  std::uint32_t packets = 0;  // of the whole shard
  std::vector<std::uint64_t> held;
  static void fields(auto& codec, auto& shard) {
    codec.all(shard.operation, shard.owner, shard.packets);
    codec.words(shard.held);
  }
};

/// An operation that is not complete at the sender, but known to it.
struct OpenOperation {
  std::uint64_t operation = 0;
  bool exact = false;
  bool own_shard_decided = false;  // every packet of the sender's own shard; true if it owns none
  static void fields(auto& codec, auto& open) {
    codec.all(open.operation, open.exact, open.own_shard_decided);
  }
};

struct Propose {
  Ballot ballot;
  RankMask without = 0;
  std::vector<std::pair<Rank, Join>> joiners;
  static void fields(auto& codec, auto& propose) {
    codec.all(propose.ballot);
    codec.masks(propose.without);
    codec.all(propose.joiners);
  }
};

struct Adopt {
  Ballot ballot;
  View view;
  static void fields(auto& codec, auto& adopt) { codec.all(adopt.ballot, adopt.view); }
};

struct State {
  Ballot ballot;
  std::optional<Adopt> adopted;  // the view that the sender voted for last
  std::uint64_t completed = 0;
  std::uint64_t reach_end = 0;  // one past the highest operation that may be touched before the next view
  std::vector<HeldShard> held;
  std::vector<OpenOperation> open;
  std::vector<std::pair<Rank, Verdict>> verdicts;
  static void fields(auto& codec, auto& state) {
    codec.all(state.ballot, state.adopted, state.completed, state.reach_end);
    codec.all(state.held, state.open, state.verdicts);
  }
};

struct Adopted {
  Ballot ballot;
  static void fields(auto& codec, auto& adopted) { codec.all(adopted.ballot); }
};

/// A view that was chosen, the newest last, with older ones that a rank which joins needs.
struct Install {
  std::vector<View> views;
  static void fields(auto& codec, auto& install) {
    codec.all(install.views);
    codec.require(follow_each_other(install.views));
  }
};

/// A rank that asked to come in needs a snapshot.
struct Refusal {
  Join request;  // that it answers
  static void fields(auto& codec, auto& refusal) { codec.all(refusal.request); }
};

/// Whom the sender hears, and whether it leaves (this is the goodbye) or is lost.
struct Status {
  RankMask hears = 0;
  RankMask leavers = 0;  // members that leave, as far as the sender knows
  bool rests = false;    // it has completed every operation that it knows of
  bool leaving = false;
  bool follows = false;  // of a leaver: it takes part in what others begin
  bool lost = false;
  bool asks = false;        // the receiver shall answer with its own
  std::uint32_t round = 0;  // highest ballot seen: a proposer that is behind must go above it
  static void fields(auto& codec, auto& status) {
    codec.masks(status.hears, status.leavers);
    codec.all(status.rests, status.leaving, status.follows, status.lost, status.asks, status.round);
  }
};

struct ViewMessage {
  using Body = std::variant<Propose, State, Adopt, Adopted, Install, Join, Refusal, Status>;

  std::uint32_t incarnation = 0;  // of the sender
  std::uint64_t view = 0;         // the sender's view number
  std::uint64_t completed = 0;    // the sender's
  Body body;
};

/// Room for a word for each 64 KB of 16 GB of unfinished shards, and for what is said about each of them.
inline constexpr std::size_t kMaxViewMessageBytes = 3 << 20;

/// `size`: ranks of the group (at most 64); ranks beyond it are refused.
std::vector<std::byte> encode(const ViewMessage& message);
std::optional<ViewMessage> decode_view_message(std::span<const std::byte> bytes, std::size_t size);

/// Cuts an encoded message into pieces of at most `piece_bytes` (at least 64), each with its own header.
/// `id` must rise from message to message of one sender, also over restarts: use message_id(). None: it is
/// too large.
std::vector<std::vector<std::byte>> cut_view_message(std::span<const std::byte> message, std::uint64_t id,
                                                     std::size_t piece_bytes);

constexpr std::uint64_t message_id(std::uint32_t incarnation, std::uint32_t sequence) {
  return static_cast<std::uint64_t>(incarnation) << 32 | sequence;
}

/// Cuts the messages to one peer. A message that is repeated keeps its id, so that the pieces of several
/// repeats add up.
class PieceCutter {
 public:
  std::vector<std::vector<std::byte>> cut(const ViewMessage& message, std::size_t piece_bytes);

 private:
  std::uint32_t sequence_ = 0, repeats_ = 0;
  std::size_t last_ = 0;  // hash of the last message in several pieces
};

/// Puts one sender's pieces together. Of several messages under way the newest wins.
class PieceCollector {
 public:
  /// The whole message once its last piece is here. From then on its repeat is collected: it was not
  /// answered.
  std::optional<std::vector<std::byte>> add(std::span<const std::byte> piece);
  /// Whether the last piece made no sense, or claimed too much.
  bool refused() const { return refused_; }

 private:
  std::optional<std::uint64_t> id_;  // of the newest message in several pieces
  std::size_t missing_ = 0;
  std::vector<bool> present_;
  std::vector<std::byte> bytes_;
  bool refused_ = false;
};

}  // namespace optireduce
