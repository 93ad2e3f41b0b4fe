// Multicast on real sockets over loopback: what members hear, from whom, and engines that use it.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/engine.h"

using namespace optireduce;

namespace {

constexpr Duration kTimeout = Duration::millis(20'000);
constexpr Duration kForever{-1};
constexpr int kPatienceMs = 10'000;

struct Family {
  std::string local;
  std::string group;
  std::string other_group;
};
constexpr int kThisHost = 0;  // TTL: nothing leaves it
const Family kIpv4{"127.0.0.1", "239.192.77.1", "239.192.77.2"};

/// An address that other hosts could name, on an interface that can multicast.
std::string able_address(int family) {
  constexpr unsigned kAble = IFF_UP | IFF_MULTICAST;
  std::string found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  for (const ifaddrs* one = all; one != nullptr && found.empty(); one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family) continue;
    if ((one->ifa_flags & kAble) != kAble || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const auto* narrow = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
    const auto* wide = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr);
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&wide->sin6_addr)) continue;
    char text[INET6_ADDRSTRLEN];
    const void* address = family == AF_INET6 ? static_cast<const void*>(&wide->sin6_addr) : &narrow->sin_addr;
    found = inet_ntop(family, address, text, sizeof text);
  }
  freeifaddrs(all);
  return found;
}

/// Loopback, and real interfaces where there are any: loopback has no route for IPv6 multicast, and brings
/// packets back whether or not they are looped.
std::vector<Family> families() {
  std::vector<Family> found{kIpv4};
  const std::string narrow = able_address(AF_INET), wide = able_address(AF_INET6);
  if (!narrow.empty()) found.push_back({narrow, kIpv4.group, kIpv4.other_group});
  if (!wide.empty()) found.push_back({wide, "ff15::7777:1", "ff15::7777:2"});
  if (wide.empty()) std::printf("no interface with IPv6 and multicast: IPv4 only\n");
  return found;
}

std::vector<std::byte> bytes_of(std::size_t count, int value) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

bool readable(const UdpSocket& socket, int milliseconds) {
  pollfd wanted{socket.fd(), POLLIN, 0};
  return poll(&wanted, 1, milliseconds) == 1;
}

/// All that comes until `bytes` are there: their number, or less after a long wait.
std::size_t receive_all(UdpSocket& socket, std::size_t bytes) {
  std::vector<std::byte> buffer(1 << 16);
  std::size_t total = 0;
  while (total < bytes && readable(socket, kPatienceMs)) {
    Incoming slot{buffer.data(), buffer.size(), 0, 0};
    if (socket.receive({&slot, 1}) == 1) total += slot.bytes;
  }
  return total;
}

