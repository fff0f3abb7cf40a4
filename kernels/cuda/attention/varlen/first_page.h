// Where each row tile's view begins: the first page of its sequence that may not be dropped.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention/varlen/state.h"
#include "kernels/varlen_attention.h"

namespace fox::cuda {

// Fills state.first_page from tiles and gates; params.acp is kPaper or kCertified. Boundaries never
// fall along a sequence: where tiles disagree, more is kept. Enqueues on `stream`; returns the
// launch's error.
cudaError_t FindFirstPages(const VarlenAttentionParams& params, const VarlenState& state,
                           cudaStream_t stream);

}  // namespace fox::cuda
