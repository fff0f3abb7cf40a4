// Ops::Draw: sampling on the device. The same draw as engine/sampler.cc makes from the same logits
// with the same Philox key and counter.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/op_params.h"

namespace fox::cuda {

// logits: f32 [rows, V] in device memory, left unchanged. Enqueues on `stream`, may be captured;
// gives the launch's error.
cudaError_t Draw(const DrawParams& params, cudaStream_t stream);

}  // namespace fox::cuda
