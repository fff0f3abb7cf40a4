// Philox4x32-10: the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3" (SC 2011). A pure function of (counter, key): a token's randomness
// depends on its request's seed, its position and its id, never on its neighbours; the same on the
// host and on the device.
#pragma once

#include <cstdint>

#include "kernels/core/host_device.h"

namespace fox {

struct PhiloxCounter {
  uint32_t x0, x1, x2, x3;
  bool operator==(const PhiloxCounter&) const = default;
};

struct PhiloxKey {
  uint32_t k0, k1;
};

FOX_HOST_DEVICE constexpr PhiloxCounter Philox4x32(PhiloxCounter counter, PhiloxKey key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter.x0;
    const uint64_t b = uint64_t{0xCD9E8D57} * counter.x2;
    counter = {static_cast<uint32_t>(b >> 32) ^ counter.x1 ^ key.k0, static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter.x3 ^ key.k1, static_cast<uint32_t>(a)};
    key.k0 += 0x9E3779B9;  // the golden ratio
    key.k1 += 0xBB67AE85;  // sqrt(3) - 1
  }
  return counter;
}

}  // namespace fox
