// The schedule: every byte of the bucket belongs to exactly one packet of one shard, and every rank owns one
// shard.
#include <algorithm>
#include <vector>

#include "check.h"
#include "geometry/schedule.h"

using namespace optireduce;

namespace {

struct Sample {
  std::uint32_t elements;
  DType dtype;
  Rank size;
  std::uint32_t payload;
};

std::vector<Sample> samples() {
  std::vector<Sample> all;
  for (const std::uint32_t elements : {0u, 1u, 3u, 255u, 256u, 257u, 1'000u, 65'537u, 262'147u}) {
    for (const DType dtype : {DType::Float32, DType::Float64, DType::BFloat16}) {
      for (const Rank size : std::initializer_list<Rank>{1, 2, 3, 7, 8, 64}) {
        for (const std::uint32_t payload : {16u, 1424u, 65'440u})
          all.push_back({elements, dtype, size, payload});
      }
    }
  }
  return all;
}

Schedule schedule_of(const Sample& s, std::uint64_t operation = 0) {
  return Schedule({s.elements, s.dtype, ReduceOp::Sum}, operation, s.size, s.payload, 0);
}

}  // namespace

TEST(shards_cover_the_bucket_once_and_in_order) {
  for (const Sample& s : samples()) {
    const Schedule schedule = schedule_of(s);
    std::size_t at = 0;
    for (Rank i = 0; i < s.size; ++i) {
      const Shard shard = schedule.shard(i);
      CHECK_EQ(shard.begin, at);
      at += shard.bytes;
    }
    CHECK_EQ(at, std::size_t{s.elements} * size_of(s.dtype));
    CHECK_EQ(schedule.bytes(), at);
  }
}

TEST(packets_cover_their_shard_once_and_in_order) {
  for (const Sample& s : samples()) {
    const Shard shard = schedule_of(s).shard(0);
    std::uint32_t at = 0;
    for (std::uint32_t packet = 0; packet < shard.packets(); ++packet) {
      CHECK_EQ(shard.offset_of(packet), at);
      CHECK(shard.length_of(packet) > 0);
      CHECK(shard.length_of(packet) <= s.payload);
      at += shard.length_of(packet);
    }
    CHECK_EQ(at, shard.bytes);
  }
}

// An element that is split between two packets or shards could not be added.
TEST(no_element_is_split) {
  for (const Sample& s : samples()) {
    const Schedule schedule = schedule_of(s);
    for (Rank i = 0; i < s.size; ++i) {
      const Shard shard = schedule.shard(i);
      CHECK_EQ(shard.begin % size_of(s.dtype), 0u);
      CHECK_EQ(shard.payload_bytes % size_of(s.dtype), 0u);
      CHECK_EQ(shard.bytes % size_of(s.dtype), 0u);
    }
  }
}

TEST(chunks_count_every_packet_and_every_byte) {
  for (const Sample& s : samples()) {
    const Shard shard = schedule_of(s).shard(0);
    std::uint32_t packets = 0, bytes = 0;
    for (std::uint32_t chunk = 0; chunk < shard.chunks(); ++chunk) {
      const std::uint32_t in_chunk = shard.packets_in(chunk);
      CHECK(in_chunk >= 1);
      CHECK(in_chunk <= 64);
      CHECK_EQ(shard.full_mask(chunk), Shard::mask_of(0, in_chunk));
      std::uint32_t one_by_one = 0;
      for (std::uint32_t bit = 0; bit < in_chunk; ++bit)
        one_by_one += shard.bytes_of(chunk, Shard::mask_of(bit, 1));
      CHECK_EQ(one_by_one, shard.bytes_of(chunk, shard.full_mask(chunk)));
      packets += in_chunk;
      bytes += one_by_one;
    }
    CHECK_EQ(packets, shard.packets());
    CHECK_EQ(bytes, shard.bytes);
  }
}

TEST(a_chunk_fits_one_send) {
  for (std::uint32_t payload = 16; payload <= 65'440; payload += 16) {
    const std::uint32_t packets = chunk_packets_for(payload);
    CHECK(packets >= 1);
    CHECK(packets <= 64);
    CHECK(packets * (payload + kHeaderBytes) <= 65'507);
  }
}

TEST(masks) {
  CHECK_EQ(Shard::mask_of(0, 0), 0u);
  CHECK_EQ(Shard::mask_of(0, 1), 1u);
  CHECK_EQ(Shard::mask_of(3, 2), 0b11000u);
  CHECK_EQ(Shard::mask_of(0, 64), ~std::uint64_t{0});
  CHECK_EQ(Shard::mask_of(63, 1), std::uint64_t{1} << 63);
}

TEST(every_rank_owns_one_shard) {
  for (const Rank size : std::initializer_list<Rank>{1, 2, 3, 64}) {
    for (const std::uint64_t operation :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{65}, std::uint64_t{1} << 40}) {
      const Schedule schedule = schedule_of({1000, DType::Float32, size, 1424}, operation);
      std::vector<int> owned(size, 0);
      for (Rank shard = 0; shard < size; ++shard) {
        const Rank owner = schedule.owner_of(shard);
        CHECK(owner < size);
        ++owned[owner];
        CHECK_EQ(schedule.shard_of(owner), shard);
      }
      for (const int count : owned) CHECK_EQ(count, 1);
    }
  }
}

// A remainder of the operation's number would give a bucket the same owners again and again where a step has
// as many operations as there are ranks, or a multiple.
TEST(a_bucket_meets_all_rotations_equally_often_whatever_the_number_of_operations_in_a_step) {
  constexpr std::uint64_t kSteps = 600;
  for (const Rank size : std::initializer_list<Rank>{2, 3, 4, 8}) {
    for (const std::uint64_t operations : {1u, 2u, 3u, 4u, 5u, 6u, 8u, 12u}) {
      std::vector<std::uint64_t> owned(size, 0);
      for (std::uint64_t step = 0; step < kSteps; ++step)
        ++owned[schedule_of({1000, DType::Float32, size, 1424}, step * operations).owner_of(0)];
      for (const std::uint64_t count : owned) {
        CHECK(count > kSteps / size * 8 / 10);
        CHECK(count < kSteps / size * 12 / 10);
      }
    }
  }
}

TEST(three_ranks_and_one_bucket_in_a_step_meet_all_rotations) {
  constexpr std::uint64_t kOperationsOfAStep = 3;  // the bucket, and two for the step itself
  std::vector<bool> met(3, false);
  for (std::uint64_t step = 0; step < 9; ++step)
    met[schedule_of({1000, DType::Float32, 3, 1424}, step * kOperationsOfAStep).owner_of(0)] = true;
  CHECK(met == std::vector<bool>(3, true));
}

TEST(small_buckets_have_fewer_owners_rather_than_emptier_packets) {
  const auto owners = [](const Sample& s) {
    int count = 0;
    for (Rank shard = 0; shard < s.size; ++shard) count += schedule_of(s).shard(shard).bytes > 0 ? 1 : 0;
    return count;
  };
  CHECK_EQ(owners({16'384, DType::Float32, 8, 65'408}), 3);  // 64 KB in loopback's packets
  CHECK_EQ(owners({16'384, DType::Float32, 8, 1'408}), 8);   // in ordinary ones
  CHECK_EQ(owners({1'024, DType::Float32, 8, 1'408}), 6);
  CHECK_EQ(owners({1, DType::Float32, 8, 1'408}), 1);
}

TEST(the_largest_bucket_is_addressable) {
  for (const Rank size : std::initializer_list<Rank>{1, 2, 64}) {
    const std::size_t largest = Schedule::max_bytes(size);
    const std::size_t elements = largest / 8;
    if (elements > 0xffff'ffffu) continue;  // the element count is the tighter bound
    const Schedule schedule({static_cast<std::uint32_t>(elements), DType::Float64, ReduceOp::Sum}, 0, size,
                            1424, 0);
    CHECK_EQ(schedule.shard(0).bytes, elements * 8 / size);
  }
}

TEST(a_shuffled_shard_is_covered_once) {
  for (const Sample& s : samples()) {
    for (const std::uint64_t operation : {std::uint64_t{0}, std::uint64_t{7}}) {
      const Schedule schedule({s.elements, s.dtype, ReduceOp::Sum}, operation, s.size, s.payload, 99);
      const Shard shard = schedule.shard(0);
      std::vector<int> covered(shard.bytes, 0);
      for (std::uint32_t packet = 0; packet < shard.packets(); ++packet) {
        CHECK(shard.place_of(packet) % size_of(s.dtype) == 0);
        for (std::uint32_t at = 0; at < shard.length_of(packet); ++at)
          ++covered.at(shard.place_of(packet) + at);
      }
      CHECK(std::all_of(covered.begin(), covered.end(), [](int times) { return times == 1; }));
    }
  }
}

TEST(the_end_of_a_shard_is_another_place_in_every_operation) {
  // Over many operations every place is among the last tenth about equally often.
  constexpr std::uint32_t kElements = 40'000;
  constexpr int kOperations = 2'000;
  std::vector<int> among_last(kElements, 0);
  for (int operation = 0; operation < kOperations; ++operation) {
    const Schedule schedule({kElements, DType::Float32, ReduceOp::Mean, true},
                            static_cast<std::uint64_t>(operation), 1, 1408, 42);
    const Shard shard = schedule.shard(0);
    for (std::uint32_t packet = shard.packets() * 9 / 10; packet < shard.packets(); ++packet) {
      for (std::uint32_t at = 0; at < shard.length_of(packet); at += 4)
        ++among_last[(shard.place_of(packet) + at) / 4];
    }
  }
  const auto [least, most] = std::minmax_element(among_last.begin(), among_last.end());
  CHECK(*least > kOperations * 0.07);
  CHECK(*most < kOperations * 0.14);
}

TEST(a_gather_has_equal_parts_in_rank_order) {
  const Schedule schedule({24, DType::Float64, ReduceOp::Gather}, 5, 8, 1408, 0);
  for (Rank rank = 0; rank < 8; ++rank) {
    CHECK_EQ(schedule.owner_of(rank), rank);
    CHECK_EQ(schedule.shard(rank).begin, rank * 24u);
    CHECK_EQ(schedule.shard(rank).bytes, 24u);
  }
}

TEST(packets_of_a_weighted_mean_carry_the_same_pieces_whoever_owns_them) {
  for (const std::uint32_t elements : {1u, 15u, 352u, 353u, 5'000u, 100'003u}) {
    for (const Rank owners : {Rank{1}, Rank{2}, Rank{3}, Rank{7}}) {
      for (const std::uint64_t seed : {0u, 1u, 2u, 3u}) {
        constexpr std::uint32_t kPacket = 1'408;
        const Schedule schedule({elements, DType::Float32, ReduceOp::WeightedMean, true}, seed, owners,
                                kPacket, seed);
        std::size_t bytes = 0;
        for (Rank index = 0; index < owners; ++index) {
          const Shard shard = schedule.shard(index);
          for (std::uint32_t packet = 0; packet < shard.packets(); ++packet) {
            const std::size_t begin = shard.begin + shard.place_of(packet);
            CHECK_EQ(begin % kPacket, 0u);
            CHECK_EQ(std::size_t{shard.length_of(packet)},
                     std::min<std::size_t>(kPacket, schedule.bytes() - begin));
            bytes += shard.length_of(packet);
          }
        }
        CHECK_EQ(bytes, schedule.bytes());
      }
    }
  }
}

RUN_TESTS()
