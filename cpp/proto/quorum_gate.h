// Keeps operations with a deadline back while too few ranks are there for them, for a while: a group that
// loses its majority for a second (its network or its machines stood still) goes on when that is over,
// instead of ending with an error. Ranks that are missing are pinged meanwhile. What is kept back has not
// begun: it takes no time from its deadline, and packets for it wait as for any operation that comes later.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>

#include "proto/protocol.h"

namespace optireduce {

class QuorumGate final : public Protocol {
 public:
  QuorumGate(std::unique_ptr<Protocol> inner, const EndpointConfig& config)
      : inner_(std::move(inner)), patience_(config.bound.quorum_wait), ping_interval_(config.ping_interval) {}

  std::uint64_t start(Time now, const Descriptor& descriptor, std::byte* data,
                      const StartOptions& options) override;
  void say_goodbye(Time now) override;
  void handle_datagram(Time now, Datagram datagram) override;
  void handle_timeout(Time now) override;
  Time poll_timeout() const override { return std::min(inner_->poll_timeout(), next_look_); }
  std::optional<Report> poll_completion() override;
  bool idle() const override { return held_.empty() && inner_->idle(); }

  void ping_silent_peers() override { inner_->ping_silent_peers(); }
  void ping_unfinished_peers() override { inner_->ping_unfinished_peers(); }
  void ping_absent_peers(Time now) override { inner_->ping_absent_peers(now); }
  bool poll_transmit(Time now, Transmit& out) override { return inner_->poll_transmit(now, out); }
  std::optional<MembershipEvent> poll_event() override { return inner_->poll_event(); }
  bool heard(Rank peer) const override { return inner_->heard(peer); }
  bool everyone_caught_up() const override { return inner_->everyone_caught_up(); }
  bool has_quorum() const override { return inner_->has_quorum(); }
  bool may_have_quorum() const override { return inner_->may_have_quorum(); }
  Stats stats() const override { return inner_->stats(); }
  PolicySnapshot policy(std::size_t bytes) const override { return inner_->policy(bytes); }
  bool absent(Rank peer) const override { return inner_->absent(peer); }
  bool wants_late_packets() const override { return inner_->wants_late_packets(); }
  std::size_t archived_bytes() const override { return inner_->archived_bytes(); }
  std::uint64_t completed(std::uint8_t lane) const override { return inner_->completed(lane); }
  Rank lane_ranks(std::uint8_t lane) const override { return inner_->lane_ranks(lane); }
  void probe_group() override { inner_->probe_group(); }
  void set_multicast(bool on) override { inner_->set_multicast(on); }
  bool heard_in_group(Rank peer) const override { return inner_->heard_in_group(peer); }
  bool multicasts() const override { return inner_->multicasts(); }

 private:
  struct Held {
    Descriptor descriptor;
    std::byte* data;
    StartOptions options;
    Time since;
  };

  bool must_wait(const Descriptor& descriptor, const StartOptions& options) const;
  Time waits_until(const Held& held) const;
  /// Starts what need not wait any more, in order.
  void let_go(Time now);
  void start_first(Time now);
  /// Lets go what it can, and asks the missing ranks for a sign of life if something still waits.
  void look(Time now);

  std::unique_ptr<Protocol> inner_;
  Duration patience_;
  Duration ping_interval_;
  std::deque<Held> held_;
  std::map<std::uint64_t, Duration> waited_;  // by operation that was kept back and is under way
  std::uint64_t next_number_ = 0;
  Time next_look_ = Time::never();
};

}  // namespace optireduce
