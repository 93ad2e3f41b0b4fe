// A connected UDP socket, of a peer or of a multicast group: fast where the kernel helps (GSO, GRO, batched
// calls), correct where it does not. Knows nothing about packets.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace optireduce {

struct SocketOptions {
  std::size_t receive_buffer_bytes = 1 << 20;  // asked for; the kernel caps it at net.core.rmem_max
  std::size_t send_buffer_bytes = 1 << 20;
  bool use_gso = true;
  bool use_gro = true;
};

enum class SendResult : std::uint8_t { Sent, WouldBlock, Lost };

/// Where a datagram is to be put, and what was put there. `segment_bytes` is its length, or that of each
/// packet inside if the kernel merged several.
struct Incoming {
  std::byte* data = nullptr;
  std::size_t capacity = 0;
  std::size_t bytes = 0;
  std::size_t segment_bytes = 0;
};

/// A multicast group ("239.192.1.2", "ff15::1:2") on the interface that has a local address.
struct MulticastGroup {
  std::string address;
  std::string local_address;
  int ttl = 1;  // routers that packets may pass, plus one
};

class UdpSocket {
 public:
  /// Binds to a free port of a local address ("10.0.0.1", "::1", "fe80::1%eth0"). Throws std::system_error or
  /// std::invalid_argument with the address in the text.
  UdpSocket(const std::string& address, const SocketOptions& options);
  /// Takes what is sent to this port of the group, and no other group's packets. Sockets of several processes
  /// may do that at once.
  static UdpSocket member(const MulticastGroup& group, std::uint16_t port, const SocketOptions& options);
  /// Sends to the group, to the port that it is bound to itself. Members on the same host get it too.
  static UdpSocket speaker(const MulticastGroup& group, const SocketOptions& options);
  ~UdpSocket();
  UdpSocket(UdpSocket&& other) noexcept;
  UdpSocket& operator=(UdpSocket&&) = delete;

  void connect(const std::string& address, std::uint16_t port);
  /// Ends it before its time, with its memberships; nothing is sent or received any more.
  void close();

  /// Sends `data` as datagrams of `segment_bytes` (the last may be shorter).
  SendResult send(std::span<const std::byte> data, std::size_t segment_bytes);
  /// Sends one datagram gathered from several places.
  SendResult send_gathered(std::span<iovec> parts);

  /// Fills slots without waiting; returns how many.
  std::size_t receive(std::span<Incoming> slots);

  int fd() const { return fd_; }
  std::uint16_t port() const { return port_; }
  bool merges() const { return gro_; }  // whether a received datagram may hold several packets
  bool splits() const { return gso_; }
  bool ipv6() const { return ipv6_; }
  std::size_t path_mtu() const;
  /// Bytes the kernel really reserved (twice what it calls the buffer size, for its own overhead).
  std::size_t receive_buffer_bytes() const;
  /// Datagrams dropped because the receive buffer was full.
  std::uint64_t drops() const;

 private:
  UdpSocket(const std::string& address, std::uint16_t port, bool shared, const SocketOptions& options);
  SendResult send_split(std::span<const std::byte> data, std::size_t segment_bytes);
  SendResult classify_error(int error);

  int fd_ = -1;
  bool ipv6_ = false;
  bool gso_ = false;
  bool gro_ = false;
  std::uint16_t port_ = 0;
};

}  // namespace optireduce
