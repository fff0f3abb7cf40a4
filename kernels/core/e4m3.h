// Weights of 8 bits: a row is e4m3 codes (sign, 4 bits of exponent, 3 of mantissa; magnitudes up to
// 448) times a power of two of its own, which bf16 and wider types hold exactly.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/core/dtype.h"

namespace fox {

// REQUIRES: -126 <= exponent <= 127.
constexpr float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// The code nearest to a finite `value`, ties to even; beyond 448, that of 448.
inline uint8_t NearestE4M3(float value) {
  const float magnitude = std::min(std::abs(value), 448.0f);
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t normal = ((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - (120u << 3);
  // Multiples of 2^-9 are the last place of numbers from 2^14 on.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(magnitude + 0x1p14f) - std::bit_cast<uint32_t>(0x1p14f);
  return static_cast<uint8_t>((magnitude < 0x1p-6f ? subnormal : normal) |
                              (std::signbit(value) ? 0x80u : 0u));
}

// The number that a code other than NaN's (0x7f, 0xff) stands for in a row of this exponent.
inline BFloat16 E4M3Value(uint8_t code, int exponent) {
  const uint32_t magnitude = code & 0x7fu;
  const float value = magnitude < 8 ? static_cast<float>(magnitude) * 0x1p-9f
                                    : std::bit_cast<float>((magnitude << 20) + (120u << 23));
  return BFloat16((code < 0x80 ? value : -value) * PowerOfTwo(exponent));
}

// Rounds a row of finite numbers once; returns its exponent, the smallest with which the largest
// magnitude is at most 448 (so above 224), but for what bf16 cannot hold in [-117, 119]. A rounded
// row stays as it is.
inline int EncodeE4M3(const float* row, int64_t count, uint8_t* codes) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(row[i]));
  int exponent = 0;
  const float fraction = std::frexp(largest, &exponent);
  exponent = std::clamp(exponent - (fraction <= 448.0f / 512 ? 9 : 8), -117, 119);
  const float scale = PowerOfTwo(-exponent);
  for (int64_t i = 0; i < count; ++i) codes[i] = NearestE4M3(row[i] * scale);
  return exponent;
}

}  // namespace fox
