// The gated product of prefill rows, Hopper's own (wgmma, TMA): y = act(x G^T) * (x V^T), W = [G;
// V]. A row's bits depend on that row and W's alone: not on the number of rows, not on the other
// ones, not on the device's size.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/linear_params.h"

namespace fox::cuda {

// The product of LinearEngine::Run with `gate` for prefill rows `x` that are normed already: bf16
// [rows, in], any number of rows from one on; those of x and y are 16-byte aligned.
// `multiprocessors` chooses tiles, which changes no bits. REQUIRES: HasClusterGemm(); weight.in and
// out.cols multiples of 8.
cudaError_t PrefillGemm(const MatrixView& x, const LinearParams& params, int multiprocessors,
                        cudaStream_t stream);

}  // namespace fox::cuda
