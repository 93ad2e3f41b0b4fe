// A fast hash that tells whether two pieces of memory are equal. Not for secrets: see siphash.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace optireduce {

/// 64 bits of `bytes`, after what `before` stands for. Memory that differs in one word of 8 bytes has another
/// fingerprint in any case.
std::uint64_t fingerprint(std::span<const std::byte> bytes, std::uint64_t before = 0);

}  // namespace optireduce
