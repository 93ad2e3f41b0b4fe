// The stages of one operation at one rank, without a group around them: packets are handed in by hand.
#pragma once

#include <cstring>
#include <vector>

#include "stage/all_gather.h"
#include "stage/reduce_scatter.h"

namespace stagecase {

using namespace optireduce;

constexpr std::uint32_t kPayload = 64;
constexpr std::size_t kPacketValues = kPayload / sizeof(float);
constexpr std::uint32_t kPackets = 4;  // of each shard
constexpr Time kNow{1'000'000'000};

struct Stages {
  explicit Stages(Rank me, Rank places, ReduceOp op = ReduceOp::Sum, bool bounded = true)
      : Stages(setup_of(me, places, op, bounded)) {}

  explicit Stages(const OperationSetup& given)
      : setup(given),
        schedule(setup.descriptor, 0, setup.places(), kPayload, 0),
        values(setup.descriptor.elements, 0.0F),
        bucket(DType::Float32, schedule.bytes(), setup.places()),
        scatter(setup, schedule, kNow),
        gather(setup, schedule, kNow) {}

  static OperationSetup setup_of(Rank me, Rank places, ReduceOp op = ReduceOp::Sum, bool bounded = true) {
    OperationSetup setup;
    setup.me = me;
    for (Rank rank = 0; rank < places; ++rank) setup.members.push_back(rank);
    const auto elements = static_cast<std::uint32_t>(places * kPackets * kPacketValues);
    setup.descriptor = {elements, DType::Float32, op, bounded};
    return setup;
  }

  /// Our own process comes, with the same value everywhere.
  void begin(float value, std::uint32_t weight = 1) { begin(value, Weights(weight)); }
  void begin(float value, const Weights& weights) {
    std::fill(values.begin(), values.end(), value);
    bucket.begin(reinterpret_cast<std::byte*>(values.data()), {});
    scatter.begin(weights, bucket);
  }

  /// Consecutive packets from a rank, all of one value.
  ReceivedRun run(PacketType type, Rank from, Rank shard, std::uint32_t first, std::uint32_t packets,
                  float value, std::uint64_t detail) {
    ReceivedRun run;
    run.header.type = type;
    run.header.sender = from;
    run.header.shard = shard;
    run.header.offset = first * kPayload;
    run.header.length = kPayload;
    run.header.detail = detail;
    run.stride = kHeaderBytes + kPayload;
    run.packets = packets;
    run.last_length = kPayload;
    run.received_at = kNow;
    run.buffer = pool.take(packets * run.stride);
    for (std::uint32_t packet = 0; packet < packets; ++packet) {
      std::byte* const payload = run.buffer.data() + packet * run.stride + kHeaderBytes;
      for (std::size_t i = 0; i < kPacketValues; ++i)
        std::memcpy(payload + i * sizeof value, &value, sizeof value);
    }
    return run;
  }

  std::uint32_t contribute(Rank from, std::uint32_t first, std::uint32_t packets, float value,
                           std::uint32_t weight = 1) {
    return scatter.accept(kNow, from,
                          run(PacketType::Contribution, from, scatter.index(), first, packets, value, weight),
                          bucket);
  }

  /// The first value of a packet of our shard.
  float value_of(std::uint32_t packet) {
    float value;
    std::memcpy(&value, bucket.data(scatter.index(), scatter.shard()) + scatter.shard().place_of(packet),
                sizeof value);
    return value;
  }

  OperationSetup setup;
  Schedule schedule;
  BufferPool pool;
  std::vector<float> values;
  Bucket bucket;
  ReduceScatter scatter;
  AllGather gather;
};

}  // namespace stagecase
