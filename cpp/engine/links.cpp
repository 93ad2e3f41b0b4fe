#include "engine/links.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace optireduce {
namespace {

constexpr std::size_t kUnmergedBatch = 16;    // packets of one recvmmsg where the kernel does not merge them
constexpr std::size_t kPrefetchSegments = 3;  // about 4 KB ahead
constexpr std::size_t kMostPending = 4096;  // batches: windows bound data, but not answers to what others ask

/// epoll_wait with microseconds; kernels before 5.11 round up to milliseconds.
int wait_for_events(int epoll, epoll_event* events, int count, Duration timeout) {
#ifdef SYS_epoll_pwait2
  static std::atomic<bool> supported{true};
  if (supported && timeout.ns > 0) {
    const timespec spec{timeout.ns / 1'000'000'000, timeout.ns % 1'000'000'000};
    const long result = syscall(SYS_epoll_pwait2, epoll, events, count, &spec, nullptr, 0);
    if (result >= 0 || errno != ENOSYS) return static_cast<int>(result);
    supported = false;
  }
#endif
  const std::int64_t ms =
      timeout.ns < 0 ? -1 : std::min<std::int64_t>((timeout.ns + 999'999) / 1'000'000, 60'000);
  return epoll_wait(epoll, events, count, static_cast<int>(ms));
}

}  // namespace

Links::Links(Rank rank, Rank size, const std::string& bind_address, const EngineOptions& options,
             BufferPool& pool)
    : rank_(rank),
      bind_address_(bind_address),
      options_(options),
      pool_(pool),
      impaired_(options.impairment.any()),
      staging_(BufferPool::kLarge) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wakeup_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (epoll_ < 0 || wakeup_ < 0)
    throw std::system_error(errno, std::generic_category(), "cannot create an event queue");
  epoll_event event{};
  event.events = EPOLLIN;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, wakeup_, &event);
  links_.resize(size);
  for (Rank peer = 0; peer < size; ++peer) {
    if (peer != rank) links_[peer] = make_link(UdpSocket(bind_address, options.socket), peer, false);
  }
}

std::unique_ptr<Links::Link> Links::make_link(UdpSocket socket, Rank peer, bool group) {
  std::unique_ptr<Link> link(new Link{std::move(socket), peer, group, {}, {}});
  const std::uint64_t first_stream = (group ? links_.size() + rank_ : rank_) * links_.size();
  if (impaired_) link->impairment.emplace(options_.impairment, first_stream + peer);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = link.get();
  epoll_ctl(epoll_, EPOLL_CTL_ADD, link->socket.fd(), &event);
  return link;
}

Links::~Links() {
  if (epoll_ >= 0) close(epoll_);
  if (wakeup_ >= 0) close(wakeup_);
}

std::vector<std::uint16_t> Links::ports() const {
  std::vector<std::uint16_t> ports;
  for (const auto& link : links_) ports.push_back(link ? link->socket.port() : std::uint16_t{0});
  return ports;
}

std::size_t Links::connect(const std::vector<std::string>& addresses,
                           const std::vector<std::uint16_t>& ports) {
  std::size_t mtu = 65'535;
  for (const auto& link : links_) {
    if (!link) continue;
    link->socket.connect(addresses.at(link->peer), ports.at(link->peer));
    mtu = std::min(mtu, link->socket.path_mtu());
  }
  return mtu;
}

void Links::redirect(Rank peer, const std::string& address, std::uint16_t port) {
  if (peer >= links_.size() || !links_[peer])
    throw std::invalid_argument("rank " + std::to_string(peer) + " is not a peer of rank " +
                                std::to_string(rank_));
  Link& link = *links_[peer];
  link.socket.connect(address, port);
  link.pending.clear();
  watch(link, false);
}

bool Links::ipv6() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](const auto& link) { return link && link->socket.ipv6(); });
}

std::size_t Links::grant_bytes() const {
  // On one socket arrive the peer's contributions to us and what it reduced for us, a window each; the kernel
  // gives back freed space lazily, up to a quarter of the buffer. What it multicasts has a buffer of its own.
  std::size_t buffer = std::size_t{1} << 30;
  for (const auto& link : links_) {
    if (link) buffer = std::min(buffer, link->socket.receive_buffer_bytes());
  }
  return buffer / 4 * 3 / 2;
}

void Links::send(const Transmit& transmit) {
  if (transmit.segments.size() != 1 || impaired_) stage(transmit);
  if (transmit.group) return send(*group_[rank_], transmit);
  for (Rank peer : transmit.to) send(*links_[peer], transmit);
}

void Links::send(Link& link, const Transmit& transmit) {
  const std::size_t segment_bytes = transmit.segments.front().bytes();
  if (impaired_) {
    send_impaired(link, segment_bytes);
  } else if (transmit.segments.size() == 1) {
    send_one(link, transmit.segments.front());
  } else {
    send_staged(link, segment_bytes);
  }
}

