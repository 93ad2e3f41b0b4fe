// SipHash-2-4 (Aumasson and Bernstein, 2012): 64 bits that cannot be guessed without the key, whatever else
// was hashed with it. It needs no nonce, so there is none to use twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace optireduce {

struct SipKey {
  std::uint64_t low = 0, high = 0;
};

/// What is hashed: `head` and then `body`, as if they lay one behind the other.
struct SipMessage {
  SipKey key;
  std::span<const std::byte> head;  // whole words of 8 bytes
  std::span<const std::byte> body;
};

std::uint64_t siphash(const SipMessage& message);

/// The hash of each. Neighbours whose parts are equally long are hashed side by side, where the CPU can.
void siphash(std::span<const SipMessage> messages, std::uint64_t* hashes);

}  // namespace optireduce
