// Products with 5 to 16 rows: still the time of reading W, but on tensor cores and with the rows
// already transformed.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/linear_params.h"

namespace fox::cuda {

inline constexpr int64_t kMaxSkinnyRows = 16;

// Work space of SkinnyGemm in device memory; launches on one stream may share it.
struct SkinnyWorkspace {
  int multiprocessors = 0;
  float* partial = nullptr;            // [PartialFloats(SMs)]
  int32_t* arrival_counter = nullptr;  // [SMs], zero; left zero

  static constexpr int64_t PartialFloats(int multiprocessors) {
    return multiprocessors * 64 * kMaxSkinnyRows;
  }
};

// The product of LinearEngine::Run for rows `x` that are transformed already: bf16 [rows, in], at
// most kMaxSkinnyRows rows, 16-byte aligned. A row's result depends on that row and on which of 8
// and 16 is the first not below the number of rows. REQUIRES: weight.in % 16 == 0.
cudaError_t SkinnyGemm(const MatrixView& x, const LinearParams& params,
                       const SkinnyWorkspace& workspace, cudaStream_t stream);

}  // namespace fox::cuda
