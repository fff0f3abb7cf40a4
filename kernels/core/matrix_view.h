// MatrixView: a row-major matrix in memory that it does not own. Rows may be further apart than
// they are wide, so a block of columns of a fused projection is a view, too. Vectors have one row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/core/dtype.h"
#include "kernels/core/host_device.h"

namespace fox {

struct MatrixView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;  // elements between the starts of two rows

  bool empty() const { return data == nullptr; }

  template <typename T>
  FOX_HOST_DEVICE T* Row(int64_t row) const {
    return static_cast<T*>(data) + row * row_stride;
  }
  MatrixView Columns(int64_t first, int64_t count) const {
    FOX_CHECK(first >= 0 && count >= 0 && first + count <= cols);
    return {static_cast<std::byte*>(data) + static_cast<size_t>(first) * SizeOf(dtype), dtype, rows,
            count, row_stride};
  }
  MatrixView Rows(int64_t first, int64_t count) const {
    FOX_CHECK(first >= 0 && count >= 0 && first + count <= rows);
    return {static_cast<std::byte*>(data) + static_cast<size_t>(first * row_stride) * SizeOf(dtype),
            dtype, count, cols, row_stride};
  }
};

}  // namespace fox
