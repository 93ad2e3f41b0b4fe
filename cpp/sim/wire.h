// Packets between two ranks: copied once when they are sent, shared by all their destinations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "group/config.h"
#include "group/group.h"
#include "wire/packet.h"

namespace optireduce::sim {

/// The packets of one Transmit, header and payload, one after the other.
struct WireBatch {
  static constexpr std::size_t kMaxPackets = 64;    // of one GSO send
  static constexpr std::size_t kMaxBytes = 65'507;  // of one UDP datagram over IPv4, and of one GSO send

  std::vector<std::byte> bytes;
  std::uint32_t segment_bytes = 0;  // of every packet but the last, which may be shorter
  std::uint32_t packets = 0;

  std::uint32_t length_of(std::uint32_t packet) const;
  std::span<const std::byte> packet(std::uint32_t index) const;
};

/// Copies what the group wants sent. Throws std::logic_error if a real socket could not send it.
std::shared_ptr<const WireBatch> assemble(const Transmit& transmit, Rank sender, Rank ranks);

/// One packet on its own, of any length.
std::shared_ptr<const WireBatch> single_packet(std::vector<std::byte> bytes);

/// Packets of one batch on their way to one rank.
struct Delivery {
  std::shared_ptr<const WireBatch> batch;
  std::uint64_t mask = 0;  // which packets of the batch
  Rank from = 0;
  bool coalesced = false;  // may be handed over together, and with what the same sender sent before and after
  Time left{};             // when the last of its packets had left the ingress port

  std::uint32_t packets() const;
  std::size_t bytes() const;
  std::span<const std::byte> first() const;
};

/// Deliveries that events refer to, by number.
class DeliverySlots {
 public:
  std::uint32_t put(Delivery delivery) {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(slots_.size()));
      slots_.emplace_back();
    }
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    slots_[slot] = std::move(delivery);
    return slot;
  }
  Delivery take(std::uint32_t slot) {
    free_.push_back(slot);
    return std::move(slots_[slot]);
  }
  Delivery& operator[](std::uint32_t slot) { return slots_[slot]; }

 private:
  std::vector<Delivery> slots_;
  std::vector<std::uint32_t> free_;
};

/// Packets of one sender in one pooled buffer, as a socket with GRO fills it.
class DatagramBuilder {
 public:
  DatagramBuilder(BufferPool& pool, Rank from, std::size_t capacity) : pool_(pool), capacity_(capacity) {
    datagram_.from = from;
  }

  /// Whether the packet can follow those already there: GRO joins equal lengths until a shorter one.
  bool fits(std::size_t packet_bytes) const;
  void add(std::span<const std::byte> packet);
  bool empty() const { return !datagram_.buffer; }
  /// Leaves the builder empty.
  Datagram take();

 private:
  BufferPool& pool_;
  std::size_t capacity_;
  Datagram datagram_;
  bool closed_ = false;  // by a shorter packet
};

}  // namespace optireduce::sim
