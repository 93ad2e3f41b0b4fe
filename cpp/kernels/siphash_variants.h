// The implementations behind siphash(), one for each instruction set. They give equal bits: siphash() and the
// tests may pick any that this CPU can run.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/siphash.h"

namespace optireduce {

using SipVariant = void (*)(std::span<const SipMessage> messages, std::uint64_t* hashes);

/// Runs everywhere: two messages in turns.
void siphash_plain(std::span<const SipMessage> messages, std::uint64_t* hashes);

/// Four messages at once, or twice four in turns, for x86 with AVX2; nullptr where the CPU lacks it.
SipVariant find_siphash_avx2();

/// Eight, or twice eight, with AVX-512F; four and fewer with AVX2.
SipVariant find_siphash_avx512();

}  // namespace optireduce
