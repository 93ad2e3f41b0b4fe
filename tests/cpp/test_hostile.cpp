// A member of the group that is broken, or hostile: it knows the session's secret and cannot be kept from
// spoiling results. But it must not take memory without limit, make anybody wait for ever, or crash anybody.
#include <algorithm>
#include <map>

#include "../fuzz/seal.h"
#include "check.h"
#include "proto/endpoint.h"

using namespace optireduce;

namespace {

constexpr std::uint32_t kElements = 20'000;
constexpr Duration kTimeout = Duration::millis(2'000);

/// Rank 0, and what its peers say.
class Rank0 {
 public:
  explicit Rank0(Rank size = 2) : Rank0(config_for(size)) {}
  explicit Rank0(const EndpointConfig& config)
      : config_(config), endpoint_(config, pool_), bucket_(kElements) {}

  static EndpointConfig config_for(Rank size) {
    EndpointConfig config;
    config.size = size;
    config.seal = Seal(fuzz::kSecret, fuzz::kSubject);
    config.bound.warmup_operations = 0;
    config.bound.min_ranks = 1;
    return config;
  }

  std::uint64_t start(bool bounded = false, ReduceOp op = ReduceOp::Sum) {
    descriptor_ = {kElements, DType::Float32, op, bounded};
    const std::uint64_t number = endpoint_.start(
        now_, descriptor_, reinterpret_cast<std::byte*>(bucket_.data()), {kTimeout, 1, 0, 0, false});
    send();
    return number;
  }

  Header header(PacketType type, Rank from, std::uint64_t operation) {
    Header header;
    header.type = type;
    header.sender = from;
    header.operation = static_cast<std::uint32_t>(operation);
    header.descriptor = descriptor_;
    header.timestamp = ++timestamp_;
    header.count = 1;
    header.flags = kFlagEcho;  // it has seen all that was sent
    header.echo = sent_;
    return header;
  }

  void hear(Header header, std::span<const std::byte> payload = {}) {
    header.length = static_cast<std::uint16_t>(payload.size());
    const fuzz::Bytes packet = fuzz::sealed(header, payload, fuzz::kSecret);
    BufferRef buffer = pool_.take(packet.size());
    std::copy(packet.begin(), packet.end(), buffer.data());
    const auto bytes = static_cast<std::uint32_t>(packet.size());
    endpoint_.handle_datagram(now_, {header.sender, std::move(buffer), bytes, bytes});
  }

  /// A packet of an operation that has not begun here, with so many bytes.
  void hear_early(Rank from, std::uint64_t operation) {
    const std::vector<std::byte> payload(config_.payload_bytes);
    hear(header(PacketType::Contribution, from, operation), payload);
  }

  /// All packets of one stage from one peer.
  void hear_all(PacketType type, Rank from, std::uint64_t operation) {
    const Schedule schedule(descriptor_, operation, config_.size, config_.payload_bytes, 0);
    const Rank index = schedule.shard_of(type == PacketType::Contribution ? config_.rank : from);
    const Shard shard = schedule.shard(index);
    for (std::uint32_t packet = 0; packet < shard.packets(); ++packet) {
      Header each = header(type, from, operation);
      each.shard = index;
      each.offset = shard.offset_of(packet);
      hear(each, std::vector<std::byte>(shard.length_of(packet)));
      send();
    }
  }

  void ask_again(Rank from, std::uint64_t operation, std::size_t entries) {
    fuzz::Bytes payload(RequestBody::kFixedBytes + entries * RequestBody::kEntryBytes);
    encode_request(
        {static_cast<std::uint32_t>(now_.ns / 1000 + 1'000'000), PacketType::Contribution, entries},
        payload.data());
    for (std::size_t i = 0; i < entries; ++i) {
      const RequestEntry everything{0, ~std::uint64_t{0}};
      encode_entry(everything, payload.data() + RequestBody::kFixedBytes + i * RequestBody::kEntryBytes);
    }
    hear(header(PacketType::Request, from, operation), payload);
  }

  /// Packets that it sends now, by type.
  std::map<PacketType, std::size_t> send() {
    std::map<PacketType, std::size_t> sent;
    Transmit transmit;
    while (endpoint_.poll_transmit(now_, transmit)) {
      for (const Segment& segment : transmit.segments)
        sent[static_cast<PacketType>(segment.header[1])] += transmit.to.size();
      std::memcpy(&sent_, transmit.segments.front().header.data() + 24, sizeof sent_);
    }
    return sent;
  }

  /// Wakes the endpoint whenever it wants to be woken, for so long; the reports that come.
  std::vector<Report> pass(Duration time) {
    const Time end = now_ + time;
    std::vector<Report> reports;
    while (true) {
      send();
      while (auto report = endpoint_.poll_completion()) reports.push_back(std::move(*report));
      if (endpoint_.poll_timeout() > end) break;
      now_ = std::max(now_, endpoint_.poll_timeout());
      endpoint_.handle_timeout(now_);
    }
    now_ = end;
    return reports;
  }

  Endpoint& endpoint() { return endpoint_; }
  const BufferPool& pool() const { return pool_; }

 private:
  EndpointConfig config_;
  BufferPool pool_;
  Endpoint endpoint_;
  std::vector<float> bucket_;
  Descriptor descriptor_{kElements, DType::Float32, ReduceOp::Sum, false};
  Time now_{1'000'000'000};
  std::uint32_t timestamp_ = 0;
  std::uint32_t sent_ = 0;  // the newest timestamp
};

}  // namespace

// Its word for how long operations take was multiplied until it overflowed: the deadline lay in the past, and
// every operation ended at once with nothing.
TEST(a_peer_that_says_operations_take_for_ever_does_not_end_them_at_once) {
  Rank0 rank;
  Header slow = rank.header(PacketType::Status, 1, 0);
  slow.bound = slow.early = 65'535;
  rank.hear(slow);
  for (int i = 0; i < 2; ++i) {
    rank.start(true);
    rank.hear_all(PacketType::Contribution, 1, static_cast<std::uint64_t>(i));
    CHECK(rank.pass(Duration::millis(20)).empty());
    CHECK_EQ(rank.pass(kTimeout * 2).size(), 1u);
  }
}

TEST(a_peer_that_says_operations_take_for_ever_does_not_keep_them_for_ever) {
  Rank0 rank;
  Header slow = rank.header(PacketType::Status, 1, 0);
  slow.bound = slow.early = 50'000;  // half a minute for each byte
  rank.hear(slow);
  rank.start(true);
  rank.pass(kTimeout * 2);
  CHECK(rank.endpoint().idle());
}

TEST(who_asks_again_and_again_is_answered_once) {
  Rank0 rank;
  rank.start();
  for (int i = 0; i < 100; ++i) rank.ask_again(1, 0, 1'000);
  CHECK_EQ(rank.endpoint().waiting_repairs(), 1u);
  const std::size_t sent = rank.send()[PacketType::Contribution];
  CHECK(sent > 0);
  CHECK(sent <= 64u);
}

TEST(one_peer_cannot_take_the_room_for_early_packets_of_the_others) {
  EndpointConfig config = Rank0::config_for(3);
  config.early_bytes = 256 * 1024;
  Rank0 rank(config);
  for (std::uint64_t operation = 0; operation < 1'000; ++operation) rank.hear_early(1, operation);
  CHECK(rank.endpoint().stats().early_dropped > 0);
  CHECK(rank.pool().bytes_in_use() <= config.early_bytes / 2);
  const std::uint64_t dropped = rank.endpoint().stats().early_dropped;
  for (std::uint64_t operation = 0; operation < 50; ++operation) rank.hear_early(2, operation);
  CHECK_EQ(rank.endpoint().stats().early_dropped, dropped);
}

// Results are kept for ranks that have not said that they have them.
TEST(a_peer_that_never_says_what_it_has_takes_no_more_memory_than_some_operations) {
  Rank0 rank;
  std::size_t most = 0;
  for (std::uint64_t operation = 0; operation < 4'500; ++operation) {
    rank.start(false, ReduceOp::Gather);
    rank.hear_all(PacketType::Reduced, 1, operation);
    while (rank.endpoint().poll_completion()) {
    }
    if (operation == 4'200) most = rank.endpoint().archived_bytes();
  }
  CHECK(rank.endpoint().idle());
  CHECK(most > 0);
  CHECK_EQ(rank.endpoint().archived_bytes(), most);
}

TEST(answers_are_no_more_and_no_longer_than_questions) {
  Rank0 rank;
  for (int i = 0; i < 1'000; ++i) rank.hear(rank.header(PacketType::Ping, 1, 0));
  const auto sent = rank.send();
  CHECK_EQ(sent.size(), 1u);
  CHECK_EQ(sent.at(PacketType::Pong), 1'000u);
}

RUN_TESTS()
