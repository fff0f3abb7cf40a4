// Ops::Draw and Ops::SetTokenStates: sampling on the device. The same draw as engine/sampler.cc
// makes from the same logits, counts and masks with the same Philox key and counter.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/op_params.h"

namespace fox::cuda {

// Both enqueue on `stream` and give the launch's error. Draw may be captured: all that a step
// decides it finds in device memory. logits: f32 [rows, V] in device memory, left unchanged but in
// rows with an adjustment. Entries: pinned host memory or device memory.
cudaError_t SetTokenStates(const TokenStatesParams& params, cudaStream_t stream);
cudaError_t Draw(const DrawParams& params, cudaStream_t stream);

}  // namespace fox::cuda
