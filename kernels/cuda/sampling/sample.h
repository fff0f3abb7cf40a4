// Ops::Sample, Ops::SetPenaltyState and Ops::Score: sampling and scoring on the device. Always the
// token that engine/request/sampler.cc samples from the same logits, counts and masks at the same
// seed and position.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/interface/sampling_params.h"

namespace fox::cuda {

// Both enqueue on `stream` and return the launch's error. Sample may be captured, because
// everything that varies by step is in device memory. logits: f32 [rows, V] in device memory,
// changed only in rows with a logits_processor. Entries: pinned host memory or device memory.
cudaError_t SetPenaltyState(const PenaltyStateParams& params, cudaStream_t stream);
cudaError_t Sample(const SampleParams& params, cudaStream_t stream);
// Enqueues on `stream` and returns the launch's error. logits: f32 [rows, V] in device memory. A
// row's record does not depend on the other rows.
cudaError_t Score(const ScoreParams& params, cudaStream_t stream);

}  // namespace fox::cuda
