// DeviceWeight: a linear layer's weight in device memory, [out, in] bf16, row-major, `out` padded
// with zero rows to PaddedRows; or its first rows in 8 bits, the others in bf16. GemmArguments: the
// arguments that products of decode rows and products by codes share.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <utility>

#include "kernels/core/buffer.h"
#include "kernels/core/check.h"
#include "kernels/core/dtype.h"
#include "kernels/core/matrix_view.h"
#include "kernels/cuda/linear/fp8_rows.h"
#include "kernels/interface/linear_params.h"

namespace fox::cuda {

constexpr int64_t PaddedRows(int64_t rows) { return (rows + 15) / 16 * 16; }

// Fp8Rows, on the device.
struct DeviceFp8Rows {
  int64_t rows = 0;
  Buffer codes = {}, scales = {};

  int64_t bytes(int64_t in) const {
    return rows * (Fp8Stride(in) + static_cast<int64_t>(sizeof(float)));
  }
};

class DeviceWeight : public PackedWeight {
 public:
  // `data` has the rows from fp8.rows on.
  DeviceWeight(int64_t out, int64_t in, Buffer data, DeviceFp8Rows fp8 = {})
      : PackedWeight(out, in,
                     static_cast<size_t>((out - fp8.rows) * in) * SizeOf(DType::kBF16) +
                         static_cast<size_t>(fp8.bytes(in))),
        data_(std::move(data)),
        fp8_(std::move(fp8)) {
    FOX_CHECK(in > 0 && fp8_.rows >= 0 && fp8_.rows <= out);
  }

  const void* data() const { return data_.data(); }
  const DeviceFp8Rows& fp8() const { return fp8_; }

 private:
  Buffer data_;
  DeviceFp8Rows fp8_;
};

// The weight as CudaOps packed it.
inline const DeviceWeight& OnDevice(const PackedWeight& weight) {
  return static_cast<const DeviceWeight&>(weight);
}

constexpr int CeilDiv(int a, int b) { return (a + b - 1) / b; }

struct GemmArguments {
  int rows;
  const __nv_bfloat16* weight;  // [out, in]; gated: [2 out, in]
  const unsigned char* codes;   // W of the first outputs in 8 bits, in rows of Fp8Stride, or null
  const float* scales;          // of these rows
  int out, in;
  const float* bias;  // [out] or null
  bool accumulate;    // y += ...; y is float32
  bool gated;         // y = act(gate) * value of W's halves
  Activation act;
  float* y_f32;  // one of the two is not null
  __nv_bfloat16* y_bf16;
  int64_t y_stride;

  // Skips the first `count` outputs, whose rows of W are in `codes`: `weight` holds the rows after
  // them.
  void SkipOutputs(int count) {
    out -= count;
    if (bias != nullptr) bias += count;
    if (y_f32 != nullptr) y_f32 += count;
    if (y_bf16 != nullptr) y_bf16 += count;
  }
};

inline GemmArguments MakeGemmArguments(const LinearParams& params) {
  const DeviceWeight& weight = OnDevice(params.weight);
  const MatrixView& y = params.out;
  FOX_CHECK(weight.out() <= INT32_MAX && weight.in() <= INT32_MAX && y.rows <= INT32_MAX);
  const bool wide = y.dtype == DType::kF32;
  return {static_cast<int>(y.rows),
          static_cast<const __nv_bfloat16*>(weight.data()),
          weight.fp8().codes.as<const unsigned char>(),
          weight.fp8().scales.as<const float>(),
          static_cast<int>(y.cols),
          static_cast<int>(weight.in()),
          static_cast<const float*>(params.bias),
          params.accumulate,
          params.gate.has_value(),
          params.gate.value_or(Activation::kSilu),
          wide ? static_cast<float*>(y.data) : nullptr,
          wide ? nullptr : static_cast<__nv_bfloat16*>(y.data),
          y.row_stride};
}

}  // namespace fox::cuda
