// The two ways of Append: one kernel for sequences with one row, three kernels for all others.
// append.cu chooses.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attention_params.h"
#include "kernels/batch_view.h"
#include "kernels/cuda/runtime/step_schedule.h"

namespace fox::cuda {

// REQUIRES: num_rows == num_seqs. Shapes and `reads_early` as in append.h.
cudaError_t AppendDecode(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                         bool reads_early, cudaStream_t stream);

// The sequences from num_decodes on: first each row block, then each head of each sequence. The
// results do not depend on where chunks end, as long as they end at multiples of 128 tokens.
cudaError_t ProjectBlocks(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                          const StepSchedule& schedule, cudaStream_t stream);
cudaError_t AccumulateBlocks(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                             const StepSchedule& schedule, cudaStream_t stream);
// Directly after AccumulateBlocks, which triggers after its wait (launch.h).
cudaError_t ProjectQueries(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                           cudaStream_t stream);

// Output of ProjectBlocks for AccumulateBlocks, by (block, query head): these float64 values, then
// N[head_dim]. See StepSchedule::page_sums.
enum PageSumsRecord : int { kLogGate, kCount, kLogMass, kKeyNorm, kRecordHeader };

// Maximum of query heads per kv head: a warp's lanes hold their gates.
inline constexpr int kMaxAppendGroup = 32;

}  // namespace fox::cuda
