// SamplingDigest: the bits of sampling's arithmetic for many inputs as one number, which every
// compiler and processor has to agree on, as numpy does: one rounding an operation, nothing fused.
#pragma once

#include <cstdint>

#include "kernels/core/sampling_arithmetic.h"

namespace fox {

class SamplingDigest {
 public:
  static constexpr uint32_t kCount = 1 << 20;
  static constexpr uint64_t kExpected = 0xecfc71aaeff91375;

  // The bits for input i, well mixed.
  FOX_HOST_DEVICE static uint64_t Of(uint32_t i) {
    const uint32_t word = i * 2654435761u >> (i % 29);  // all magnitudes
    const uint64_t noise = BitCast<uint32_t>(RaceNoise(word, RaceScale(0.7f)));
    const float x = RoundedProduct(static_cast<float>(i), -0x1.6p-14f);  // down to -88
    const uint64_t weight = BitCast<uint32_t>(Weight(x, 0, InverseTemperature(0.9f)));
    return ((noise << 32) | weight) * (2 * uint64_t{i} + 1);
  }

  void Add(uint64_t bits) { value_ += bits; }  // in any order
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

}  // namespace fox
