// A member of the group that is broken, or hostile: it knows the session's secret and cannot be kept from
// spoiling results. But it must not take memory without limit, make anybody wait for ever, or crash anybody.
#include <algorithm>
#include <map>

#include "../fuzz/seal.h"
#include "base/codec.h"
#include "check.h"
#include "group/group.h"
#include "inspection.h"

using namespace optireduce;

namespace {

constexpr std::uint32_t kElements = 20'000;
constexpr std::uint32_t kStream = 3;
constexpr Duration kTimeout = Duration::millis(2'000);

/// Rank 0, and what its peers say.
class Rank0 {
 public:
  explicit Rank0(Rank size = 2) : Rank0(config_for(size)) {}
  explicit Rank0(const GroupConfig& config) : config_(config), group_(config, pool_), bucket_(kElements) {}

  static GroupConfig config_for(Rank size) {
    GroupConfig config;
    config.fixed_membership = true;
    config.size = size;
    config.seal = Seal(fuzz::kSecret, fuzz::kSubject);
    return config;
  }

  std::uint64_t start(bool bounded = false, ReduceOp op = ReduceOp::Sum) {
    descriptor_ = {kElements, DType::Float32, op, bounded};
    const std::uint64_t number = group_.start(now_, {.descriptor = descriptor_,
                                                     .data = reinterpret_cast<std::byte*>(bucket_.data()),
                                                     .timeout = kTimeout,
                                                     .stream = bounded ? kStream : 0,
                                                     .step = bounded ? steps_++ : 0});
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
    header.stream = descriptor_.bounded ? kStream : 0;
    header.detail = type == PacketType::Decision && descriptor_.bounded ? first_ranks(config_.size) : 1;
    if (type == PacketType::Decision && !descriptor_.bounded) header.detail = 0;
    header.completed = static_cast<std::uint32_t>(completed_);
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
    group_.handle_datagram(now_, {header.sender, std::move(buffer), bytes, bytes});
  }

  /// A packet of an operation that has not begun here, with so many bytes.
  void hear_early(Rank from, std::uint64_t operation) {
    const std::vector<std::byte> payload(config_.path.payload_bytes);
    hear(header(PacketType::Contribution, from, operation), payload);
  }

  /// All peers say so from now on.
  void say_completed(std::uint64_t operations) { completed_ = operations; }

  /// All packets of one stage from one peer.
  void hear_all(PacketType type, Rank from, std::uint64_t operation) {
    const Schedule schedule(descriptor_, operation, config_.size, config_.path.payload_bytes,
                            config_.shuffle && descriptor_.bounded ? config_.seal.shared_number() : 0);
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
    ask_again(from, operation, entries, from);
  }
  /// For the contribution to the shard of that owner.
  void ask_again(Rank from, std::uint64_t operation, std::size_t entries, Rank owner) {
    const RequestEntry everything{0, ~std::uint64_t{0}};
    const RequestBody body{static_cast<std::uint32_t>(now_.ns / 1000 + 1'000'000), PacketType::Contribution,
                           std::vector(entries, everything)};
    Header request = header(PacketType::Request, from, operation);
    request.shard =
        Schedule(descriptor_, operation, config_.size, config_.path.payload_bytes, 0).shard_of(owner);
    hear(request, to_bytes(body));
  }

  /// Packets that it sends now, by type.
  std::map<PacketType, std::size_t> send() {
    std::map<PacketType, std::size_t> sent;
    Transmit transmit;
    while (group_.poll_transmit(now_, transmit)) {
      for (const Segment& segment : transmit.segments)
        sent[type_of(segment.header.data())] += transmit.to.size();
      std::memcpy(&sent_, transmit.segments.front().header.data() + offsetof(Header, timestamp),
                  sizeof sent_);
    }
    return sent;
  }

  /// Wakes the group whenever it wants to be woken, for so long; the reports that come.
  std::vector<Report> pass(Duration time) {
    const Time end = now_ + time;
    std::vector<Report> reports;
    while (true) {
      send();
      while (auto report = group_.poll_completion()) reports.push_back(std::move(*report));
      if (group_.poll_timeout() > end) break;
      now_ = std::max(now_, group_.poll_timeout());
      group_.handle_timeout(now_);
    }
    now_ = end;
    return reports;
  }

  Group& group() { return group_; }
  const BufferPool& pool() const { return pool_; }

 private:
  GroupConfig config_;
  BufferPool pool_;
  Group group_;
  std::vector<float> bucket_;
  Descriptor descriptor_{kElements, DType::Float32, ReduceOp::Sum, false};
  Time now_{1'000'000'000};
  std::uint32_t timestamp_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t completed_ = 0;  // as the peers say
  std::uint32_t sent_ = 0;       // the newest timestamp
};

}  // namespace

TEST(a_peer_that_says_it_lags_for_ever_is_not_waited_for_for_ever) {
  Rank0 rank;
  for (std::uint64_t operation = 0; operation < 12; ++operation) {  // what is usual is known
    rank.start(true);
    rank.hear_all(PacketType::Contribution, 1, operation);
    rank.hear_all(PacketType::Decision, 1, operation);
    CHECK_EQ(rank.pass(Duration::millis(1)).size(), 1u);
    rank.say_completed(operation + 1);
  }
  rank.start(true);
  Header old = rank.header(PacketType::Status, 1, 12);
  old.oldest = 255;
  old.completed = 12;
  rank.hear(old);
  rank.pass(kTimeout * 2);
  CHECK(rank.group().idle());
}

TEST(who_asks_again_and_again_is_answered_once) {
  Rank0 rank;
  rank.start();
  for (int i = 0; i < 100; ++i) rank.ask_again(1, 0, 1'000);
  CHECK_EQ(inspect(rank.group()).waiting_repairs, 1u);
  const std::size_t sent = rank.send()[PacketType::Contribution];
  CHECK(sent > 0);
  CHECK(sent <= 64u);
}

// Its own shard is shorter than the other: what was sent was noted beyond the end of a list.
TEST(who_asks_for_a_contribution_to_anothers_shard_gets_nothing) {
  Rank0 rank(3);
  rank.start();
  for (Rank from = 1; from < 3; ++from) rank.ask_again(from, 0, 1, static_cast<Rank>(3 - from));
  CHECK_EQ(inspect(rank.group()).waiting_repairs, 0u);
  CHECK_EQ(rank.send()[PacketType::Contribution], 0u);
}

TEST(an_operation_that_is_rejected_again_and_again_ends_once) {
  Rank0 rank;
  rank.start();
  rank.start();
  const fuzz::Bytes payload = to_bytes(RejectBody{RejectReason::Timeout, 1, 1, {}, {}});
  for (int i = 0; i < 3; ++i)
    rank.hear(rank.header(PacketType::Reject, 1, 1), payload);  // the first is still open
  CHECK_EQ(rank.pass(Duration::millis(1)).size(), 1u);
}

TEST(what_comes_after_an_operation_that_failed_ahead_of_its_turn_ends) {
  Rank0 rank;
  for (int i = 0; i < 3; ++i) rank.start(false, ReduceOp::Gather);
  const fuzz::Bytes payload = to_bytes(RejectBody{RejectReason::Timeout, 1, 1, {}, {}});
  rank.hear(rank.header(PacketType::Reject, 1, 1), payload);
  rank.hear_all(PacketType::Decision, 1, 0);
  rank.hear_all(PacketType::Decision, 1, 2);
  CHECK_EQ(rank.pass(Duration::millis(1)).size(), 3u);
  CHECK_EQ(rank.group().completed(), 3u);
}

TEST(packets_of_operations_far_ahead_take_no_more_than_the_room_for_early_ones) {
  GroupConfig config = Rank0::config_for(3);
  config.early_bytes = 256 * 1024;
  Rank0 rank(config);
  for (std::uint64_t operation = 5; operation < 1'005; ++operation) rank.hear_early(1, operation);
  CHECK(rank.group().stats().early_dropped > 0);
  CHECK(rank.pool().bytes_in_use() <= config.early_bytes);
  // What is called here goes on all the same.
  rank.start();
  rank.hear_all(PacketType::Contribution, 1, 0);
  rank.hear_all(PacketType::Contribution, 2, 0);
  rank.hear_all(PacketType::Decision, 1, 0);
  rank.hear_all(PacketType::Decision, 2, 0);
  CHECK_EQ(rank.pass(Duration::millis(1)).size(), 1u);
}

// Its packets are short, and what they make a rank remember is not.
TEST(large_operations_that_nobody_here_has_called_take_no_more_than_the_room_for_early_ones) {
  GroupConfig config = Rank0::config_for(3);
  config.early_bytes = 1024 * 1024;
  Rank0 rank(config);
  const std::vector<std::byte> payload(config.path.payload_bytes);
  for (std::uint64_t operation = 5; operation < 55; ++operation) {
    Header header = rank.header(PacketType::Contribution, 1, operation);
    header.descriptor.elements = 100'000'000;  // tables for 4,600 chunks
    header.shard =
        Schedule(header.descriptor, operation, config.size, config.path.payload_bytes, 0).shard_of(0);
    rank.hear(header, payload);
  }
  CHECK(rank.group().stats().early_packets > 0);
  CHECK(rank.group().stats().early_dropped > 40);
  rank.start();
  for (const PacketType type : {PacketType::Contribution, PacketType::Decision}) {
    for (const Rank from : {Rank{1}, Rank{2}}) rank.hear_all(type, from, 0);
  }
  CHECK_EQ(rank.pass(Duration::millis(1)).size(), 1u);
}

// Results are kept for ranks that have not said that they have them.
TEST(a_peer_that_never_says_what_it_has_takes_no_more_memory_than_some_operations) {
  Rank0 rank;
  std::size_t most = 0;
  for (std::uint64_t operation = 0; operation < 4'500; ++operation) {
    rank.start(false, ReduceOp::Gather);
    rank.hear_all(PacketType::Decision, 1, operation);
    while (rank.group().poll_completion()) {
    }
    if (operation == 4'200) most = inspect(rank.group()).engine_bytes;
  }
  CHECK(rank.group().idle());
  CHECK(most > 0);
  CHECK_EQ(inspect(rank.group()).engine_bytes, most);
}

TEST(answers_are_no_more_and_no_longer_than_questions) {
  Rank0 rank;
  for (int i = 0; i < 1'000; ++i) rank.hear(rank.header(PacketType::Ping, 1, 0));
  const auto sent = rank.send();
  CHECK_EQ(sent.size(), 1u);
  CHECK_EQ(sent.at(PacketType::Status), 1'000u);
}

RUN_TESTS()
