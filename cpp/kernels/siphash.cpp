// Picks the fastest implementation that this CPU can run, once.
#include "kernels/siphash.h"

#include "kernels/siphash_variants.h"

namespace optireduce {
namespace {

SipVariant variant() {
  static const SipVariant avx2 = find_siphash_avx2();
  static const SipVariant chosen = avx2 != nullptr ? avx2 : &siphash_plain;
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
