// Picks the fastest implementation that this CPU can run, once.
#include "kernels/siphash.h"

#include "kernels/siphash_variants.h"

namespace optireduce {
namespace {

SipVariant fastest() {
  if (const SipVariant avx512 = find_siphash_avx512()) return avx512;
  if (const SipVariant avx2 = find_siphash_avx2()) return avx2;
  return &siphash_plain;
}

SipVariant variant() {
  static const SipVariant chosen = fastest();
  return chosen;
}

}  // namespace

std::uint64_t siphash(const SipMessage& message) {
  std::uint64_t hash = 0;
  siphash_plain({&message, 1}, &hash);
  return hash;
}

void siphash(std::span<const SipMessage> messages, std::uint64_t* hashes) {
  variant()(messages, hashes);
}

}  // namespace optireduce
