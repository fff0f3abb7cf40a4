// Products with 1 to 64 rows, Hopper's own (wgmma, TMA), and more rows in passes of 64: the time of
// reading W once a pass. A row's bits depend on that row and on W's shape alone: not on the number
// of rows, not on the other ones.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/linear_params.h"

namespace fox::cuda {

inline constexpr int kClusterGemmRows = 64;  // of a pass

// What may be tried without compiling again.
struct ClusterGemmTuning {
  int wide_kib = 150;   // shared memory of a block, product behind one that accumulates
  int narrow_kib = 75;  // the same of one that accumulates
  int under_way = 4;    // tiles of W that a block has on their way, 16 KiB each
};

// Whether the current device has the kernel as compiled for sm_90a.
bool HasClusterGemm();

// The product of LinearEngine::Run for rows `x` that are transformed already: bf16 [rows, in],
// 16-byte aligned. REQUIRES: HasClusterGemm(); weight.in % 8 == 0.
cudaError_t ClusterGemm(const MatrixView& x, const LinearParams& params, int multiprocessors,
                        const ClusterGemmTuning& tuning, cudaStream_t stream);

}  // namespace fox::cuda
