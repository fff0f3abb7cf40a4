// Reads host elements of any dtype, possibly unaligned, as float or double.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/core/matrix_view.h"

namespace fox {

inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

template <typename T>
T LoadElement(const void* data, DType dtype, int64_t index) {
  const std::byte* at =
      static_cast<const std::byte*>(data) + static_cast<size_t>(index) * SizeOf(dtype);
  if (dtype == DType::kF64) {
    double value;
    std::memcpy(&value, at, sizeof(value));
    return static_cast<T>(value);
  }
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return static_cast<T>(value);
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  if (dtype == DType::kF16) return static_cast<T>(HalfToFloat(bits));
  return static_cast<T>(std::bit_cast<float>(static_cast<uint32_t>(bits) << 16));
}

// One row of `in`, out [in.cols].
template <typename T>
void LoadElements(const MatrixView& in, int64_t row, T* out) {
  for (int64_t i = 0; i < in.cols; ++i) {
    out[i] = LoadElement<T>(in.data, in.dtype, row * in.row_stride + i);
  }
}

}  // namespace fox
