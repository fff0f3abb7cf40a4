// Products with few rows, Hopper's own (wgmma, TMA): W is read once for up to 128 rows, further
// ones are passes of 128. A row's bits depend on that row and W's alone: not on the number of rows,
// not on the other ones, not on the device's size.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/linear_params.h"

namespace fox::cuda {

// Whether the current device has the kernel as compiled for sm_90a.
bool HasClusterGemm();

// The product of LinearEngine::Run for rows `x` that are transformed already (or are
// params.takes.rows): bf16 [rows, in], 16-byte aligned, any number of rows from one on, with
// `gated`, `takes` and `leaves` too. `multiprocessors` chooses how many blocks share W's columns,
// which changes no bits. REQUIRES: HasClusterGemm(); weight.in % 8 == 0.
cudaError_t ClusterGemm(const MatrixView& x, const LinearParams& params, int multiprocessors,
                        cudaStream_t stream);

}  // namespace fox::cuda
