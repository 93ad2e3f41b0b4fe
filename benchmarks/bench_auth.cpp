// How fast packets are hashed, as GB/s of payload, beside memcpy of the same payload in the same run.
//
// A batch is what one GSO send or one GRO receive carries: up to 64 KB of packets of one length, that have
// just been written or read. "seal" and "open" are what endpoints do with it, keys and headers included.
// Times are medians of CPU time.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/siphash_variants.h"
#include "race.h"
#include "wire/packet.h"
#include "wire/seal.h"

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

/// The batch as it is received.
std::vector<std::byte> on_the_wire(const Batch& batch) {
  std::vector<std::byte> packets;
  for (const Segment& segment : batch.segments) {
    packets.insert(packets.end(), segment.header.begin(), segment.header.end());
    packets.insert(packets.end(), segment.payload.begin(), segment.payload.end());
  }
  return packets;
}

void print_row(std::size_t payload_bytes) {
  Batch batch(payload_bytes);
  const std::size_t bytes = batch.memory.size();
  const Seal seal(kKey, 0);
  seal.close(batch.segments, 0);
  const std::vector<std::byte> received = on_the_wire(batch);
  std::vector<bool> genuine;
  const auto with = [&](SipVariant variant) {
    return [&, variant = variant != nullptr ? variant : &siphash_plain] {
      variant(batch.messages, batch.hashes.data());
    };
  };
  const SipVariant avx2 = find_siphash_avx2(), avx512 = find_siphash_avx512();
  const auto times =
      race({with(&siphash_plain), with(avx2), with(avx512), [&] { seal.close(batch.segments, 1); },
            [&] { seal.open_all(received, kHeaderBytes + payload_bytes, genuine); },
            [&] { std::memcpy(batch.copy.data() + kApart, batch.memory.data(), bytes); }},
           std::max<std::size_t>(1, kRoundBytes / bytes), kRounds);
  const auto speed = [&](std::size_t i) { return static_cast<double>(bytes) / times[i] / 1e9; };
  std::printf("%10zu %8zu %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f\n", payload_bytes, batch.packets,
              speed(0), avx2 != nullptr ? speed(1) : 0.0, avx512 != nullptr ? speed(2) : 0.0, speed(3),
              speed(4), speed(5), speed(3) / speed(5));
}

}  // namespace

int main() {
  std::printf("# SipHash-2-4 over batches of equal packets, GB/s of payload (0: this CPU cannot)\n");
  std::printf("# %8s %8s %9s %9s %9s %9s %9s %9s %9s\n", "payload", "packets", "plain", "avx2", "avx512",
              "seal", "open", "memcpy", "seal/");
  std::printf("# %8s %8s %9s %9s %9s %9s %9s %9s %9s\n", "(B)", "", "(GB/s)", "(GB/s)", "(GB/s)", "(GB/s)",
              "(GB/s)", "(GB/s)", "memcpy");
  for (const std::size_t payload_bytes : {64, 512, 1344, 1408, 8'896, 65'408}) print_row(payload_bytes);
}
