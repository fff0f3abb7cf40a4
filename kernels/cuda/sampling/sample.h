// Ops::Sample and Ops::SetPenaltyState: sampling on the device. Always the token that
// engine/request/sampler.cc samples from the same logits, counts and masks at the same seed and
// position.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/interface/sampling_params.h"

namespace fox::cuda {

// Both enqueue on `stream` and return the launch's error. Sample may be captured, because
// everything that varies by step is in device memory. logits: f32 [rows, V] in device memory,
// changed only in rows with a logits_processor. Entries: pinned host memory or device memory.
cudaError_t SetPenaltyState(const PenaltyStateParams& params, cudaStream_t stream);
cudaError_t Sample(const SampleParams& params, cudaStream_t stream);

}  // namespace fox::cuda
