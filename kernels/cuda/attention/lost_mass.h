// What rows lost to evicted pages (kernels/docs/acp.md section 4), from the sums that Attention of
// all layers has left in StepSchedule::row_sums.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/runtime/step_schedule.h"
#include "kernels/interface/attention_params.h"
#include "kernels/interface/batch_view.h"

namespace fox::cuda {

// Fills params.lost_mass; padding gets an empty LostMass. Comes behind Evict of the step, which
// says what had been evicted at each page end; pages that it freed must not have been taken yet.
// The order of all sums is fixed. Enqueues on `stream`; gives the launch's error.
cudaError_t SumLostMass(const BatchView& batch, const EvictParams& params, const PagedKv& kv,
                        const StepSchedule& schedule, cudaStream_t stream);

}  // namespace fox::cuda
