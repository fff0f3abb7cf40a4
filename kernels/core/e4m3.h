// Numbers of 8 bits, of weights and of pages: a row is e4m3 codes (sign, 4 bits of exponent, 3 of
// mantissa; magnitudes up to 448) times a power of two of its own, which bf16 and wider types hold
// exactly.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/host_device.h"

namespace fox {

// The exponent of a row with a NaN or infinity, all of which becomes NaN: the power is infinite and
// its codes are zero.
inline constexpr int kNoExponent = -128;

// REQUIRES: -126 <= exponent <= 127, or kNoExponent.
FOX_HOST_DEVICE inline float PowerOfTwo(int exponent) {
  return BitCast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// The code nearest to a finite `value`, ties to even; beyond 448, the code of 448. Without
// branches, so that loops over a row become vector instructions.
FOX_HOST_DEVICE inline uint8_t NearestE4M3(float value) {
  constexpr uint32_t kLeast = 0x3c800000u;  // 2^-6, the smallest normal number
  const auto bits = BitCast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  // The power of two whose last place is the codes' step: 2^20 times the leading power of two of
  // the value, or of the smallest normal number if that is larger.
  const uint32_t power = (magnitude > kLeast ? magnitude : kLeast) & 0x7f800000u;
  const float large = BitCast<float>(power + (20u << 23));
  const float rounded = (BitCast<float>(magnitude) + large) - large;
  const uint32_t code = BitCast<uint32_t>(rounded * 0x1p-120f) >> 20;
  return static_cast<uint8_t>((code < 0x7eu ? code : 0x7eu) | (bits >> 24 & 0x80u));
}

// The number that a code other than NaN's (0x7f, 0xff) stands for in a row of this exponent.
inline BFloat16 E4M3Value(uint8_t code, int exponent) {
  // In the place of a float32's bits a code's are 2^-120 times the number, subnormal or not.
  const float magnitude = BitCast<float>((code & 0x7fu) << 20) * 0x1p120f * PowerOfTwo(exponent);
  BFloat16 value{};
  value.bits = static_cast<uint16_t>(BitCast<uint32_t>(magnitude) >> 16 | (code & 0x80u) << 8);
  return value;
}

// Exponent of a row whose largest magnitude has the bits `largest`: the smallest one whose power of
// two times 448 reaches that magnitude, clamped to [-117, 119], the range that bf16 can hold;
// kNoExponent if the row has a NaN or infinity.
FOX_HOST_DEVICE inline int E4M3Exponent(uint32_t largest) {
  if (largest >= 0x7f800000u) return kNoExponent;
  const bool low = (largest & 0x7fffffu) <= 0x600000u;  // at most 1.75 times a power of two
  const int exponent = static_cast<int>(largest >> 23) - (low ? 135 : 134);
  return exponent < -117 ? -117 : exponent > 119 ? 119 : exponent;
}

// Rounds a row once; returns its exponent. A rounded row stays as it is.
inline int EncodeE4M3(const float* row, int64_t count, uint8_t* codes) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i)
    largest = std::max(largest, BitCast<uint32_t>(row[i]) & 0x7fffffffu);
  const int exponent = E4M3Exponent(largest);
  const float scale = exponent == kNoExponent ? 0 : PowerOfTwo(-exponent);
  for (int64_t i = 0; i < count; ++i) codes[i] = NearestE4M3(row[i] * scale);
  if (exponent == kNoExponent) std::fill_n(codes, count, uint8_t{0});
  return exponent;
}

// Rounds a row in place.
inline void RoundToE4M3(float* row, int64_t count) {
  std::vector<uint8_t> codes(static_cast<size_t>(count));
  const int exponent = EncodeE4M3(row, count, codes.data());
  std::transform(codes.begin(), codes.end(), row, [exponent](uint8_t code) {
    return static_cast<float>(E4M3Value(code, exponent));
  });
}

}  // namespace fox
