// Genuine packets, recorded and sent again later in the same session: nothing comes of them.
#include <set>

#include "inspection.h"
#include "member.h"
#include "sim_case.h"

using namespace simcase;
using membercase::Member;

namespace {

constexpr Rank kRanks = 4;
constexpr Rank kLeaver = 3, kSleeper = 2;
constexpr std::uint32_t kElements = 9'001;
constexpr Duration kMillisecond = Duration::millis(1);

constexpr Time at(std::int64_t milliseconds) {
  return Time{} + kMillisecond * milliseconds;
}

struct Recorded {
  Rank from, to;
  Bytes packet;
};

constexpr Descriptor kBounded{kElements, DType::Float32, ReduceOp::Mean, true};
const std::vector<std::uint32_t> kEqual(kRanks, 1);

/// A session in which packets of every type are sent, and all of them recorded.
class Session {
 public:
  Session() : network_(options()) {}

  /// Ends some time after kLeaver has left.
  void live() {
    for (int i = 0; i < 6; ++i) reduce(at(0), 1);  // cut links: requests
    reduce(at(0), 1, {1, 0, 1, 1});                // an abstention
    reduce_each(at(0), 1, kEqual, {kBounded, kBounded, {7, DType::Float32}, kBounded});  // a rejection
    reduce(kSleep, 2);  // the sleeper is pinged
    reduce(kLeave + kMillisecond * 500, 1);
    recording_ = false;
  }

  std::set<PacketType> types() const {
    std::set<PacketType> all;
    for (const Recorded& each : recorded_) all.insert(type_of(each.packet.data()));
    return all;
  }

  /// Operations without the rank that left, while all that was recorded is sent again, to whom it was sent.
  /// Their results, with how they went.
  std::vector<std::string> later(bool replays) {
    std::vector<std::string> seen;
    for (int i = 0; i < 4; ++i) {
      for (std::size_t packet = 0; replays && packet < recorded_.size(); ++packet)
        network_.inject(recorded_[packet].from, recorded_[packet].to, recorded_[packet].packet);
      const std::vector<Bytes> results = reduce(at(0), 1);
      for (Rank rank = 0; rank < kLeaver; ++rank) {
        const Report& report = result_.reports[0][rank].value();
        CHECK_EQ(report.message, std::string());
        CHECK(report.closed_by == ClosedBy::Complete);
        CHECK((report.members == std::vector<Rank>{0, 1, 2}));
        seen.emplace_back(reinterpret_cast<const char*>(results[rank].data()), results[rank].size());
        for (const Excluded& each : report.excluded)
          seen.back() += std::to_string(each.rank) + ":" + std::to_string(each.bytes) + " ";
      }
    }
    return seen;
  }

  sim::Network& network() { return network_; }

