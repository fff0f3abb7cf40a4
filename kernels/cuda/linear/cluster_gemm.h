// Products with few rows, Hopper's own (wgmma, TMA): W is read once for up to 128 rows, further
// ones are passes of 128. A row's bits depend on that row and W's alone: not on the number of rows,
// not on the other ones, not on the device's size.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/linear/row_transforms.h"
#include "kernels/linear_params.h"

namespace fox::cuda {

// Whether the current device has this kernel and prefill_gemm.h's as compiled for sm_90a.
bool HasClusterGemm();

// The product of LinearEngine::Run for decode rows x: bf16 [rows, in], 16-byte aligned, any number
// of rows from one on. With params.norm they are x.rows of a DeferredNorm, whose sums `sums` are,
// else params.in. With params.next_norm the outputs are left in `next`, which overlaps nothing that
// is read. `multiprocessors` chooses how many blocks share W's columns, which changes no bits.
// REQUIRES: HasClusterGemm(); weight.in % 8 == 0.
cudaError_t ClusterGemm(const MatrixView& x, const float* sums, const LinearParams& params,
                        const DeferredNorm& next, int multiprocessors, cudaStream_t stream);

}  // namespace fox::cuda
