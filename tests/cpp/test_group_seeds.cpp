// The protocol under loss, reordering and duplication, over many seeds, with and without multicast: still
// exact, always.
#include <cstdio>

#include "base/codec.h"
#include "seeds.h"
#include "sim_case.h"

using namespace simcase;

namespace {

constexpr double kLosses[] = {0.01, 0.05, 0.20};
constexpr Rank kRanks[] = {2, 3, 4, 5, 8, 16};
constexpr std::uint32_t kPayloads[] = {64, 1408, 1424, 8'896, 65'408};

/// The seed decides everything: the network, the operations and who starts when.
sim::SimOptions options_for(std::uint64_t seed, sim::Random& random) {
  sim::SimOptions options;
  options.seed = seed;
  options.ranks = kRanks[random.below(std::size(kRanks))];
  options.link.loss = kLosses[seed % std::size(kLosses)];
  options.link.reorder = random.uniform() * 0.1;
  options.link.duplicate = random.uniform() * 0.1;
  options.link.delay = random.duration_up_to(Duration::micros(500));
  options.link.jitter = random.duration_up_to(Duration::micros(300));
  options.coalesce = random.uniform();
  if (random.chance(0.3)) options.link.bits_per_second = 1e8 + random.uniform() * 1e10;
  if (random.chance(0.3)) options.wake_delay = random.duration_up_to(Duration::millis(1));
  if (random.chance(0.3)) options.link.queue_bytes = 70'000 + random.below(200'000);
  if (random.chance(0.2)) options.protocol.path.window_bytes = 1 + random.below(100'000);
  if (random.chance(0.2)) options.protocol.early_bytes = random.below(100'000);
  options.protocol.path.payload_bytes = kPayloads[random.below(std::size(kPayloads))];
  options.max_events = 20'000'000;
  options.seal = seed / 3 % 3 == 0 ? Seal::Kind::Tag : Seal::Kind::Token;
  options.protocol.multicast = seed % 2 == 1;
  if (seed % 8 == 1)
    options.group_outages.push_back({0, Time{}, Time{} + random.duration_up_to(Duration::millis(20))});
  return options;
}

std::uint32_t elements_for(const sim::SimOptions& options, sim::Random& random) {
  const std::uint64_t packets = random.chance(0.1) ? 300 : 20;
  const std::uint64_t most =
      std::min<std::uint64_t>(packets * options.protocol.path.payload_bytes / 4, 40'000);
  return 1 + static_cast<std::uint32_t>(random.below(most));
}

void print_packet(std::span<const std::byte> packet) {
  const std::optional<Header> decoded = decode(packet, 0xffff);
  if (!decoded) return;
  const Header& header = *decoded;
  std::printf("  type %d operation %u shard %u offset %u length %u completed %u",
              static_cast<int>(header.type), header.operation, header.shard, header.offset, header.length,
              header.completed);
  if (header.type != PacketType::Request) return;
  const auto body = from_bytes<RequestBody>(packet.subspan(kHeaderBytes), 0xffff);
  if (!body) return;
  std::printf(" wants %d", static_cast<int>(body->wanted));
  for (const RequestEntry& entry : body->entries)
    std::printf(" %u:%llx", entry.chunk, static_cast<unsigned long long>(entry.missing));
}

void print_event(const sim::TraceEntry& entry) {
  std::printf("%12.6f ms  rank %2d  %-8s", static_cast<double>(entry.at.ns) * 1e-6, entry.rank,
              name_of(entry.kind));
  if (entry.kind == sim::EventKind::Arrive) {
    std::printf(" from %2d  packets %llx", entry.from, static_cast<unsigned long long>(entry.detail));
    print_packet(entry.first);
  } else if (entry.kind == sim::EventKind::Call || entry.kind == sim::EventKind::Complete) {
    std::printf(" operation %llu", static_cast<unsigned long long>(entry.detail));
  }
  std::printf("\n");
}

/// Empty if everything was exact and quiet in the end.
std::string run_seed(std::uint64_t seed, bool verbose) {
  sim::Random random(seed * 2 + 1);
  sim::SimOptions options = options_for(seed, random);
  if (verbose) options.observer = print_event;
  Case test(options);
  std::vector<Duration> starts(options.ranks);
  const std::uint64_t operations = 1 + random.below(4);
  for (std::uint64_t i = 0; i < operations; ++i) {
    for (Duration& start : starts) start = start + random.duration_up_to(Duration::millis(2));
    const auto dtype = static_cast<DType>(random.below(4));
    const auto op = static_cast<ReduceOp>(random.below(2));
    test.add({elements_for(options, random), dtype, op}, starts);
  }
  test.run();
  std::string why = test.why_not_exact();
  if (!why.empty()) return why;
  test.forget_buckets();
  if (!test.network().settle(Duration::millis(10'000)))
    why = "seed " + std::to_string(seed) + ": the groups do not go quiet";
  return why;
}

}  // namespace

int main(int argc, char** argv) {
  return run_seeds(argc, argv, run_seed);
}
