// Ops::Append on the GPU: projections become queries, keys, values and gates in pages; pages that
// became full are accumulated into the running state, those of decode rows in Evict. The
// mathematics is in kernels/cpu/append.cc.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/interface/attention_params.h"
#include "kernels/interface/batch_view.h"

namespace fox::cuda {

class BesideStream;

// AppendOverlap says what AppendDecodeKernel may do while earlier kernels still run, and which
// share of an SM's memory it asks for (launch.h).
struct AppendOverlap {
  // No kernel that has not ended when this one starts writes the sequences' lists, or the layer's
  // pages and running state: they are read before the wait.
  bool reads_early = false;
  // Lets the next kernel start at once, not only after the wait. Only with reads_early.
  bool triggers_early = false;
  Carveout carveout = Carveout::kAny;
};

// projection: bf16, q columns rewritten in place; norms and biases float32, norms not beside caps;
// pages bf16 or e4m3, [64, head_dim]; last_k, last_v hold the raw last rows, float32. head_dim 16,
// 32, 64 or 128. After BeginStep of the same batch. Enqueues on `stream`; gives the launch's error.
// If `beside` is not null, Append marks `stream` for it between the kernel of the decode rows and
// the kernels of the prefill rows.
cudaError_t Append(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                   const StepSchedule& schedule, const AppendOverlap& overlap, cudaStream_t stream,
                   BesideStream* beside = nullptr);

// Append's two ways, between which append.cu chooses. For decode rows one kernel: REQUIRES num_rows
// == num_seqs.
cudaError_t AppendDecode(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                         const AppendOverlap& overlap, cudaStream_t stream);

// For prefill rows three kernels, for the sequences from num_decodes on: first each row block, then
// each head of a sequence, last the queries. The results do not depend on where chunks end, as long
// as they end at multiples of 128 tokens.
cudaError_t ProjectBlocks(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                          const StepSchedule& schedule, cudaStream_t stream);
cudaError_t AccumulateBlocks(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                             const StepSchedule& schedule, cudaStream_t stream);
// Directly after AccumulateBlocks, which triggers after its wait (launch.h).
cudaError_t ProjectQueries(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                           cudaStream_t stream);

// Output of ProjectBlocks for AccumulateBlocks, by (block, query head): these float64 values, then
// N[head_dim]. See StepSchedule::page_sums.
enum PageSumsRecord : int { kLogGate, kCount, kLogMass, kRecordHeader };

// Maximum of query heads per kv head: a warp's lanes hold their gates.
inline constexpr int kMaxAppendGroup = 32;

}  // namespace fox::cuda
