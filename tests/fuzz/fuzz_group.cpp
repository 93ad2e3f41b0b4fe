// The group's state machine against peers that know the session's secret and say anything, and against
// strangers that do not know it.
//
// The input is a script: operations are started, packets come, time passes. Two groups follow it; one of
// them also gets the strangers' packets. Nothing that can be seen from outside may differ but two counters.
#include <algorithm>

#include "peers.h"

namespace {

using namespace optireduce;
using namespace fuzz;

constexpr std::uint32_t kPayloads[] = {64, 512, 1408, 8896};
constexpr std::size_t kMostOperations = 48;
constexpr std::size_t kMostBucketBytes = 128 * 1024;
constexpr int kMostEndSteps = 5'000;

GroupConfig config_of(Input& input) {
  GroupConfig config;
  config.size = static_cast<Rank>(2 + input.below(5));
  config.seal = Seal(kSecret, kSubject);
  config.path.payload_bytes = kPayloads[input.below(4)];
  config.path.window_bytes = 64 * 1024;
  config.early_bytes = 256 * 1024;
  config.log_bytes = 64 * 1024;
  const std::uint8_t choices = input.byte();
  config.best_effort.warmup_operations = choices & 3u;
  config.fixed_membership = (choices & 4) == 0;
  config.shuffle = (choices & 8) == 0;
  config.delivery = (choices & 16) == 0 ? Delivery::Carry : Delivery::BestEffort;
  config.max_lag = choices >> 5 & 1u;
  config.min_ranks = static_cast<Rank>(choices >> 6 & 1);
  config.quorum_wait = Duration::millis(100) * (choices >> 4 & 3);
  config.exact_silence = Duration::millis(500);
  config.multicast = (choices & 128) != 0;
  return config;
}

class Script {
 public:
  explicit Script(Input& input)
      : input_(input), config_(config_of(input)), visited_(config_), left_alone_(config_), peers_(config_) {}

  void run() {
    while (!input_.empty()) {
      step();
      settle();
    }
    finish();
  }

 private:
  void step() {
    const std::uint32_t command = input_.below(16);
    if (command < 7) return deliver(peers_.speak(input_, left_alone_, kSecret));
    if (command == 7) return strangers(peers_.speak(input_, left_alone_, kWrongSecret));
    if (command == 8) return deliver_beside_stranger(peers_.speak(input_, left_alone_, kSecret));
    if (command == 9) return deliver(peers_.babble(input_, kSecret));
    if (command == 10) return strangers(peers_.babble(input_, kWrongSecret));
    if (command == 11) return pass(Duration::micros(std::int64_t{input_.byte()} * input_.byte()));
    if (command == 12) return wake();
    if (command < 15) return start();
    rare();
  }

  void rare() {
    const std::uint32_t choice = input_.below(8);
    both([&](Subject& each) {
      if (choice == 0 && !each.closed()) each.close(now_);
      if (choice == 1) each.group().ping_silent_peers();
      if (choice == 2) each.group().ping_unfinished_peers();
    });
    if (choice == 3) both([&](Subject& each) { each.group().release(now_); });
    if (choice == 4) {
      const Duration how_long = Duration::millis(4 * std::int64_t{input_.byte()});
      both([&](Subject& each) { each.group().stood_still(now_, how_long); });
    }
    if (choice == 5) both([&](Subject& each) { each.group().take_residual(1); });
    if (choice > 5) pass(Duration::millis(choice * 10));
  }

  void start() {
    Descriptor descriptor;
    descriptor.dtype = static_cast<DType>(input_.below(static_cast<unsigned>(DType::Last) + 1));
    const std::uint32_t most = static_cast<std::uint32_t>(kMostBucketBytes / size_of(descriptor.dtype));
    descriptor.elements = input_.take<std::uint16_t>() % most;
    const std::uint8_t how = input_.byte();
    descriptor.op = static_cast<ReduceOp>(how % 4);
    descriptor.bounded = (how & 4) != 0 && descriptor.op != ReduceOp::Gather;
    if (descriptor.op == ReduceOp::Gather) descriptor.elements -= descriptor.elements % config_.size;
    Call call{.descriptor = descriptor};
    call.timeout = Duration::millis(200 + 8 * input_.byte());
    call.weight = (how & 8) != 0 ? 0 : 1 + (how >> 4 & 1u);
    call.stream = descriptor.bounded ? 1 + (how >> 6) : 0;
    call.step = step_ += how >> 5 & 1u;
    call.stays_readable = (how & 16) != 0;
    if (left_alone_.closed() || left_alone_.started().size() >= kMostOperations) return;
    both([&](Subject& each) { each.start(now_, call); });
  }

  void deliver(const Peers::Volley& volley) {
    both([&](Subject& each) { each.receive(now_, volley.from, volley.bytes, volley.segment_bytes); });
  }
  /// The kernel may merge packets of one flow: one that only looks like the others is not taken for one of
  /// them, and does not spoil them. The last is the stranger's, or a copy of the only one goes before it.
  void deliver_beside_stranger(const Peers::Volley& volley) {
    if (volley.bytes.empty()) return;  // its packets would have been larger than any
    const std::size_t last = (volley.bytes.size() - 1) / volley.segment_bytes * volley.segment_bytes;
    Bytes merged = volley.bytes;
    seal_raw(std::span(merged).subspan(last), kWrongSecret);
    if (last == 0) merged.insert(merged.end(), volley.bytes.begin(), volley.bytes.end());
    if (merged.size() > BufferPool::kLarge) return deliver(volley);
    const std::span<const std::byte> genuine(volley.bytes.data(), last == 0 ? volley.bytes.size() : last);
    visited_.receive(now_, volley.from, merged, volley.segment_bytes);
    left_alone_.receive(now_, volley.from, genuine, volley.segment_bytes);
  }
  void strangers(const Peers::Volley& volley) {
    visited_.receive(now_, volley.from, volley.bytes, volley.segment_bytes);
  }
  void pass(Duration time) { now_ = now_ + time; }
  void wake() {
    const Time due = left_alone_.group().poll_timeout();
    if (due != Time::never()) now_ = std::max(now_, due);
  }

  template <typename Do>
  void both(Do what) {
    what(visited_);
    what(left_alone_);
  }

  void settle() {
    const Bytes a = visited_.settle(now_);
    const Bytes b = left_alone_.settle(now_);
    require(a == b, "strangers change nothing of what is sent");
    require(visited_.group().poll_timeout() == left_alone_.group().poll_timeout(), "strangers set no timer");
  }

  /// Nobody says anything more: everything ends by itself, and equally.
  void finish() {
    for (int i = 0; i < kMostEndSteps && !left_alone_.done(); ++i) {
      wake();
      settle();
      pass(Duration::millis(5));
    }
    both([](Subject& each) { each.check_end(); });
    Stats a = visited_.group().stats();
    const Stats b = left_alone_.group().stats();
    a.forged_packets = b.forged_packets;
    a.invalid_packets = b.invalid_packets;
    require(std::memcmp(&a, &b, sizeof a) == 0, "strangers change no other counter");
    for (std::size_t i = 0; i < visited_.started().size(); ++i) {
      require(std::ranges::equal(visited_.started()[i].bucket->content(),
                                 left_alone_.started()[i].bucket->content()),
              "strangers change no result");
    }
  }

  Input& input_;
  GroupConfig config_;
  Subject visited_, left_alone_;
  Peers peers_;
  Time now_ = {1'000'000'000};
  std::uint64_t step_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  Script(input).run();
  return 0;
}
