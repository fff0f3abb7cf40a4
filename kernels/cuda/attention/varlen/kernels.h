// The kernels before and after varlen attention's forward and backward kernels: the schedule that
// both follow, scratch of backward and its sums over key tiles, zeros for tokens of no sequence.
// Computed on the device, for any mix of lengths. All enqueue on `stream` and return the launch's
// error.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention/varlen/state.h"
#include "kernels/interface/varlen_attention.h"

namespace fox::cuda {

// Lower clamp of log gates: keys before such a gate weigh nothing beside logits within 400 of each
// other, and the offsets of its tile stay accurate to 2^-14. A gate of -infinity thus cuts a
// sequence.
inline constexpr double kLeastLogGate = -1024;

// Fills all of `state` but lse. Sequences are cut off at `tokens`. A gate above 0 breaks the bounds
// of pruning, and nothing else; with a NaN gate a head prunes nothing in that sequence. Reads
// params.k under AcpMode::kCertified alone.
cudaError_t ScheduleVarlen(const VarlenAttentionParams& params, const VarlenState& state,
                           cudaStream_t stream);

// Fills state.first_page from tiles and gates; params.acp is kPaper or kCertified. Boundaries never
// fall along a sequence: where tiles disagree, more is kept.
cudaError_t FindFirstPages(const VarlenAttentionParams& params, const VarlenState& state,
                           cudaStream_t stream);

// Fills delta and last_row_tile, zeroes dq, row_sum, turn and work_counter. Reads out, d_out and
// the state. Here and below: head_dim 32, 64 or 128, views as for BackwardSm90.
cudaError_t PrepareGradients(const VarlenAttentionParams& params, const VarlenState& state,
                             const VarlenGradients& gradients, cudaStream_t stream);

// Writes params.dq and params.d_log_fgate for the tokens of sequences, from gradients.dq, row_sum
// and col_sum, and params.d_sink from delta and the state.
cudaError_t FinishGradients(const VarlenAttentionParams& params, const VarlenState& state,
                            const VarlenGradients& gradients, cudaStream_t stream);

// Zeros for tokens of no sequence: in params.out, or in dq, dk, dv and d_log_fgate.
cudaError_t ZeroOutputPadding(const VarlenAttentionParams& params, cudaStream_t stream);
cudaError_t ZeroGradientPadding(const VarlenAttentionParams& params, cudaStream_t stream);

}  // namespace fox::cuda
