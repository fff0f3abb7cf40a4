// Formats of rounded weights. kE4M3 has a power of two for each row (e4m3.h). kQ8 and kQ4 are
// GGUF's Q8_0 and Q4_0: blocks of 32 columns, each a half-precision scale times integers of 8 or 4
// bits. Source: quantize_row_q8_0_ref and quantize_row_q4_0_ref of ggml-quants.c.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/e4m3.h"
#include "kernels/core/load_element.h"

namespace fox {

enum class WeightFormat : uint8_t { kE4M3, kQ8, kQ4 };

inline constexpr int64_t kBlockColumns = 32;

// The nearest half-precision number, ties to even; beyond 65504, that number.
inline uint16_t FloatToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half = 0x7bffu;
  if (magnitude < 0x38800000u) {  // subnormal: the last place of numbers from 0.5 to 1 is 2^-24
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else if (magnitude < 0x477ff000u) {
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

// Rounds a block of 32 finite weights to codes from -127 to 127, or from -8 to 7; returns its
// scale. A rounded block stays as it is.
inline uint16_t RoundBlock(WeightFormat format, const float* block, int8_t* codes) {
  float largest = 0;  // in magnitude
  for (int64_t k = 0; k < kBlockColumns; ++k) {
    if (std::abs(block[k]) > std::abs(largest)) largest = block[k];
  }
  const bool q8 = format == WeightFormat::kQ8;
  const float scale = q8 ? std::abs(largest) / 127 : largest / -8;
  const float inverse = scale == 0 ? 0 : 1 / scale;
  for (int64_t k = 0; k < kBlockColumns; ++k) {
    if (q8) {
      codes[k] = static_cast<int8_t>(std::round(block[k] * inverse));
    } else {  // in float64, as the source with fused multiply-adds
      const double code = static_cast<double>(block[k]) * static_cast<double>(inverse) + 8.5;
      codes[k] = static_cast<int8_t>(std::min(static_cast<int>(code), 15) - 8);
    }
  }
  return FloatToHalf(scale);
}

// Rounds a row of finite weights in place.
inline void RoundRow(WeightFormat format, float* row, int64_t count) {
  if (format == WeightFormat::kE4M3) return RoundToE4M3(row, count);
  for (int64_t first = 0; first < count; first += kBlockColumns) {
    const int64_t width = std::min(kBlockColumns, count - first);
    float block[kBlockColumns] = {};
    int8_t codes[kBlockColumns];
    std::copy_n(row + first, width, block);
    const float scale = HalfToFloat(RoundBlock(format, block, codes));
    for (int64_t k = 0; k < width; ++k) row[first + k] = scale * static_cast<float>(codes[k]);
  }
}

}  // namespace fox
