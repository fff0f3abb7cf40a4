// Element access of HostTensor. The loops load through memcpy because safetensors promises no
// alignment; compilers turn that into plain (vector) loads.
#include "models/checkpoint/host_tensor.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/core/check.h"
#include "kernels/core/load_element.h"

namespace fox {
namespace {

template <typename Raw>
Raw Load(const std::byte* data, int64_t index) {
  Raw value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(Raw)), sizeof(Raw));
  return value;
}

// A floating-point value is NaN or infinite exactly when all bits of its exponent are set. The
// count is of the type of the elements so that the inner loop stays at full vector width; a block
// is short enough for it not to overflow.
template <typename Raw>
int64_t CountFullExponents(const std::byte* data, int64_t size, Raw exponent) {
  constexpr int64_t kBlock = 16384;
  static_assert(kBlock <= std::numeric_limits<Raw>::max());
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

template <typename T>
void ReadElements(const HostTensor& tensor, int64_t first, int64_t count, T* out) {
  FOX_CHECK(!tensor.empty() || count == 0);
  FOX_CHECK(first >= 0 && count >= 0 && first <= tensor.size() - count);
  const auto read = [&](auto dtype) {  // known to the compiler, which so makes vector loads
    for (int64_t i = 0; i < count; ++i) out[i] = LoadElement<T>(tensor.data, dtype, first + i);
  };
  switch (tensor.dtype) {
    case DType::kF64:
      return read(std::integral_constant<DType, DType::kF64>());
    case DType::kF32:
      return read(std::integral_constant<DType, DType::kF32>());
    case DType::kBF16:
      return read(std::integral_constant<DType, DType::kBF16>());
    case DType::kF16:
      return read(std::integral_constant<DType, DType::kF16>());
    case DType::kE4M3:  // of pages alone
      break;
  }
  FOX_CHECK(false);
}
template void ReadElements(const HostTensor&, int64_t, int64_t, float*);
template void ReadElements(const HostTensor&, int64_t, int64_t, double*);

int64_t CountNonFinite(const HostTensor& tensor) {
  FOX_CHECK(!tensor.empty());
  switch (tensor.dtype) {
    case DType::kF64:
      return CountFullExponents<uint64_t>(tensor.data, tensor.size(), 0x7ff0000000000000u);
    case DType::kF32:
      return CountFullExponents<uint32_t>(tensor.data, tensor.size(), 0x7f800000u);
    case DType::kBF16:
      return CountFullExponents<uint16_t>(tensor.data, tensor.size(), 0x7f80u);
    case DType::kF16:
      return CountFullExponents<uint16_t>(tensor.data, tensor.size(), 0x7c00u);
    case DType::kE4M3:  // of pages alone
      break;
  }
  FOX_CHECK(false);
  return 0;
}

}  // namespace fox
