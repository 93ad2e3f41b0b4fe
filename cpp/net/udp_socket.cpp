#include "net/udp_socket.h"

#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "net/address.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace optireduce {
namespace {

constexpr std::size_t kBatch = 32;  // datagrams of one sendmmsg or recvmmsg

int get_option(int fd, int level, int name) {
  int value = 0;
  socklen_t length = sizeof value;
  return getsockopt(fd, level, name, &value, &length) == 0 ? value : 0;
}

/// The size of each packet in a merged datagram, or 0.
std::size_t merged_segment(msghdr& message) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_UDP || c->cmsg_type != UDP_GRO) continue;
    int size = 0;
    std::memcpy(&size, CMSG_DATA(c), sizeof size);
    return size > 0 ? static_cast<std::size_t>(size) : 0;
  }
  return 0;
}

}  // namespace

UdpSocket::UdpSocket(const std::string& address, const SocketOptions& options)
    : UdpSocket(address, 0, false, options) {}

UdpSocket::UdpSocket(const std::string& address, std::uint16_t port, bool shared,
                     const SocketOptions& options) {
  const Address local = Address::parse(address, port);
  ipv6_ = local.family() == AF_INET6;
  fd_ = socket(local.family(), SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0) fail("cannot open a UDP socket");
  if (shared) set_option(fd_, SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(fd_, local.get(), local.length) != 0) {
    const int error = errno;
    close();
    throw std::system_error(error, std::generic_category(), "cannot bind a UDP socket to " + address);
  }
  set_option(fd_, SOL_SOCKET, SO_RCVBUF, static_cast<int>(options.receive_buffer_bytes));
  set_option(fd_, SOL_SOCKET, SO_SNDBUF, static_cast<int>(options.send_buffer_bytes));
  gro_ = options.use_gro && set_option(fd_, SOL_UDP, UDP_GRO, 1);
  gso_ = options.use_gso && set_option(fd_, SOL_UDP, UDP_SEGMENT, 0);
  // The path may be narrower than its first link: rather fragments than a black hole.
  set_option(fd_, ipv6_ ? IPPROTO_IPV6 : IPPROTO_IP, ipv6_ ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER,
             ipv6_ ? IPV6_PMTUDISC_DONT : IP_PMTUDISC_DONT);

  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  getsockname(fd_, reinterpret_cast<sockaddr*>(&bound), &length);
  port_ = ntohs(ipv6_ ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                      : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

UdpSocket::~UdpSocket() {
  close();
}

void UdpSocket::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

UdpSocket::UdpSocket(UdpSocket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      ipv6_(other.ipv6_),
      gso_(other.gso_),
      gro_(other.gro_),
      port_(other.port_) {}

void UdpSocket::connect(const std::string& address, std::uint16_t port) {
  const Address remote = Address::parse(address, port);
  if ((remote.family() == AF_INET6) != ipv6_) {
    throw std::invalid_argument("peer address " + address + " is not of this rank's address family (" +
                                (ipv6_ ? "IPv6" : "IPv4") + ")");
  }
  if (::connect(fd_, remote.get(), remote.length) != 0) fail("no route to " + address);
}

SendResult UdpSocket::classify_error(int error) {
  if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR) return SendResult::WouldBlock;
  return SendResult::Lost;  // refused by a peer that is not there yet, no buffer, no route: the protocol
                            // repairs it
}

SendResult UdpSocket::send(std::span<const std::byte> data, std::size_t segment_bytes) {
  if (data.size() <= segment_bytes) {
    const ssize_t sent = ::send(fd_, data.data(), data.size(), 0);
    return sent >= 0 ? SendResult::Sent : classify_error(errno);
  }
  if (!gso_) return send_split(data, segment_bytes);

  iovec part{const_cast<std::byte*>(data.data()), data.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(std::uint16_t))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_UDP;
  header->cmsg_type = UDP_SEGMENT;
  header->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
  const auto segment = static_cast<std::uint16_t>(segment_bytes);
  std::memcpy(CMSG_DATA(header), &segment, sizeof segment);
  if (sendmsg(fd_, &message, 0) >= 0) return SendResult::Sent;
  const int error = errno;
  if (error == EIO || error == EINVAL || error == EMSGSIZE || error == EOPNOTSUPP) {
    gso_ = false;  // a device that cannot: from now on packet by packet
    return send_split(data, segment_bytes);
  }
  return classify_error(error);
}

SendResult UdpSocket::send_split(std::span<const std::byte> data, std::size_t segment_bytes) {
  std::array<iovec, kBatch> parts;
  std::array<mmsghdr, kBatch> messages;
  for (std::size_t at = 0; at < data.size();) {
    unsigned count = 0;
    for (std::size_t next = at; next < data.size() && count < kBatch; next += segment_bytes, ++count) {
      parts[count] = {const_cast<std::byte*>(data.data() + next),
                      std::min(segment_bytes, data.size() - next)};
      messages[count] = {};
      messages[count].msg_hdr.msg_iov = &parts[count];
      messages[count].msg_hdr.msg_iovlen = 1;
    }
    const int sent = sendmmsg(fd_, messages.data(), count, 0);
    if (sent < 0) {
      const SendResult result = classify_error(errno);
      // Part of the batch may be gone already; sending that part again would only be a duplicate.
      if (result == SendResult::WouldBlock && at == 0) return result;
      if (result == SendResult::WouldBlock) return SendResult::Lost;
    }
    at += static_cast<std::size_t>(std::max(sent, 1)) * segment_bytes;
  }
  return SendResult::Sent;
}

SendResult UdpSocket::send_gathered(std::span<iovec> parts) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return sendmsg(fd_, &message, 0) >= 0 ? SendResult::Sent : classify_error(errno);
}

std::size_t UdpSocket::receive(std::span<Incoming> slots) {
  std::array<iovec, kBatch> parts;
  std::array<mmsghdr, kBatch> messages;
  alignas(cmsghdr) std::array<std::array<char, CMSG_SPACE(sizeof(int))>, kBatch> controls;
  const std::size_t count = std::min(slots.size(), kBatch);
  for (std::size_t i = 0; i < count; ++i) {
    parts[i] = {slots[i].data, slots[i].capacity};
    messages[i] = {};
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
    messages[i].msg_hdr.msg_control = controls[i].data();
    messages[i].msg_hdr.msg_controllen = gro_ ? controls[i].size() : 0;
  }
  std::size_t received = 0;
  if (count == 1) {
    const ssize_t bytes = recvmsg(fd_, &messages[0].msg_hdr, MSG_DONTWAIT);
    if (bytes < 0) return 0;
    messages[0].msg_len = static_cast<unsigned>(bytes);
    received = 1;
  } else {
    const int result = recvmmsg(fd_, messages.data(), static_cast<unsigned>(count), MSG_DONTWAIT, nullptr);
    if (result <= 0) return 0;
    received = static_cast<std::size_t>(result);
  }
  for (std::size_t i = 0; i < received; ++i) {
    slots[i].bytes = messages[i].msg_len;
    const std::size_t segment = merged_segment(messages[i].msg_hdr);
    slots[i].segment_bytes = segment != 0 ? segment : slots[i].bytes;
  }
  return received;
}

std::size_t UdpSocket::path_mtu() const {
  return static_cast<std::size_t>(
      get_option(fd_, ipv6_ ? IPPROTO_IPV6 : IPPROTO_IP, ipv6_ ? IPV6_MTU : IP_MTU));
}

std::size_t UdpSocket::receive_buffer_bytes() const {
  return static_cast<std::size_t>(get_option(fd_, SOL_SOCKET, SO_RCVBUF));
}

std::uint64_t UdpSocket::drops() const {
  std::array<std::uint32_t, SK_MEMINFO_VARS> info{};
  socklen_t length = sizeof info;
  if (getsockopt(fd_, SOL_SOCKET, SO_MEMINFO, info.data(), &length) != 0) return 0;
  return info[SK_MEMINFO_DROPS];
}

}  // namespace optireduce
