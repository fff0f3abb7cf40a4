// DeviceWeight: a linear layer's weight in device memory, [out, in] bf16, row-major, `out` padded
// with zero rows to PaddedRows; or its first rows in 8 bits, the others in bf16. GemmArguments:
// what products of decode rows have in common.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/check.h"
#include "kernels/core/dtype.h"
#include "kernels/core/e4m3.h"
#include "kernels/core/host_device.h"
#include "kernels/core/matrix_view.h"
#include "kernels/cpu/load_element.h"
#include "kernels/linear_params.h"

namespace fox::cuda {

constexpr int64_t PaddedRows(int64_t rows) { return (rows + 15) / 16 * 16; }

// Bytes between rows: they begin at 16 bytes, with zeros past their last column.
FOX_HOST_DEVICE constexpr int64_t Fp8Stride(int64_t cols) { return (cols + 15) / 16 * 16; }

// Rows of W in 8 bits: e4m3 codes, and a power of two for each row (e4m3.h).
struct Fp8Rows {
  // [rows, Fp8Stride(cols)]. Of 16 columns those of lane t of a tensor core product are neighbours:
  // 2t, 2t + 1, 2t + 8, 2t + 9.
  std::vector<uint8_t> codes;
  std::vector<float> scales;  // [rows]
};

// Of rows in host memory; of rounded ones (EncodeE4M3), exactly these.
inline Fp8Rows EncodeFp8Rows(const MatrixView& rows) {
  constexpr int64_t kStep = 16;
  const int64_t stride = Fp8Stride(rows.cols);
  Fp8Rows out{std::vector<uint8_t>(static_cast<size_t>(rows.rows * stride)), {}};
  std::vector<float> row(static_cast<size_t>(stride));  // zeros past the last column
  std::vector<uint8_t> codes(row.size());
  uint8_t* to = out.codes.data();
  for (int64_t n = 0; n < rows.rows; ++n) {
    LoadElements(rows, n, row.data());
    out.scales.push_back(PowerOfTwo(EncodeE4M3(row.data(), stride, codes.data())));
    for (int64_t i = 0; i < stride; ++i) {
      const int64_t lane = i % kStep / 4, of_lane = i % 4;
      *to++ =
          codes[static_cast<size_t>(i / kStep * kStep + 2 * lane + of_lane % 2 + of_lane / 2 * 8)];
    }
  }
  return out;
}

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
  // `data` has the rows from fp8.rows on. late: a kernel of the step has written them just before.
  DeviceWeight(int64_t out, int64_t in, Buffer data, DeviceFp8Rows fp8 = {}, bool late = false)
      : PackedWeight(out, in,
                     static_cast<size_t>((out - fp8.rows) * in) * SizeOf(DType::kBF16) +
                         static_cast<size_t>(fp8.bytes(in))),
        data_(std::move(data)),
        fp8_(std::move(fp8)),
        late_(late) {}

  const void* data() const { return data_.data(); }
  const DeviceFp8Rows& fp8() const { return fp8_; }
  bool late() const { return late_; }

 private:
  Buffer data_;
  DeviceFp8Rows fp8_;
  bool late_;
};

// Of the weights that CudaOps packed.
inline const DeviceWeight& OnDevice(const PackedWeight& weight) {
  return static_cast<const DeviceWeight&>(weight);
}

constexpr int CeilDiv(int a, int b) { return (a + b - 1) / b; }

struct GemmArguments {
  int rows;
  const __nv_bfloat16* weight;  // [out, in]; gated: [2 out, in]
  bool late_weight;             // not to be read before the wait
  int out, in;
  const float* bias;  // [out] or null
  bool accumulate;    // y += ...; y is float32
  bool gated;         // y = act(gate) * value of W's halves
  Activation act;
  float* y_f32;  // one of the two is not null
  __nv_bfloat16* y_bf16;
  int64_t y_stride;
};

inline GemmArguments MakeGemmArguments(const LinearParams& params) {
  const DeviceWeight& weight = OnDevice(params.weight);
  const MatrixView& y = params.out;
  FOX_CHECK(weight.out() <= INT32_MAX && weight.in() <= INT32_MAX);
  const bool wide = y.dtype == DType::kF32;
  return {static_cast<int>(y.rows),
          static_cast<const __nv_bfloat16*>(weight.data()),
          weight.late(),
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
