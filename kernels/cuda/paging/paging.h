// The page pool on the device: the kernels that take pages, plan a step, and give pages back.
// Takes and gives are separate kernels of a step, so the free stack is only ever pushed to or
// popped from. Decisions are those of kernels/cpu/evict.cc and kernels/acp.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attention_params.h"
#include "kernels/batch_view.h"
#include "kernels/cuda/runtime/step_schedule.h"

namespace fox::cuda {

// Ops::BeginStep: takes pages, advances lengths and fills `work`. All enqueue on `stream` and give
// the launch's error. Nothing here depends on a value that the host would have to read.
cudaError_t BeginStep(const BatchView& batch, const PagedKv& kv, const StepSchedule& schedule,
                      cudaStream_t stream);

// Plans the decode splits of one layer anew, by work.window.
cudaError_t PlanSplits(const BatchView& batch, const PagedKv& kv, const StepSchedule& schedule,
                       int layer, cudaStream_t stream);

// Ops::Evict, all layers.
cudaError_t Evict(const BatchView& batch, const EvictParams& params, const PagedKv& kv,
                  cudaStream_t stream);

// Ops::Release; at most kMaxReleased slots a call, which travel as a kernel argument.
inline constexpr int kMaxReleased = 64;
cudaError_t Release(const int32_t* host_slots, int count, const PagedKv& kv, cudaStream_t stream);

}  // namespace fox::cuda
