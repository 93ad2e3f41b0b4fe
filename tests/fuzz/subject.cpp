#include "subject.h"

#include <algorithm>

#include "../cpp/inspection.h"

namespace fuzz {
namespace {

/// What one call may cause to be sent: windows, answers to each packet of a buffer, requests.
constexpr int kMostBatches = 50'000;
/// Timers that may be due one after the other at one moment: each must have had something to do.
constexpr int kMostTimersAtOnce = 2'000;
/// Held before small runs leave their large buffers (kCompactAboveBytes), and a buffer beyond.
constexpr std::size_t kUncompactedBytes = 8 * 1024 * 1024 + 2 * BufferPool::kLarge;

}  // namespace

void GuardedBucket::check() const {
  const auto marked = [](std::byte each) { return each == kMark; };
  require(std::all_of(memory_.begin(), memory_.begin() + kGuard, marked),
          "nothing is written before a bucket");
  require(std::all_of(memory_.end() - kGuard, memory_.end(), marked), "nothing is written after a bucket");
}

void Subject::start(Time now, Call call) {
  const std::size_t bytes = std::size_t{call.descriptor.elements} * size_of(call.descriptor.dtype);
  started_.push_back({call.descriptor, call.stream, std::make_unique<GuardedBucket>(bytes)});
  started_bytes_ += bytes;
  in_flight_packets_ += bytes / config_.path.payload_bytes + config_.size;
  call.data = started_.back().bucket->data();
  const std::uint64_t number = group_.start(now, call);
  require(number + 1 == started_.size(), "operations are numbered in order");
}

void Subject::receive(Time now, Rank from, std::span<const std::byte> bytes, std::uint32_t segment_bytes) {
  BufferRef buffer = pool_.take(BufferPool::kLarge);  // as an engine does, whatever comes
  std::copy(bytes.begin(), bytes.end(), buffer.data());
  group_.handle_datagram(now,
                         {from, std::move(buffer), static_cast<std::uint32_t>(bytes.size()), segment_bytes});
}

void Subject::close(Time now) {
  closed_ = true;
  group_.say_goodbye(now);
}

Bytes Subject::settle(Time now) {
  Bytes sent;
  send_all(now, sent);
  int timers = 0;
  while (group_.poll_timeout() <= now) {
    require(++timers < kMostTimersAtOnce, "timers move on");
    group_.handle_timeout(now);
    send_all(now, sent);
  }
  take_completions();
  check_limits();
  return sent;
}

void Subject::send_all(Time now, Bytes& sent) {
  Transmit transmit;
  for (int batches = 0; group_.poll_transmit(now, transmit); ++batches) {
    require(batches < kMostBatches, "sending comes to an end");
    require(!transmit.to.empty() && !transmit.segments.empty(), "a batch has packets and receivers");
    for (Rank to : transmit.to) {
      require(to < config_.size && to != config_.rank, "packets go to other ranks of the group");
      sent.push_back(static_cast<std::byte>(to));
    }
    for (const Segment& segment : transmit.segments) {
      sent.insert(sent.end(), segment.header.begin(), segment.header.end());
      sent.insert(sent.end(), segment.payload.begin(), segment.payload.end());
      require(segment.bytes() == transmit.segments.front().bytes() || &segment == &transmit.segments.back(),
              "packets of a batch are equally long");
    }
    std::memcpy(&timestamp_, transmit.segments.front().header.data() + offsetof(Header, timestamp),
                sizeof timestamp_);
  }
}

void Subject::take_completions() {
  while (const auto report = group_.poll_completion()) {
    require(report->operation < started_.size(), "only what was started ends");
    require(ended_.insert(report->operation).second, "an operation ends once");
    started_[report->operation].bucket->check();
  }
  if (group_.idle()) in_flight_packets_ = 0;
}

void Subject::check_limits() const {
  // An early or contributed packet lies at worst alone in the smallest buffer that takes it.
  const std::size_t least = config_.path.payload_bytes + kHeaderBytes <= BufferPool::kSmall
                                ? BufferPool::kSmall
                                : BufferPool::kMedium;
  const std::size_t contributions = in_flight_packets_ * config_.size * std::max(least, BufferPool::kSmall);
  require(pool_.bytes_in_use() <= config_.early_bytes + kUncompactedBytes + contributions,
          "received packets are kept within limits");
  const Inspection seen = inspect(group_);
  require(seen.engine_bytes <= config_.early_bytes + config_.log_bytes + 2 * started_bytes_,
          "decisions are kept within limits");
  require(seen.residual_bytes <= started_bytes_, "residuals are kept within limits");
  std::size_t chunks = 0;
  for (const Started& each : started_)
    chunks += each.bucket->content().size() / config_.path.payload_bytes + config_.size;
  require(seen.waiting_repairs <= 3 * chunks * config_.size, "nothing waits to be sent again twice");
}

void Subject::check_end() const {
  require(ended_.size() == started_.size(), "every operation has its report");
  for (const Started& each : started_) each.bucket->check();
}

}  // namespace fuzz
