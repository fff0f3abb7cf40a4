// Kernels around the backward kernels: they prepare scratch before and finish sums over key tiles
// after. And zeros for tokens of no sequence, in both directions.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention/varlen/state.h"
#include "kernels/varlen_attention.h"

namespace fox::cuda {

// Fills delta and last_row_tile, zeroes dq, row_sum, turn and work_counter. Reads out, d_out and
// the state. All of this header: head_dim 32, 64 or 128, views as for BackwardSm90; enqueue on
// `stream`, return the launch's error.
cudaError_t PrepareGradients(const VarlenAttentionParams& params, const VarlenState& state,
                             const VarlenGradients& gradients, cudaStream_t stream);

// Writes params.dq and params.d_log_fgate for the tokens of sequences, from gradients.dq, row_sum
// and col_sum.
cudaError_t FinishGradients(const VarlenAttentionParams& params, const VarlenState& state,
                            const VarlenGradients& gradients, cudaStream_t stream);

// Zeros for tokens of no sequence: in params.out, or in dq, dk, dv and d_log_fgate.
cudaError_t ZeroOutputPadding(const VarlenAttentionParams& params, cudaStream_t stream);
cudaError_t ZeroGradientPadding(const VarlenAttentionParams& params, cudaStream_t stream);

}  // namespace fox::cuda
