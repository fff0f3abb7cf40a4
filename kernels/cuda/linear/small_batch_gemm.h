// Products with one to four rows: the time of reading W once. One kernel does the row transform and
// the product; its weights are on their way before the previous kernel has ended. A row's bits are
// those that cluster_gemm.h gives it in any batch.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/batch_view.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/linear_params.h"

namespace fox::cuda {

inline constexpr int64_t kMaxGemvRows = kSmallBatchRows;

struct DeviceLimits {
  int multiprocessors = 0;
  int block_shared_bytes = 0;  // most shared memory of a block, after opting in
};

// Whether Gemv takes such a product: at most kMaxGemvRows rows, a norm's input float32 and any
// other's bf16, in % 8 == 0, rows that fit beside the weights in shared memory (up to some 19,000
// columns on Hopper). The same for every number of rows from 1 to kMaxGemvRows.
bool GemvTakes(const LinearParams& params, const DeviceLimits& limits);

// With this transform the kernel triggers after its wait (launch.h). The next one's weights then
// come later, which costs nothing behind a wide product: it keeps the memory busy by itself.
inline constexpr InputTransform::Kind kDrainingKind = InputTransform::Kind::kRmsNorm;

// LinearEngine::Run; scratch is not used. A row's result depends on that row alone. REQUIRES:
// GemvTakes.
cudaError_t SmallBatchGemm(const LinearParams& params, const DeviceLimits& limits,
                           cudaStream_t stream);

}  // namespace fox::cuda
