// Products of few rows: the time of reading W once. One kernel does the norm and the product; its
// weights are on their way before the previous kernel has ended. A row's bits are those that
// cluster_gemm.h gives it in any batch.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/linear_params.h"

namespace fox::cuda {

struct DeviceLimits {
  int multiprocessors = 0;
  int block_shared_bytes = 0;  // most shared memory of a block, after opting in
};

inline constexpr int64_t kMaxSmallBatchRows = 8;

// The most rows of SmallBatchGemm, at most kMaxSmallBatchRows: those of so many columns that fit
// beside W's tiles into shared memory; 0 from some 79,000 columns on, on cards with 99 KB a
// block from some 15,000.
int64_t SmallBatchRows(int64_t columns, const DeviceLimits& limits);

// The product of LinearEngine::Run for decode rows, but for next_norm; with a norm the kernel
// triggers after its wait (launch.h): the next one's weights then come later, which costs nothing
// behind a wide product, for that keeps the memory busy by itself. REQUIRES: at least one row, at
// most SmallBatchRows.
cudaError_t SmallBatchGemm(const LinearParams& params, const DeviceLimits& limits,
                           cudaStream_t stream);

}  // namespace fox::cuda
