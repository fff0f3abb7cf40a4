// Ops::Append on the GPU: projections become queries, keys, values and gates in pages; pages that
// became full are accumulated into the running state. The mathematics is that of
// kernels/cpu/append.cc.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attention_params.h"
#include "kernels/batch_view.h"
#include "kernels/cuda/runtime/step_schedule.h"

namespace fox::cuda {

// projection: bf16, q columns rewritten in place; norms and biases float32; pages bf16,
// [64, head_dim]; last_k, last_v hold the raw last rows, float32. head_dim 16, 32, 64 or 128.
// After BeginStep of the same batch. reads_early: no kernel that has not ended when this one starts
// (launch.h) writes the sequences' lists, pages and running state. Enqueues on `stream`; gives the
// launch's error.
cudaError_t Append(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                   const StepSchedule& schedule, bool reads_early, cudaStream_t stream);

}  // namespace fox::cuda