std::string thrown_by(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// Engines in one process, in one group unless one of them is told another.
struct Cluster {
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<std::vector<Rank>> unheard;  // by rank

  Cluster(Rank size, const EngineOptions& options, const Family& family, Rank stray = 0xffff) {
    const std::vector<std::string> addresses(size, family.local);
    for (Rank rank = 0; rank < size; ++rank)
      engines.push_back(std::make_unique<Engine>(rank, size, family.local, 42, options));
    std::vector<std::size_t> grants;
    for (auto& engine : engines) grants.push_back(engine->grant_bytes());
    for (Rank rank = 0; rank < size; ++rank) {
      std::vector<std::uint16_t> ports;
      for (auto& engine : engines) ports.push_back(engine->ports()[rank]);
      engines[rank]->open(addresses, ports);
    }
    each([&](Rank rank) { CHECK(engines[rank]->begin(1500, grants, kTimeout).empty()); });
    std::vector<std::uint16_t> ports;
    for (Rank rank = 0; rank < size; ++rank)
      ports.push_back(
          engines[rank]->open_group(rank == stray ? family.other_group : family.group, kThisHost));
    for (auto& engine : engines) engine->join_group(addresses, ports);
    unheard.resize(size);
    const Duration limit = stray < size ? Duration::millis(200) : kTimeout;
    each([&](Rank rank) { unheard[rank] = engines[rank]->probe_group(limit); });
  }

  void each(const std::function<void(Rank)>& body) {
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < engines.size(); ++rank) threads.emplace_back([&body, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }

  void use_group(bool use) {
    for (auto& engine : engines) engine->use_group(use);
  }

  void close() {
    each([&](Rank rank) { engines[rank]->close(Duration::millis(2'000)); });
  }
};

void reduce_and_check(Cluster& cluster, std::size_t elements) {
  cluster.each([&](Rank rank) {
    std::vector<float> data(elements);
    for (std::size_t i = 0; i < elements; ++i) data[i] = static_cast<float>((i * 7 + rank * 13) % 101);
    Engine& engine = *cluster.engines[rank];
    const auto number = engine.start({.descriptor = {static_cast<std::uint32_t>(elements), DType::Float32},
                                      .data = reinterpret_cast<std::byte*>(data.data()),
                                      .timeout = kTimeout});
    CHECK_EQ(engine.wait(number, kForever)->message, "");
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < elements; ++i) {
      float expected = 0;
      for (Rank peer = 0; peer < cluster.engines.size(); ++peer)
        expected += static_cast<float>((i * 7 + peer * 13) % 101);
      wrong += data[i] != expected ? 1 : 0;
    }
    CHECK_EQ(wrong, 0u);
  });
}

}  // namespace

TEST(every_member_on_this_host_hears_the_speaker) {
  for (const Family& family : families()) {
    UdpSocket speaker = UdpSocket::speaker({family.group, family.local, kThisHost}, {});
    UdpSocket one = UdpSocket::member({family.group, family.local, kThisHost}, speaker.port(), {});
    UdpSocket two = UdpSocket::member({family.group, family.local, kThisHost}, speaker.port(), {});
    const auto data = bytes_of(20 * 1000 + 7, 5);  // a batch, in packets of 1,000 bytes
    CHECK(speaker.send(data, 1000) == SendResult::Sent);
    CHECK_EQ(receive_all(one, data.size()), data.size());
    CHECK_EQ(receive_all(two, data.size()), data.size());
  }
}

TEST(works_without_segmentation_offloads) {
  SocketOptions options;
  options.use_gso = options.use_gro = false;
  for (const Family& family : families()) {
    UdpSocket speaker = UdpSocket::speaker({family.group, family.local, kThisHost}, options);
    UdpSocket member = UdpSocket::member({family.group, family.local, kThisHost}, speaker.port(), options);
    const auto data = bytes_of(40 * 1000, 5);
    CHECK(speaker.send(data, 1000) == SendResult::Sent);
    CHECK_EQ(receive_all(member, data.size()), data.size());
  }
}

TEST(a_connected_member_hears_nobody_else) {
  for (const Family& family : families()) {
    UdpSocket speaker = UdpSocket::speaker({family.group, family.local, kThisHost}, {});
    UdpSocket member = UdpSocket::member({family.group, family.local, kThisHost}, speaker.port(), {});
    member.connect(family.local, speaker.port());
    UdpSocket stranger(family.local, {});
    stranger.connect(family.group, speaker.port());
    UdpSocket open =
        UdpSocket::member({family.group, family.local, kThisHost}, speaker.port(), {});  // not connected
    CHECK(stranger.send(bytes_of(100, 1), 100) == SendResult::Sent);
    CHECK_EQ(receive_all(open, 100), 100u);  // so it was sent
    CHECK(!readable(member, 0));
    CHECK(speaker.send(bytes_of(50, 1), 50) == SendResult::Sent);
    CHECK_EQ(receive_all(member, 50), 50u);
  }
}

TEST(a_member_of_another_group_hears_nothing) {
  for (const Family& family : families()) {
    UdpSocket speaker = UdpSocket::speaker({family.group, family.local, kThisHost}, {});
    UdpSocket member = UdpSocket::member({family.group, family.local, kThisHost}, speaker.port(), {});
    UdpSocket elsewhere =
        UdpSocket::member({family.other_group, family.local, kThisHost}, speaker.port(), {});
    CHECK(speaker.send(bytes_of(100, 1), 100) == SendResult::Sent);
    CHECK_EQ(receive_all(member, 100), 100u);
    CHECK(!readable(elsewhere, 0));
  }
}

TEST(what_cannot_be_a_group_is_named) {
  const auto speak = [](const char* group, const char* local) {
    return thrown_by([&] { UdpSocket::speaker({group, local, kThisHost}, {}); });
  };
  CHECK_EQ(speak("10.0.0.1", "127.0.0.1"), "'10.0.0.1' is not a multicast address");
  CHECK_EQ(speak("ff15::1", "127.0.0.1"), "group ff15::1 is not of the address family of 127.0.0.1");
  CHECK_EQ(speak("239.192.0.1", "192.0.2.77"), "no interface of this host has the address 192.0.2.77");
}

TEST(engines_reduce_exactly_and_send_what_they_reduced_once) {
  for (const Family& family : families()) {
    constexpr Rank kSize = 4;
    Cluster cluster(kSize, {}, family);
    for (const auto& unheard : cluster.unheard) CHECK(unheard.empty());
    cluster.use_group(true);
    std::uint64_t bytes = 0;
    for (std::size_t elements : {1u, 4096u, 262'147u, 1'000'003u}) {
      reduce_and_check(cluster, elements);
      bytes += elements * sizeof(float);
    }
    for (auto& engine : cluster.engines) {
      const Stats stats = engine->stats().protocol;
      CHECK(stats.multicast_bytes_sent > bytes / kSize * 9 / 10);
      CHECK(stats.payload_bytes_sent - stats.resent_bytes < bytes + bytes / 20);
      CHECK_EQ(stats.forged_packets + stats.invalid_packets + stats.malformed_packets, 0u);
    }
    cluster.close();
  }
}

TEST(what_is_lost_of_a_multicast_is_repaired) {
  EngineOptions options;
  options.impairment = {0.05, 0.05, 0.05, 7};
  Cluster cluster(3, options, kIpv4);
  for (const auto& unheard : cluster.unheard) CHECK(unheard.empty());
  cluster.use_group(true);
  for (std::size_t elements : {1u, 1000u, 100'003u}) reduce_and_check(cluster, elements);
  cluster.close();
}

TEST(a_rank_in_another_group_is_named_and_the_others_do_without) {
  Cluster cluster(3, {}, kIpv4, 2);
  CHECK(cluster.unheard[0] == std::vector<Rank>{2});
  CHECK(cluster.unheard[1] == std::vector<Rank>{2});
  CHECK((cluster.unheard[2] == std::vector<Rank>{0, 1}));
  cluster.use_group(false);
  reduce_and_check(cluster, 100'003);
  for (auto& engine : cluster.engines) CHECK_EQ(engine->stats().protocol.multicast_bytes_sent, 0u);
  cluster.close();
}

RUN_TESTS()
