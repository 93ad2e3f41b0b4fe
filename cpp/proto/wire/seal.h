// The last 8 bytes of a packet's header, which only members of the session can make. Two kinds:
//   token   the session's secret itself. Keeps out who cannot read packets, and costs nothing
//   tag     SipHash-2-4 over the rest of the packet. Keeps out also who can read and change packets
//
// A tag is made with a key for the packet's receiver, so that what was said to one rank is no news to
// another; what goes to several ranks has a key of its own: decisions without an echo, and probes of a
// multicast group. All keys come from the session's by SipHash itself, over messages that are shorter than
// any packet.
#pragma once

#include <span>
#include <vector>

#include "base/rank.h"
#include "kernels/siphash.h"

namespace optireduce {

struct Segment;

class Seal {
 public:
  enum class Kind : std::uint8_t { Token, Tag };

  // NOLINTNEXTLINE(google-explicit-constructor): a token is a seal
  Seal(std::uint64_t token = 0) : token_(token), shared_number_(token) {}
  /// The tags of rank `me`.
  Seal(const SipKey& session, Rank me);

  /// Closes packets to `to` (and others, if they may go to several) whose headers are complete but for the
  /// seal.
  void close(std::span<Segment> batch, Rank to) const;

  /// Which packets to us are genuine. They lie one behind the other, `stride` bytes each; the last may be
  /// shorter. Shorter ones than a header are not.
  void open_all(std::span<const std::byte> packets, std::size_t stride, std::vector<bool>& genuine) const;

  /// A number that all ranks share and others do not know. It says nothing about the key.
  std::uint64_t shared_number() const { return shared_number_; }

 private:
  Kind kind_ = Kind::Token;
  std::uint64_t token_ = 0;
  std::uint64_t shared_number_ = 0;
  SipKey session_, mine_, everybody_;
};

}  // namespace optireduce
