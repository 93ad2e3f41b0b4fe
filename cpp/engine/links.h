// The sockets to all peers, one each: a connected socket has its own receive buffer (stock systems give 208
// KiB), lets the kernel refuse strangers, and knows its path's MTU. And those of a multicast group, if there
// is one. Not thread-safe but for wake() and wait().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "engine/impairment.h"
#include "engine/options.h"
#include "group/config.h"
#include "group/group.h"
#include "net/udp_socket.h"
#include "wire/packet.h"

namespace optireduce {

class Links {
 public:
  Links(Rank rank, Rank size, const std::string& bind_address, const EngineOptions& options,
        BufferPool& pool);
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  std::vector<std::uint16_t> ports() const;
  /// Connects to all peers; returns the smallest MTU of the paths to them.
  std::size_t connect(const std::vector<std::string>& addresses, const std::vector<std::uint16_t>& ports);
  /// The peer is at another address from now on. What waited for the old one is lost.
  void redirect(Rank peer, const std::string& address, std::uint16_t port);
  bool ipv6() const;

  /// Prepares to speak to a group; returns the port on which we do. Where this or joining throws, leave.
  std::uint16_t open_group(const std::string& address, int ttl);
  /// Begins to hear the others there, each on its port.
  void join_group(const std::vector<std::string>& addresses, const std::vector<std::uint16_t>& ports);
  void leave_group();

  /// What one peer may have outstanding towards us without overflowing its socket here.
  std::size_t grant_bytes() const;

  void send(const Transmit& transmit);

  /// A peer's socket, in the group or not, that has something to read, or room to write again.
  struct Event {
    Rank peer;
    bool group;
    bool writable;
  };
  static constexpr std::size_t kMaxEvents = 64;

  /// Finds sockets with news, waiting up to `timeout` (negative: for ever). Any thread may call it.
  std::size_t wait(Duration timeout, std::span<Event> out);
  /// Ends a wait() of another thread: the one that is under way, or the next.
  void wake();
  /// Ends every wait() from now on.
  void stop();

  /// Takes the next datagrams from a socket without waiting: usually one, several where the kernel does not
  /// merge.
  void receive(const Event& socket, std::vector<Datagram>& out);
  /// Sends what had to wait for room in the socket's buffer.
  void flush(const Event& socket);

  std::uint64_t drops() const;
  std::uint64_t send_failures() const { return send_failures_; }

 private:
  struct Pending {
    std::vector<std::byte> data;
    std::size_t segment_bytes;
  };
  struct Link {
    UdpSocket socket;
    Rank peer;  // in the group, ours is the one to speak with
    bool group;
    std::deque<Pending> pending;  // waits for room in the socket's send buffer; at most kMostPending
    std::optional<Impairment> impairment;
  };

  Link& link_of(const Event& event) { return *(event.group ? group_ : links_)[event.peer]; }
  std::unique_ptr<Link> make_link(UdpSocket socket, Rank peer, bool group);
  void stage(const Transmit& transmit);
  void send(Link& link, const Transmit& transmit);
  void send_staged(Link& link, std::size_t segment_bytes);
  void send_one(Link& link, const Segment& segment);
  void send_impaired(Link& link, std::size_t segment_bytes);
  void defer(Link& link, std::span<const std::byte> data, std::size_t segment_bytes);
  void watch(Link& link, bool writable);

  const Rank rank_;
  const std::string bind_address_;
  const EngineOptions options_;
  BufferPool& pool_;
  bool impaired_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank; ours is empty
  MulticastGroup group_address_;
  std::vector<std::unique_ptr<Link>> group_;  // by rank; empty without a group
  std::vector<std::byte> staging_;
  std::size_t staged_bytes_ = 0;
  int epoll_ = -1;
  int wakeup_ = -1;
  std::atomic<bool> stopped_{false};
  std::vector<BufferRef> buffers_;  // where the next datagrams go
  std::vector<Incoming> slots_;
  std::uint64_t send_failures_ = 0;
};

}  // namespace optireduce
