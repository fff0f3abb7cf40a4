// HostTensor: a weight in a file's mapping, and the two operations on it: reading elements and
// searching for values that no weight may have. Nothing here owns memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/core/dtype.h"

namespace fox {

// A tensor in mapped memory, row-major. `data` may be unaligned for its type. Empty: absent.
struct HostTensor {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  bool empty() const { return data == nullptr; }
  int64_t size() const {
    int64_t n = 1;
    for (int64_t extent : shape) n *= extent;
    return n;
  }
};

// Converts elements [first, first + count) to T (float or double), one by one. Exact except from
// F64 to float, which rounds to nearest.
template <typename T>
void ReadElements(const HostTensor& tensor, int64_t first, int64_t count, T* out);

// The number of NaN and infinite elements.
int64_t CountNonFinite(const HostTensor& tensor);

}  // namespace fox
