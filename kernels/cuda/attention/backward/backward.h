// Backward of varlen forgetting attention, key tile by key tile: a block keeps 128 keys and values
// of a kv head, loops over the row tiles that see them from the diagonal to last_row_tile and forms
//   P = 2^(x - lse),  dP = dO V^T,  dS = P (dP - delta),
//   dV += P^T dO,  dK += dS^T Q,  dQ += dS K,  and the row and column sums of dS.
//   BackwardSm90  wgmma, TMA, warp specialisation, persistent: Hopper
//   BackwardSm80  mma.sync, cp.async: every tensor-core GPU since Ampere
//
// Rounding. dS is rounded to bf16 for products; both sums are of dS in float32. The gate's gradient
// is a difference of two sums over many rows and keys whose common terms cancel exactly. If the
// sums were of different roundings, or rows were assumed to sum to zero, noise would grow with the
// square root of the length.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention/varlen/state.h"
#include "kernels/interface/varlen_attention.h"

namespace fox::cuda {

// Writes dk, dv (bf16, dk scaled; rows of no sequence are not touched) and gradients.col_sum; adds
// to gradients.dq and gradients.row_sum. Reads delta, last_row_tile and the state. REQUIRES:
// head_dim 32, 64 or 128; views 16-byte aligned, strides multiples of 8. Enqueue on `stream`;
// return the launch's error.
cudaError_t BackwardSm90(const VarlenAttentionParams& params, const VarlenState& state,
                         const VarlenGradients& gradients, cudaStream_t stream);
cudaError_t BackwardSm80(const VarlenAttentionParams& params, const VarlenState& state,
                         const VarlenGradients& gradients, cudaStream_t stream);

// True if this binary holds BackwardSm90 for the current device; elsewhere it traps.
bool HasBackwardSm90();

}  // namespace fox::cuda
