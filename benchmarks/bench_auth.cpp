// How fast packets are hashed, as GB/s of payload, beside memcpy of the same payload in the same run.
//
// A batch is what one GSO send or one GRO receive carries: up to 64 KB of packets of one length, that have
// just been written or read. "seal" is what an endpoint does with it, keys and headers included. Times are
// medians of CPU time.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/siphash_variants.h"
#include "proto/packet.h"
#include "proto/seal.h"
#include "proto/transmit.h"
#include "race.h"

using namespace optireduce;

namespace {

constexpr SipKey kKey{1, 2};
constexpr std::size_t kBatchBytes = 65'507;
constexpr std::size_t kMostPackets = 64;
/// Source and destination of a copy must not lie at equal places of their pages, which is slow.
constexpr std::size_t kApart = 2048;
constexpr std::size_t kRounds = 9;
/// Repetitions in one round add up to about this much payload, enough for the clock.
constexpr std::size_t kRoundBytes = 20 * 1000 * 1000;

/// A batch as it is before it is sent: headers apart, payloads one behind the other.
struct Batch {
  explicit Batch(std::size_t payload_bytes)
      : packets(std::clamp<std::size_t>(kBatchBytes / (kHeaderBytes + payload_bytes), 1, kMostPackets)),
        memory(packets * payload_bytes, std::byte{0x3f}),
        copy(memory.size() + kApart),
        hashes(packets),
        segments(packets) {
    for (std::size_t i = 0; i < packets; ++i) {
      segments[i].payload = std::span(memory).subspan(i * payload_bytes, payload_bytes);
      encode_fields(Header{}, segments[i].header.data());
      messages.push_back({kKey, std::span(segments[i].header).first(kSealAt), segments[i].payload});
    }
  }

  std::size_t packets;
  std::vector<std::byte> memory, copy;
  std::vector<std::uint64_t> hashes;
  std::vector<Segment> segments;
  std::vector<SipMessage> messages;
};

void print_row(std::size_t payload_bytes) {
  Batch batch(payload_bytes);
  const std::size_t bytes = batch.memory.size();
  const Seal seal(kKey, 0);
  const SipVariant avx2 = find_siphash_avx2();
  const auto with = [&](SipVariant variant) {
    return [&, variant] { variant(batch.messages, batch.hashes.data()); };
  };
  const auto times = race({with(&siphash_plain), with(avx2 != nullptr ? avx2 : &siphash_plain),
                           [&] { seal.close(batch.segments, 1); },
                           [&] { std::memcpy(batch.copy.data() + kApart, batch.memory.data(), bytes); }},
                          std::max<std::size_t>(1, kRoundBytes / bytes), kRounds);
  const auto speed = [&](std::size_t i) { return static_cast<double>(bytes) / times[i] / 1e9; };
  std::printf("%10zu %8zu %9.2f %9.2f %9.2f %9.2f %9.2f\n", payload_bytes, batch.packets, speed(0),
              avx2 != nullptr ? speed(1) : 0.0, speed(2), speed(3), speed(2) / speed(3));
}

}  // namespace

int main() {
  std::printf("# SipHash-2-4 over batches of equal packets, GB/s of payload (0: this CPU has no AVX2)\n");
  std::printf("# %8s %8s %9s %9s %9s %9s %9s\n", "payload", "packets", "plain", "avx2", "seal", "memcpy",
              "seal/");
  std::printf("# %8s %8s %9s %9s %9s %9s %9s\n", "(B)", "", "(GB/s)", "(GB/s)", "(GB/s)", "(GB/s)", "memcpy");
  for (const std::size_t payload_bytes : {64, 512, 1344, 1408, 8'896, 65'408}) print_row(payload_bytes);
}
