// Element access of HostTensor. The loops load through memcpy because safetensors promises no
// alignment; compilers turn that into plain (vector) loads.
#include "models/host_tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/core/check.h"

namespace fox {
namespace {

template <typename Raw>
Raw Load(const std::byte* data, int64_t index) {
  Raw value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(Raw)), sizeof(Raw));
  return value;
}

template <typename T>
void Read(const HostTensor& tensor, int64_t first, int64_t count, T* out) {
  FOX_CHECK(first >= 0 && count >= 0 && first <= tensor.size() - count);
  const std::byte* data = tensor.data + first * static_cast<int64_t>(SizeOf(tensor.dtype));
  switch (tensor.dtype) {
    case DType::kF64:
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(Load<double>(data, i));
      return;
    case DType::kF32:
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(Load<float>(data, i));
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t high = static_cast<uint32_t>(Load<uint16_t>(data, i)) << 16;
        out[i] = static_cast<T>(std::bit_cast<float>(high));
      }
      return;
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) {
        out[i] = static_cast<T>(HalfToFloat(Load<uint16_t>(data, i)));
      }
      return;
  }
}

// A floating-point value is NaN or infinite exactly when all bits of its exponent are set. The
// count is of the type of the elements so that the inner loop stays at full vector width; a block
// is short enough for it not to overflow.
template <typename Raw>
int64_t CountFullExponents(const std::byte* data, int64_t size, Raw exponent) {
  constexpr int64_t kBlock = 16384;
  int64_t total = 0;
  for (int64_t first = 0; first < size; first += kBlock) {
    const int64_t count = std::min(kBlock, size - first);
    const std::byte* block = data + first * static_cast<int64_t>(sizeof(Raw));
    Raw found = 0;
    for (int64_t i = 0; i < count; ++i) {
      const Raw full = (Load<Raw>(block, i) & exponent) == exponent ? 1 : 0;
      found = static_cast<Raw>(found + full);
    }
    total += static_cast<int64_t>(found);
  }
  return total;
}

}  // namespace

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24
    const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t wide = exponent == 0x1fu ? 0xffu : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

void ReadElements(const HostTensor& tensor, int64_t first, int64_t count, float* out) {
  Read(tensor, first, count, out);
}

void ReadElements(const HostTensor& tensor, int64_t first, int64_t count, double* out) {
  Read(tensor, first, count, out);
}

int64_t CountNonFinite(const HostTensor& tensor) {
  switch (tensor.dtype) {
    case DType::kF64:
      return CountFullExponents<uint64_t>(tensor.data, tensor.size(), 0x7ff0000000000000u);
    case DType::kF32:
      return CountFullExponents<uint32_t>(tensor.data, tensor.size(), 0x7f800000u);
    case DType::kBF16:
      return CountFullExponents<uint16_t>(tensor.data, tensor.size(), 0x7f80u);
    case DType::kF16:
      return CountFullExponents<uint16_t>(tensor.data, tensor.size(), 0x7c00u);
  }
  return 0;
}

}  // namespace fox
