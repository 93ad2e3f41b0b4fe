// A restarted process over real sockets: it has other ports, takes a snapshot and is a member again.
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

constexpr Rank kRanks = 3, kRestarted = 2;
constexpr std::size_t kMtu = 1500;
constexpr Duration kTimeout = Duration::millis(20'000);
constexpr Duration kForever{-1};
const std::string kAddress = "127.0.0.1";

using Engines = std::vector<std::unique_ptr<Engine>>;

void each(const std::function<void(Rank)>& body) {
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < kRanks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

void open(Engines& engines, Rank rank) {
  std::vector<std::uint16_t> ports;
  for (const auto& engine : engines) ports.push_back(engine->ports()[rank]);
  engines[rank]->open(std::vector<std::string>(kRanks, kAddress), ports);
}

std::vector<Rank> begin(Engine& engine) {
  return engine.begin(kMtu, std::vector<std::size_t>(kRanks, engine.grant_bytes()), kTimeout);
}

/// An exact sum of ones.
void reduce(Engines& engines, std::uint64_t step) {
  each([&](Rank rank) {
    std::vector<float> data(5'000, 1.0f);
    const std::uint64_t operation =
        engines[rank]->start({.descriptor = {5'000, DType::Float32, ReduceOp::Sum},
                              .data = reinterpret_cast<std::byte*>(data.data()),
                              .timeout = kTimeout,
                              .step = step});
    const auto report = engines[rank]->wait(operation, kForever);
    CHECK(report.has_value());
    CHECK_EQ(report->message, "");
    CHECK(data == std::vector<float>(data.size(), 1.0f * kRanks));
  });
}

bool comes_true(const std::function<bool()>& condition) {
  for (int i = 0; i < 2'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

bool has_returned(Engine& engine) {
  for (const MembershipEvent& event : engine.take_events()) {
    if (event.kind == MembershipEvent::Kind::Returned && event.rank == kRestarted) return true;
  }
  return false;
}

}  // namespace

TEST(a_restarted_process_with_other_ports_returns_by_a_snapshot) {
  EngineOptions options;
  Engines engines;
  for (Rank rank = 0; rank < kRanks; ++rank)
    engines.push_back(std::make_unique<Engine>(rank, kRanks, kAddress, 42, options));
  for (Rank rank = 0; rank < kRanks; ++rank) open(engines, rank);
  each([&](Rank rank) { CHECK(begin(*engines[rank]).empty()); });
  std::uint64_t step = 0;
  for (; step < 3; ++step) reduce(engines, step);

  options.group.incarnation = 1;
  engines[kRestarted] = std::make_unique<Engine>(kRestarted, kRanks, kAddress, 42, options);
  open(engines, kRestarted);
  for (Rank rank = 0; rank < kRestarted; ++rank)
    engines[rank]->redirect(kRestarted, kAddress, engines[kRestarted]->ports()[rank]);
  CHECK(begin(*engines[kRestarted]).empty());
  CHECK(comes_true([&] { return engines[kRestarted]->is_left_behind(); }));

  const Position position = engines[0]->position();
  CHECK(engines[1]->position() == position);
  CHECK_EQ(position.completed, step);
  for (auto& engine : engines) engine->take_events();
  engines[kRestarted]->restore(position, step);
  for (auto& engine : engines) CHECK(comes_true([&] { return has_returned(*engine); }));
  CHECK(!engines[kRestarted]->is_left_behind());
  for (; step < 6; ++step) reduce(engines, step);
  each([&](Rank rank) { engines[rank]->close(Duration::millis(2'000)); });
}

RUN_TESTS()