 private:
  static constexpr Time kSleep = at(2'000), kAwake = at(2'120), kLeave = at(6'000);

  sim::SimOptions options() {
    sim::SimOptions options;
    options.ranks = kRanks;
    options.seal = Seal::Kind::Tag;
    options.coalesce = 0;  // one by one, so that every packet is recorded
    options.cuts = {{0, 1, at(0), at(0) + Duration::micros(70)},
                    {1, 2, at(0), at(0) + Duration::micros(200)}};
    options.pauses = {{kSleeper, kSleep, kAwake}};
    options.departures = {{kLeaver, kLeave}};
    options.crashes = {{kLeaver, kLeave + kMillisecond}};  // a process that is gone does not answer
    options.observer = [this](const sim::TraceEntry& entry) {
      if (recording_ && entry.kind == sim::EventKind::Arrive)
        recorded_.push_back({entry.from, entry.rank, {entry.first.begin(), entry.first.end()}});
    };
    return options;
  }

  std::vector<Bytes> reduce(Time start, int times, const std::vector<std::uint32_t>& weights = kEqual) {
    return reduce_each(start, times, weights, std::vector<Descriptor>(kRanks, kBounded));
  }

  /// The same buckets so many times, one operation after the other, not before `start`.
  std::vector<Bytes> reduce_each(Time start, int times, const std::vector<std::uint32_t>& weights,
                                 const std::vector<Descriptor>& descriptors) {
    start = std::max(start, network_.now());
    sim::Random random(++runs_);
    std::vector<Bytes> buckets;
    sim::Collective operation;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      buckets.push_back(random_bucket(descriptors[rank], random));
      const Duration begin = rank == kLeaver && start >= kLeave ? sim::Call::kNever : start - network_.now();
      operation.calls.push_back({.descriptor = descriptors[rank],
                                 .data = buckets[rank].data(),
                                 .start = begin,
                                 .weight = weights[rank],
                                 .stream = 1,
                                 .step = step_});
    }
    std::vector<sim::Collective> operations(1, operation);
    for (sim::Call& call : operation.calls)
      call.start = Duration{}, call.follows = call.start != sim::Call::kNever;
    for (int i = 1; i < times; ++i) {
      ++step_;
      for (sim::Call& call : operation.calls) call.step = step_;
      operations.push_back(operation);
    }
    ++step_;
    result_ = network_.run(operations, Duration::millis(60'000));
    CHECK(result_.finished);
    return buckets;
  }

  bool recording_ = true;
  std::vector<Recorded> recorded_;
  sim::Network network_;
  sim::RunResult result_;
  std::uint64_t runs_ = 0, step_ = 0;
};

/// Of rank 1, to rank 0.
Header header_of(PacketType type, std::uint32_t timestamp, std::uint32_t completed) {
  Header header;
  header.type = type;
  header.sender = 1;
  header.timestamp = timestamp;
  header.completed = completed;
  return header;
}

void receive(Member& member, const Header& header) {
  const Bytes packet = membercase::packet_of(header, Seal(membercase::kKey, 1), 0);
  member.receive(1, packet, packet.size());
}

/// What the member echoes to a ping.
std::uint32_t echo_to(Member& member, const Header& ping) {
  receive(member, ping);
  Transmit transmit;
  CHECK(member.group.poll_transmit(membercase::kNow, transmit));
  const Header status = decode(transmit.segments[0].header, membercase::kRanks).value();
  CHECK(status.type == PacketType::Status);
  return status.echo;
}

constexpr std::uint32_t kHalfTurn = 1u << 31;  // of a timestamp, 36 minutes

}  // namespace

// Timestamps come around again: a packet from half a turn ago looks new, but not its count of operations.
TEST(a_packet_from_long_ago_does_not_move_the_newest_timestamp) {
  Member member(0);
  receive(member, header_of(PacketType::Status, 1'000, 3));
  receive(member, header_of(PacketType::Status, 1'000 + kHalfTurn - 1, 2));
  CHECK_EQ(echo_to(member, header_of(PacketType::Ping, 1'001, 3)), 1'001u);
}

TEST(an_echo_from_long_ago_is_no_round_trip) {
  for (const bool old : {false, true}) {
    Member member(0);
    Transmit transmit;
    CHECK(member.group.poll_transmit(membercase::kNow - kMillisecond, transmit));
    receive(member, header_of(PacketType::Status, 1'000, 3));
    Header echo = header_of(PacketType::Status, 1'001, old ? 2 : 3);
    echo.flags = kFlagEcho;
    echo.echo = decode(transmit.segments[0].header, membercase::kRanks)->timestamp;
    receive(member, echo);
    CHECK_EQ(member.group.policy(1).rtt == Duration{}, old);
  }
}

// After an hour of silence timestamps seem to run backwards.
TEST(a_rank_that_went_on_is_believed_whatever_its_timestamp) {
  Member member(0);
  receive(member, header_of(PacketType::Status, 1'000, 3));
  CHECK_EQ(echo_to(member, header_of(PacketType::Ping, 1'005 + kHalfTurn, 4)), 1'005 + kHalfTurn);
}

TEST(whatever_is_sent_again_later_changes_nothing) {
  Session quiet, disturbed;
  quiet.live();
  disturbed.live();
  CHECK_EQ(disturbed.types().size(), 9u);
  CHECK(quiet.later(false) == disturbed.later(true));
  CHECK(disturbed.network().counters().hostile > 1'000);
  for (Rank rank = 0; rank < kLeaver; ++rank) {
    const Stats& a = quiet.network().stats(rank);
    const Stats& b = disturbed.network().stats(rank);
    CHECK_EQ(a.views, b.views);
    CHECK_EQ(a.removals, b.removals);
    CHECK_EQ(a.failed_operations, b.failed_operations);
    CHECK_EQ(a.excluded_bytes, b.excluded_bytes);
    CHECK_EQ(a.void_bytes, b.void_bytes);
    CHECK_EQ(b.forged_packets, 0u);
    CHECK((inspect(disturbed.network().group(rank)).members == std::vector<Rank>{0, 1, 2}));
  }
}

RUN_TESTS()
