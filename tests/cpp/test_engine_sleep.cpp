// The engine's own thread takes a packet while a waiting thread goes to sleep in the kernel.
//
// Which of two threads in epoll_wait hears of a packet is the kernel's choice. This program has an epoll_wait
// of its own, in which the engine's own thread is always the one, and always at the worst time.
#include <dlfcn.h>
#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/engine.h"

using namespace optireduce;

namespace {

constexpr Duration kTimeout = Duration::millis(20'000);
constexpr Duration kForever{-1};

using EpollWait = int (*)(int, epoll_event*, int, int);
const EpollWait real_epoll_wait = reinterpret_cast<EpollWait>(dlsym(RTLD_NEXT, "epoll_wait"));

int look(int epoll, std::span<epoll_event> events, int ms) {
  return real_epoll_wait(epoll, events.data(), static_cast<int>(events.size()), ms);
}

/// Something that happens once. Not std::atomic, whose wait() would need the system call that is missing
/// here.
class Moment {
 public:
  void come() {
    const std::lock_guard lock(mutex_);
    came_ = true;
    condition_.notify_all();
  }
  bool came() {
    const std::lock_guard lock(mutex_);
    return came_;
  }
  void wait() {
    std::unique_lock lock(mutex_);
    condition_.wait(lock, [this] { return came_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool came_ = false;
};

bool is_wakeup(const epoll_event& event) {
  return event.data.ptr == nullptr;
}

/// One engine's two threads. The waiting one is that which made this; it drives the engine before the other.
struct Scene {
  std::function<void()> let_peer_send;
  std::function<bool()> packet_taken;
  bool waiter_woken = false;
  Moment own_thread_sleeps;
  Moment packet_sent;

  int wait(int asked, std::span<epoll_event> events, int ms) {
    const bool is_waiter = std::this_thread::get_id() == waiter;
    if (is_waiter) epoll = asked;
    if (asked != epoll || ms == 0 || packet_sent.came()) return look(asked, events, ms);
    return is_waiter ? wait_as_waiter(events, ms) : wait_as_own_thread(events);
  }

 private:
  /// A wake-up does not end this sleep: the waiting thread has taken it.
  int wait_as_own_thread(std::span<epoll_event> events) {
    own_thread_sleeps.come();
    packet_sent.wait();
    const int count = look(epoll, events, -1);
    const auto found = events.first(static_cast<std::size_t>(count));
    return static_cast<int>(std::remove_if(found.begin(), found.end(), is_wakeup) - found.begin());
  }

  int wait_as_waiter(std::span<epoll_event> events, int ms) {
    if (!let_peer_send) return look(epoll, events, ms);
    let_peer_send();
    packet_sent.come();
    while (!packet_taken()) std::this_thread::yield();
    const int count = look(epoll, events, 0);
    waiter_woken = std::any_of(events.begin(), events.begin() + count, is_wakeup);
    return count;
  }

  const std::thread::id waiter = std::this_thread::get_id();
  std::atomic<int> epoll{-1};
};

std::atomic<Scene*> scene{nullptr};

}  // namespace

extern "C" int epoll_wait(int epoll, epoll_event* events, int count, int ms) {
  const std::span<epoll_event> room(events, static_cast<std::size_t>(count));
  Scene* playing = scene;
  return playing != nullptr ? playing->wait(epoll, room, ms) : look(epoll, room, ms);
}

/// The engine asks for epoll_pwait2 this way. Without it, as on old kernels, every sleep is in epoll_wait.
extern "C" long syscall(long, ...) noexcept {
  errno = ENOSYS;
  return -1;
}

TEST(a_waiting_thread_is_woken_when_the_engines_own_thread_took_its_packet) {
  Scene played;
  scene = &played;
  EngineOptions options;
  options.group.fixed_membership = true;  // no packets but those of the operation
  Engine engine(0, 2, "127.0.0.1", 42, options);
  Engine peer(1, 2, "127.0.0.1", 42, options);
  const std::vector<std::size_t> grants{engine.grant_bytes(), peer.grant_bytes()};
  engine.open({"127.0.0.1", "127.0.0.1"}, {0, peer.ports()[0]});
  peer.open({"127.0.0.1", "127.0.0.1"}, {engine.ports()[1], 0});
  std::thread peer_begins([&] { CHECK(peer.begin(1500, grants, kTimeout).empty()); });
  CHECK(engine.begin(1500, grants, kTimeout).empty());
  peer_begins.join();

  // One element: rank 0 owns it, and one packet ends the operation there.
  std::vector<float> data(2, 1.0f);
  const auto start = [&](Engine& by, float& element) {
    return by.start({.descriptor = {1, DType::Float32, ReduceOp::Sum},
                     .data = reinterpret_cast<std::byte*>(&element),
                     .timeout = kTimeout});
  };
  std::uint64_t peers_number = 0;
  played.let_peer_send = [&] { peers_number = start(peer, data[1]); };
  // The engine's own thread has the mutex from before it takes the packet until after it wakes the waiter.
  played.packet_taken = [&] { return engine.stats().protocol.operations == 1; };
  played.own_thread_sleeps.wait();
  const auto number = start(engine, data[0]);
  CHECK(engine.wait(number, kForever)->error == ErrorCode::None);
  CHECK(played.waiter_woken);

  CHECK(peer.wait(peers_number, kForever)->error == ErrorCode::None);
  CHECK_EQ(data[0] + data[1], 4.0f);
  std::thread peer_closes([&] { peer.close(kTimeout); });
  engine.close(kTimeout);
  peer_closes.join();
  scene = nullptr;
}

RUN_TESTS()
