// The part of UdpSocket that multicasts.
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "net/address.h"
#include "net/udp_socket.h"

#ifndef IPV6_MULTICAST_ALL
#define IPV6_MULTICAST_ALL 29
#endif

namespace optireduce {
namespace {

bool same_host(const sockaddr* a, const sockaddr* b) {
  if (a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    return std::memcmp(&reinterpret_cast<const sockaddr_in*>(a)->sin_addr,
                       &reinterpret_cast<const sockaddr_in*>(b)->sin_addr, sizeof(in_addr)) == 0;
  }
  return a->sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

/// Memberships belong to interfaces, not to addresses.
unsigned interface_of(const std::string& address) {
  const Address wanted = Address::parse(address, 0);
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) fail("cannot list network interfaces");
  unsigned index = 0;
  for (const ifaddrs* one = all; one != nullptr && index == 0; one = one->ifa_next) {
    if (one->ifa_addr != nullptr && same_host(one->ifa_addr, wanted.get()))
      index = if_nametoindex(one->ifa_name);
  }
  freeifaddrs(all);
  if (index == 0) throw std::invalid_argument("no interface of this host has the address " + address);
  return index;
}

template <typename Value>
void require_option(int fd, int level, int name, const Value& value, const std::string& what) {
  if (setsockopt(fd, level, name, &value, sizeof value) != 0) fail(what);
}

in_addr ipv4_of(const Address& address) {
  return reinterpret_cast<const sockaddr_in*>(address.get())->sin_addr;
}

in6_addr ipv6_of(const Address& address) {
  return reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_addr;
}

Address checked_group(const MulticastGroup& group) {
  const Address address = Address::parse(group.address, 0);
  const in6_addr wide = address.family() == AF_INET6 ? ipv6_of(address) : in6_addr{};
  const bool multicast = address.family() == AF_INET6 ? IN6_IS_ADDR_MULTICAST(&wide) != 0
                                                      : IN_MULTICAST(ntohl(ipv4_of(address).s_addr));
  if (!multicast) throw std::invalid_argument("'" + group.address + "' is not a multicast address");
  if (address.family() != Address::parse(group.local_address, 0).family()) {
    throw std::invalid_argument("group " + group.address + " is not of the address family of " +
                                group.local_address);
  }
  return address;
}

}  // namespace

UdpSocket UdpSocket::member(const MulticastGroup& group, std::uint16_t port, const SocketOptions& options) {
  const Address address = checked_group(group);
  const unsigned interface = interface_of(group.local_address);
  UdpSocket socket(group.address, port, true, options);
  const std::string what = "cannot join the multicast group " + group.address + " at " + group.local_address;
  if (socket.ipv6_) {
    require_option(socket.fd_, IPPROTO_IPV6, IPV6_JOIN_GROUP, ipv6_mreq{ipv6_of(address), interface}, what);
    set_option(socket.fd_, IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
  } else {
    const ip_mreqn membership{ipv4_of(address), {}, static_cast<int>(interface)};
    require_option(socket.fd_, IPPROTO_IP, IP_ADD_MEMBERSHIP, membership, what);
    set_option(socket.fd_, IPPROTO_IP, IP_MULTICAST_ALL, 0);
  }
  return socket;
}

UdpSocket UdpSocket::speaker(const MulticastGroup& group, const SocketOptions& options) {
  checked_group(group);
  const auto interface = static_cast<int>(interface_of(group.local_address));
  UdpSocket socket(group.local_address, options);
  const std::string what = "cannot multicast from " + group.local_address;
  if (socket.ipv6_) {
    require_option(socket.fd_, IPPROTO_IPV6, IPV6_MULTICAST_IF, interface, what);
    require_option(socket.fd_, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, group.ttl, what);
    require_option(socket.fd_, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 1, what);
  } else {
    require_option(socket.fd_, IPPROTO_IP, IP_MULTICAST_IF, ip_mreqn{{}, {}, interface}, what);
    require_option(socket.fd_, IPPROTO_IP, IP_MULTICAST_TTL, group.ttl, what);
    require_option(socket.fd_, IPPROTO_IP, IP_MULTICAST_LOOP, 1, what);
  }
  socket.connect(group.address, socket.port());
  return socket;
}

}  // namespace optireduce
