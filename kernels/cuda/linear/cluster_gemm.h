// Products with 1 to 64 rows, Hopper's own (wgmma, TMA): the time of reading W once. A row's bits
// depend on that row and on W's shape alone: not on the number of rows, not on the other ones.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/linear_params.h"

namespace fox::cuda {

inline constexpr int kClusterGemmRows = 64;  // of a pass

// More rows are passes of 64, which pays for a vocabulary's projection alone.
constexpr bool ClusterGemmTakes(int64_t rows, int64_t out) {
  constexpr int64_t kVocabulary = 16384, kMostRows = 256;
  return rows <= (out >= kVocabulary ? kMostRows : kClusterGemmRows);
}

// Whether the current device has the kernel as compiled for sm_90a.
bool HasClusterGemm();

// The product of LinearEngine::Run for rows `x` that are transformed already: bf16 [rows, in],
// 16-byte aligned. REQUIRES: HasClusterGemm(); ClusterGemmTakes(); weight.in % 8 == 0.
cudaError_t ClusterGemm(const MatrixView& x, const LinearParams& params, int multiprocessors,
                        cudaStream_t stream);

}  // namespace fox::cuda
