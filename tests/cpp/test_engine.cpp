// The engine on real sockets: N engines in one process over loopback, each driven by its own thread. Run
// under TSan, this is what finds a lock that is missing.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
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

struct Cluster {
  std::vector<std::unique_ptr<Engine>> engines;

  Cluster(Rank size, const EngineOptions& options, std::size_t mtu,
          const std::string& address = "127.0.0.1") {
    for (Rank rank = 0; rank < size; ++rank) {
      engines.push_back(std::make_unique<Engine>(rank, size, address, 42, options));
    }
    const std::vector<std::string> addresses(size, address);
    std::vector<std::size_t> grants;
    for (auto& engine : engines) grants.push_back(engine->grant_bytes());
    for (Rank rank = 0; rank < size; ++rank) {
      std::vector<std::uint16_t> ports;
      for (auto& engine : engines) ports.push_back(engine->ports()[rank]);
      engines[rank]->open(addresses, ports);
    }
    each([&](Rank rank) { CHECK(engines[rank]->begin(mtu, grants, kTimeout).empty()); });
  }

  void each(const std::function<void(Rank)>& body) {
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < engines.size(); ++rank) threads.emplace_back([&body, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }

  void close() {
    each([&](Rank rank) { engines[rank]->close(Duration::millis(2'000)); });
  }
};

Call call_of(std::vector<float>& data, Duration timeout, ReduceOp op = ReduceOp::Sum) {
  return {.descriptor = {static_cast<std::uint32_t>(data.size()), DType::Float32, op},
          .data = reinterpret_cast<std::byte*>(data.data()),
          .timeout = timeout};
}

/// Small integers: their sums are exact in any order, so one comparison tells whether every contribution
/// arrived.
float input(Rank rank, std::size_t index) {
  return static_cast<float>((index * 7 + rank * 13) % 101);
}

void reduce_and_check(Cluster& cluster, Rank rank, std::size_t elements) {
  std::vector<float> data(elements);
  for (std::size_t i = 0; i < elements; ++i) data[i] = input(rank, i);
  Engine& engine = *cluster.engines[rank];
  const auto operation = engine.start(call_of(data, kTimeout));
  const auto report = engine.wait(operation, kForever);
  CHECK(report.has_value());
  CHECK_EQ(report->message, "");
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < elements; ++i) {
    float expected = 0;
    for (Rank peer = 0; peer < cluster.engines.size(); ++peer) expected += input(peer, i);
    wrong += data[i] != expected ? 1 : 0;
  }
  CHECK_EQ(wrong, std::size_t{0});
}

void reduce_sizes(Cluster& cluster, const std::vector<std::size_t>& sizes) {
  cluster.each([&](Rank rank) {
    for (std::size_t elements : sizes) reduce_and_check(cluster, rank, elements);
  });
}

/// Stops this whole process for a while, from outside.
void stand_still(Duration time) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    kill(parent, SIGSTOP);
    usleep(static_cast<useconds_t>(time.ns / 1000));
    kill(parent, SIGCONT);
    _exit(0);
  }
  int status;
  while (waitpid(child, &status, 0) != child) {
  }
}

}  // namespace

TEST(every_size_is_exact_with_ordinary_and_with_jumbo_packets) {
  for (std::size_t mtu : {1500u, 9000u, 65'535u}) {
    Cluster cluster(3, {}, mtu);
    reduce_sizes(cluster, {1, 2, 3, 255, 4096, 16'385, 262'147, 1'000'003});
    cluster.close();
  }
}

TEST(ipv6_works) {
  Cluster cluster(2, {}, 1500, "::1");
  reduce_sizes(cluster, {1, 50'001});
  cluster.close();
}

TEST(works_without_segmentation_offloads) {
  EngineOptions options;
  options.socket.use_gso = false;
  options.socket.use_gro = false;
  Cluster cluster(3, options, 1500);
  reduce_sizes(cluster, {1, 30'000, 300'001});
  cluster.close();
}

TEST(loss_duplication_and_reordering_are_repaired) {
  for (double loss : {0.01, 0.05, 0.2}) {
    EngineOptions options;
    options.impairment = {loss, 0.05, 0.05, 7};
    Cluster cluster(3, options, 1500);
    reduce_sizes(cluster, {1, 1000, 20'000, 100'003});
    std::uint64_t repaired = 0;
    for (auto& engine : cluster.engines) repaired += engine->stats().protocol.repaired_bytes;
    CHECK(repaired > 0);
    cluster.close();
  }
}

TEST(many_operations_in_flight_waited_for_by_many_threads) {
  Cluster cluster(2, {}, 1500);
  constexpr std::size_t kOperations = 24;
  cluster.each([&](Rank rank) {
    Engine& engine = *cluster.engines[rank];
    std::vector<std::vector<float>> data(kOperations, std::vector<float>(10'007, 1.0f));
    std::vector<std::uint64_t> numbers;
    for (auto& buffer : data) {
      numbers.push_back(engine.start(call_of(buffer, kTimeout, ReduceOp::Mean)));
    }
    std::atomic<int> good{0};
    std::vector<std::thread> waiters;
    for (int thread = 0; thread < 3; ++thread) {
      waiters.emplace_back([&] {
        for (std::uint64_t number : numbers)
          good += engine.wait(number, kForever)->error == ErrorCode::None ? 1 : 0;
      });
    }
    for (std::thread& waiter : waiters) waiter.join();
    CHECK_EQ(good.load(), static_cast<int>(3 * kOperations));
    for (auto& buffer : data) CHECK_EQ(buffer.back(), 1.0f);
  });
  cluster.close();
}

TEST(reports_that_were_taken_do_not_pile_up) {
  Cluster cluster(2, {}, 1500);
  constexpr int kOperations = 100;
  cluster.each([&](Rank rank) {
    Engine& engine = *cluster.engines[rank];
    std::vector<float> data(10, 1.0f);
    std::vector<std::uint64_t> numbers;
    for (int i = 0; i < kOperations; ++i) {
      numbers.push_back(engine.start(call_of(data, kTimeout, ReduceOp::Mean)));
      CHECK(engine.wait(numbers.back(), kForever).has_value());
    }
    CHECK(!engine.wait(numbers.front(), Duration{0}).has_value());
    CHECK(engine.wait(numbers.back(), Duration{0}).has_value());
  });
  cluster.close();
}

TEST(operations_proceed_while_nobody_waits) {
  Cluster cluster(2, {}, 1500);
  std::vector<std::vector<float>> data(2, std::vector<float>(200'000, 3.0f));
  std::vector<std::uint64_t> numbers;
  for (Rank rank = 0; rank < 2; ++rank) {
    numbers.push_back(cluster.engines[rank]->start(call_of(data[rank], kTimeout)));
  }
  // Only rank 0 waits; rank 1's own thread must do its part.
  CHECK(cluster.engines[0]->wait(numbers[0], kForever)->error == ErrorCode::None);
  CHECK_EQ(data[0].front(), 6.0f);
  CHECK(cluster.engines[1]->wait(numbers[1], kForever)->error == ErrorCode::None);
  cluster.close();
}

TEST(a_rank_that_does_not_come_is_named) {
  Cluster cluster(3, {}, 1500);
  cluster.each([&](Rank rank) {
    if (rank == 2) return;
    std::vector<float> data(1000, 1.0f);
    Engine& engine = *cluster.engines[rank];
    const auto number = engine.start(call_of(data, Duration::millis(150)));
    const auto report = engine.wait(number, kForever);
    CHECK(report->error == ErrorCode::Timeout);
    CHECK(report->message.find("rank 2") != std::string::npos);
    CHECK(report->ranks == std::vector<Rank>{2});
  });
  cluster.close();
}

TEST(ranks_that_disagree_are_named_on_every_rank) {
  Cluster cluster(3, {}, 1500);
  cluster.each([&](Rank rank) {
    std::vector<float> data(rank == 1 ? 500 : 1000, 1.0f);
    Engine& engine = *cluster.engines[rank];
    const auto number = engine.start(call_of(data, kTimeout));
    const auto report = engine.wait(number, kForever);
    CHECK(report->error == ErrorCode::Mismatch);
    CHECK(report->message.find("rank 1 reduces 500 float32 (sum)") != std::string::npos);
    CHECK(report->message.find("reduces 1000 float32 (sum)") != std::string::npos);
  });
  cluster.close();
}

TEST(closing_ends_waits_and_tells_the_peers) {
  EngineOptions options;
  options.group.fixed_membership = true;
  Cluster cluster(2, options, 1500);
  std::vector<float> data(1000, 1.0f);
  Engine& engine = *cluster.engines[0];
  const auto number = engine.start(call_of(data, kTimeout));
  std::thread waiter([&] {
    const auto report = engine.wait(number, kForever);
    CHECK(report->error == ErrorCode::Closed);
    CHECK(report->message.find("rank 1 left") != std::string::npos);
  });
  cluster.engines[1]->close(Duration{0});
  waiter.join();
  cluster.close();
}

TEST(a_rank_that_leaves_is_removed_and_the_others_go_on_without_it) {
  Cluster cluster(3, {}, 1500);
  std::vector<std::vector<float>> data(3, std::vector<float>(1000, 1.0f));
  cluster.each([&](Rank rank) {
    Engine& engine = *cluster.engines[rank];
    if (rank == 2) return engine.close(Duration::millis(2'000));
    Call call = call_of(data[rank], kTimeout);
    call.descriptor.bounded = true;
    call.stream = 1;
    const auto report = engine.wait(engine.start(call), kForever);
    CHECK_EQ(report->message, std::string());
    CHECK_EQ(data[rank][0], 2.0f);
  });
  cluster.close();
}

TEST(time_in_which_the_process_stood_still_does_not_count) {
  constexpr int kLearned = 9;  // operations, after which there is a deadline
  Cluster cluster(2, {}, 1500);
  std::vector<std::vector<float>> data(2, std::vector<float>(10'000));
  std::uint64_t step = 0;
  const auto start = [&](Rank rank) {
    std::fill(data[rank].begin(), data[rank].end(), static_cast<float>(rank + 1));
    Call call = call_of(data[rank], kTimeout);
    call.descriptor.bounded = true;
    call.stream = 1;
    call.step = step;
    return cluster.engines[rank]->start(call);
  };
  // A worker that is always this late is waited for that long.
  for (; step < kLearned; ++step) {
    const auto first = start(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const auto second = start(1);
    CHECK(cluster.engines[0]->wait(first, kForever)->error == ErrorCode::None);
    CHECK(cluster.engines[1]->wait(second, kForever)->error == ErrorCode::None);
  }
  const auto first = start(0);
  stand_still(Duration::millis(1500));
  CHECK(!cluster.engines[0]->wait(first, Duration::millis(20)).has_value());
  const auto second = start(1);
  const auto report = cluster.engines[0]->wait(first, kForever);
  CHECK(cluster.engines[1]->wait(second, kForever)->error == ErrorCode::None);
  CHECK(report->bounded && report->policy.deadline > Duration{});
  CHECK(report->policy.deadline < Duration::millis(1000));
  CHECK(report->closed_by == ClosedBy::Complete);  // nobody was excluded from the shard of the one that waits
  CHECK(report->stood_still > Duration::millis(1000));
  CHECK(report->elapsed > Duration::millis(1500));
  cluster.close();
}

TEST(a_peer_behind_a_wall_is_reported_by_begin) {
  EngineOptions options;
  Engine lonely(0, 2, "127.0.0.1", 42, options);
  UdpSocket wall("127.0.0.1", {});  // takes packets, never answers
  lonely.open({"127.0.0.1", "127.0.0.1"}, {0, wall.port()});
  CHECK(lonely.begin(1500, {1 << 18, 1 << 18}, Duration::millis(100)) == std::vector<Rank>{1});
}

// A thread that waits may take the wake-up that was meant for the engine's own thread, which sleeps on.
TEST(timers_that_a_waiting_thread_leaves_behind_fire_in_time) {
  EngineOptions options;
  options.group.fixed_membership = true;
  Engine lonely(0, 2, "127.0.0.1", 42, options);
  UdpSocket wall("127.0.0.1", {});
  lonely.open({"127.0.0.1", "127.0.0.1"}, {0, wall.port()});
  lonely.begin(1500, {1 << 18, 1 << 18}, Duration::millis(20));
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the engine's own thread sleeps
    std::vector<float> first(100), second(100);
    const auto soon = lonely.start(call_of(first, Duration::millis(5)));
    const auto later = lonely.start(call_of(second, Duration::millis(20)));
    CHECK(lonely.wait(soon, kForever)->error == ErrorCode::Timeout);
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    CHECK(lonely.wait(later, Duration{0}).has_value());
  }
}

RUN_TESTS()
