// Element types of tensors, and bfloat16 as a value type with round-to-nearest-even conversion.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace fox {

// kE4M3 (e4m3.h): of pages alone.
enum class DType : uint8_t { kF64, kF32, kBF16, kF16, kE4M3 };

constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 8;
    case DType::kF32:
      return 4;
    case DType::kE4M3:
      return 1;
    default:
      return 2;
  }
}

constexpr const char* NameOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "f64";
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kE4M3:
      return "fp8";
    default:
      return "f16";
  }
}

// The upper half of a float32.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? static_cast<uint16_t>((u >> 16) | 0x40u)
               : static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

}  // namespace fox
