#include "sim/wire.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace optireduce::sim {
namespace {

[[noreturn]] void bad_transmit(Rank sender, const std::string& what) {
  throw std::logic_error("rank " + std::to_string(sender) + " wants to send " + what);
}

void check_destinations(const Transmit& transmit, Rank sender, Rank ranks) {
  if (transmit.to.empty()) bad_transmit(sender, "a batch to nobody");
  for (const Rank to : transmit.to) {
    if (to == sender || to >= ranks) bad_transmit(sender, "a batch to rank " + std::to_string(to));
  }
}

void check_segments(const Transmit& transmit, Rank sender) {
  const auto& segments = transmit.segments;
  if (segments.empty() || segments.size() > WireBatch::kMaxPackets) {
    bad_transmit(sender, std::to_string(segments.size()) + " packets at once; 1 to 64 fit one call");
  }
  std::size_t total = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const std::size_t bytes = segments[i].bytes();
    const bool last = i + 1 == segments.size();
    total += bytes;
    if (last ? bytes > segments[0].bytes() : bytes != segments[0].bytes()) {
      bad_transmit(sender, "unequal packets at once: " + std::to_string(segments[0].bytes()) + " and " +
                               std::to_string(bytes) + " bytes");
    }
  }
  if (total > WireBatch::kMaxBytes) bad_transmit(sender, std::to_string(total) + " bytes at once; 65507 fit");
}

}  // namespace

std::uint32_t WireBatch::length_of(std::uint32_t index) const {
  const bool last = index + 1 == packets;
  return last ? static_cast<std::uint32_t>(bytes.size()) - index * segment_bytes : segment_bytes;
}

std::span<const std::byte> WireBatch::packet(std::uint32_t index) const {
  return std::span(bytes).subspan(std::size_t{index} * segment_bytes, length_of(index));
}

std::shared_ptr<const WireBatch> assemble(const Transmit& transmit, Rank sender, Rank ranks) {
  check_destinations(transmit, sender, ranks);
  check_segments(transmit, sender);
  auto batch = std::make_shared<WireBatch>();
  batch->segment_bytes = static_cast<std::uint32_t>(transmit.segments[0].bytes());
  batch->packets = static_cast<std::uint32_t>(transmit.segments.size());
  batch->bytes.reserve(std::size_t{batch->segment_bytes} * batch->packets);
  for (const Segment& segment : transmit.segments) {
    batch->bytes.insert(batch->bytes.end(), segment.header.begin(), segment.header.end());
    batch->bytes.insert(batch->bytes.end(), segment.payload.begin(), segment.payload.end());
  }
  return batch;
}

std::shared_ptr<const WireBatch> single_packet(std::vector<std::byte> bytes) {
  auto batch = std::make_shared<WireBatch>();
  batch->segment_bytes = static_cast<std::uint32_t>(bytes.size());
  batch->packets = 1;
  batch->bytes = std::move(bytes);
  return batch;
}

std::uint32_t Delivery::packets() const {
  return static_cast<std::uint32_t>(std::popcount(mask));
}

std::size_t Delivery::bytes() const {
  const std::uint32_t last = batch->packets - 1;
  const std::size_t shorter = mask >> last & 1 ? batch->segment_bytes - batch->length_of(last) : 0;
  return std::size_t{packets()} * batch->segment_bytes - shorter;
}

std::span<const std::byte> Delivery::first() const {
  return batch->packet(static_cast<std::uint32_t>(std::countr_zero(mask)));
}

bool DatagramBuilder::fits(std::size_t packet_bytes) const {
  if (empty()) return true;
  return !closed_ && packet_bytes > 0 && packet_bytes <= datagram_.segment_bytes &&
         datagram_.bytes + packet_bytes <= capacity_;
}

void DatagramBuilder::add(std::span<const std::byte> packet) {
  const auto bytes = static_cast<std::uint32_t>(packet.size());
  if (empty()) {
    datagram_.buffer = pool_.take(capacity_);
    datagram_.segment_bytes = bytes;
  }
  std::copy(packet.begin(), packet.end(), datagram_.buffer.data() + datagram_.bytes);
  datagram_.bytes += bytes;
  closed_ = bytes < datagram_.segment_bytes;
}

Datagram DatagramBuilder::take() {
  closed_ = false;
  const Rank from = datagram_.from;
  return std::exchange(datagram_, Datagram{from, {}, 0, 0});
}

}  // namespace optireduce::sim