/// Packets are laid side by side once and sent from there to all destinations: the kernel gathers 44 headers
/// and payloads more slowly than we copy them, and the copy is in the cache for the next destination.
void Links::stage(const Transmit& transmit) {
  std::byte* out = staging_.data();
  for (std::size_t i = 0; i < transmit.segments.size(); ++i) {
    const Segment& segment = transmit.segments[i];
    if (i + kPrefetchSegments < transmit.segments.size()) {
      const std::span<const std::byte> later = transmit.segments[i + kPrefetchSegments].payload;
      for (std::size_t at = 0; at < later.size(); at += 64) __builtin_prefetch(later.data() + at);
    }
    std::memcpy(out, segment.header.data(), kHeaderBytes);
    if (!segment.payload.empty())
      std::memcpy(out + kHeaderBytes, segment.payload.data(), segment.payload.size());
    out += segment.bytes();
  }
  staged_bytes_ = static_cast<std::size_t>(out - staging_.data());
}

void Links::send_staged(Link& link, std::size_t segment_bytes) {
  const std::span<const std::byte> data(staging_.data(), staged_bytes_);
  const SendResult result =
      link.pending.empty() ? link.socket.send(data, segment_bytes) : SendResult::WouldBlock;
  if (result == SendResult::WouldBlock) defer(link, data, segment_bytes);
  if (result == SendResult::Lost) ++send_failures_;
}

void Links::send_one(Link& link, const Segment& segment) {
  std::array<iovec, 2> parts{iovec{const_cast<std::byte*>(segment.header.data()), kHeaderBytes},
                             iovec{const_cast<std::byte*>(segment.payload.data()), segment.payload.size()}};
  const SendResult result = link.pending.empty() ? link.socket.send_gathered(parts) : SendResult::WouldBlock;
  if (result == SendResult::Lost) ++send_failures_;
  if (result != SendResult::WouldBlock) return;
  std::vector<std::byte> copy(segment.header.begin(), segment.header.end());
  copy.insert(copy.end(), segment.payload.begin(), segment.payload.end());
  defer(link, copy, copy.size());
}

void Links::send_impaired(Link& link, std::size_t segment_bytes) {
  for (std::size_t at = 0; at < staged_bytes_; at += segment_bytes) {
    const std::span<const std::byte> packet(staging_.data() + at,
                                            std::min(segment_bytes, staged_bytes_ - at));
    link.impairment->send(packet, [&](std::span<const std::byte> survivor) {
      if (link.socket.send(survivor, survivor.size()) == SendResult::WouldBlock)
        defer(link, survivor, survivor.size());
    });
  }
}

void Links::defer(Link& link, std::span<const std::byte> data, std::size_t segment_bytes) {
  if (link.pending.size() >= kMostPending) {  // as good as lost on the way
    ++send_failures_;
    return;
  }
  if (link.pending.empty()) watch(link, true);
  link.pending.push_back({{data.begin(), data.end()}, segment_bytes});
}

void Links::flush(const Event& socket) {
  Link& link = link_of(socket);
  while (!link.pending.empty()) {
    const Pending& next = link.pending.front();
    const SendResult result = link.socket.send(next.data, next.segment_bytes);
    if (result == SendResult::WouldBlock) return;
    if (result == SendResult::Lost) ++send_failures_;
    link.pending.pop_front();
  }
  watch(link, false);
}

void Links::watch(Link& link, bool writable) {
  epoll_event event{};
  event.events = EPOLLIN | (writable ? EPOLLOUT : 0u);
  event.data.ptr = &link;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, link.socket.fd(), &event);
}

std::size_t Links::wait(Duration timeout, std::span<Event> out) {
  std::array<epoll_event, kMaxEvents> events;
  const int limit = static_cast<int>(std::min(out.size(), kMaxEvents));
  const int count = wait_for_events(epoll_, events.data(), limit, timeout);
  std::size_t found = 0;
  for (int i = 0; i < count; ++i) {
    auto* link = static_cast<Link*>(events[static_cast<std::size_t>(i)].data.ptr);
    if (link != nullptr) {
      out[found++] = {link->peer, link->group, (events[static_cast<std::size_t>(i)].events & EPOLLOUT) != 0};
    } else if (!stopped_) {
      std::uint64_t value;
      [[maybe_unused]] const auto ignored = read(wakeup_, &value, sizeof value);
    }
  }
  return found;
}

void Links::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto ignored = write(wakeup_, &one, sizeof one);
}

void Links::stop() {
  stopped_ = true;
  wake();
}

void Links::receive(const Event& socket, std::vector<Datagram>& out) {
  Link& link = link_of(socket);
  const bool merges = link.socket.merges();
  const std::size_t count = merges ? 1 : kUnmergedBatch;
  buffers_.resize(count);
  slots_.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (!buffers_[i]) buffers_[i] = pool_.take(BufferPool::kLarge);
    slots_[i] = {buffers_[i].data(), buffers_[i].capacity(), 0, 0};
  }
  const std::size_t received = link.socket.receive(slots_);
  for (std::size_t i = 0; i < received; ++i) {
    out.push_back({link.peer, std::move(buffers_[i]), static_cast<std::uint32_t>(slots_[i].bytes),
                   static_cast<std::uint32_t>(slots_[i].segment_bytes), 0, link.group});
  }
}

std::uint64_t Links::drops() const {
  std::uint64_t total = 0;
  for (const auto* links : {&links_, &group_}) {
    for (const auto& link : *links) total += link ? link->socket.drops() : 0;
  }
  return total;
}

}  // namespace optireduce
