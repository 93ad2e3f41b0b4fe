// What a rank answers when the owner of a shard asks for its contribution again.
#include <cstddef>
#include <vector>

#include "check.h"
#include "proto/foreign_shard.h"

using namespace optireduce;

namespace {

constexpr std::uint32_t kPacketBytes = 128;
constexpr std::uint32_t kPackets = 8;
constexpr std::uint32_t kBytes = kPackets * kPacketBytes;
constexpr RequestEntry kEverything{0, Shard::mask_of(0, kPackets)};
constexpr RequestContext kLongAfter{3, 1'000, 1'000'000, 10};

Shard shard() {
  return {.begin = 0, .bytes = kBytes, .payload_bytes = kPacketBytes, .chunk_packets = kPackets, .order = {}};
}

}  // namespace

/// The owner was absent, so nothing was sent to it, and nothing rounded: there is no narrow contribution.
TEST(what_was_never_rounded_is_not_sent_again) {
  std::vector<float> values(kBytes / 2, 1.0F);
  std::vector<std::byte> narrow(kBytes);
  const Wide wide({values.data(), values.size(), 0}, DType::BFloat16);
  ForeignShard foreign(shard(), narrow.data(), wide, Time{}, true);
  foreign.stop_sending();
  CHECK_EQ(foreign.to_repair(kEverything, kLongAfter), std::uint64_t{0});
}

/// Without rounding it lies where it always lay, and may as well be sent.
TEST(what_travels_as_it_is_can_be_sent_although_it_was_not_before) {
  std::vector<std::byte> data(kBytes);
  ForeignShard foreign(shard(), data.data(), Wide(), Time{}, true);
  foreign.stop_sending();
  CHECK_EQ(foreign.to_repair(kEverything, kLongAfter), kEverything.missing);
}

RUN_TESTS()
