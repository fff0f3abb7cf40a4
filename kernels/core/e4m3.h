// Numbers of 8 bits, of weights and of pages: a row is e4m3 codes (sign, 4 bits of exponent, 3 of
// mantissa; magnitudes up to 448) times a power of two of its own, which bf16 and wider types hold
// exactly.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/core/dtype.h"

namespace fox {

// The exponent of a row with a NaN or infinity, all of which becomes NaN: the power is infinite and
// its codes are zero.
inline constexpr int kNoExponent = -128;

// REQUIRES: -126 <= exponent <= 127, or kNoExponent.
constexpr float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// The code nearest to a finite `value`, ties to even; beyond 448, that of 448. Without branches, so
// that loops over a row become vector instructions.
inline uint8_t NearestE4M3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  // The power of two whose last place is the codes' step: 2^20 times that of the value, or of the
  // smallest normal number.
  const uint32_t power = std::max(magnitude, std::bit_cast<uint32_t>(0x1p-6f)) & 0x7f800000u;
  const float large = std::bit_cast<float>(power + (20u << 23));
  const float rounded = (std::bit_cast<float>(magnitude) + large) - large;
  const uint32_t code = std::min(std::bit_cast<uint32_t>(rounded * 0x1p-120f) >> 20, 0x7eu);
  return static_cast<uint8_t>(code | (bits >> 24 & 0x80u));
}

// The number that a code other than NaN's (0x7f, 0xff) stands for in a row of this exponent.
inline BFloat16 E4M3Value(uint8_t code, int exponent) {
  // In the place of a float32's bits a code's are 2^-120 times the number, subnormal or not.
  const float magnitude =
      std::bit_cast<float>((code & 0x7fu) << 20) * 0x1p120f * PowerOfTwo(exponent);
  BFloat16 value{};
  value.bits =
      static_cast<uint16_t>(std::bit_cast<uint32_t>(magnitude) >> 16 | (code & 0x80u) << 8);
  return value;
}

// Rounds a row once; returns its exponent: kNoExponent or the smallest with which the largest
// magnitude is at most 448 (so above 224), but for what bf16 cannot hold in [-117, 119]. A rounded
// row stays as it is.
inline int EncodeE4M3(const float* row, int64_t count, uint8_t* codes) {
  uint32_t largest = 0;  // as an integer
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(row[i]) & 0x7fffffffu);
  }
  if (largest >= 0x7f800000u) {
    std::fill_n(codes, count, uint8_t{0});
    return kNoExponent;
  }
  int exponent = 0;
  const float fraction = std::frexp(std::bit_cast<float>(largest), &exponent);
  exponent = std::clamp(exponent - (fraction <= 448.0f / 512 ? 9 : 8), -117, 119);
  const float scale = PowerOfTwo(-exponent);
  for (int64_t i = 0; i < count; ++i) codes[i] = NearestE4M3(row[i] * scale);
  return exponent;
}

}  // namespace fox
