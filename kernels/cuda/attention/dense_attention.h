// Dense forgetting attention on the device (kernels/dense_attention.h): the two calls that training
// needs. Both only enqueue on `stream`; nothing is allocated and nothing waits for the host.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention/dense/state.h"
#include "kernels/dense_attention.h"

namespace fox::cuda {

// kFastest: those of the device's architecture. kPortable: those of every GPU since Ampere.
enum class DenseKernels : uint8_t { kFastest, kPortable };

// Writes params.out, zeros for tokens of no sequence, and the state into `state`, DenseStateBytes()
// of device memory, 256-byte aligned, which need not be initialised.
// REQUIRES: head_dim 32, 64 or 128; kv_heads a divisor of q_heads; views of bf16 16-byte aligned
// with strides that are multiples of 8 elements; what acp needs not null; log_eps below 0 for
// kCertified. cudaErrorInvalidValue or cudaErrorMisalignedAddress where that does not hold, else
// the launches' error.
cudaError_t DenseForward(const DenseAttentionParams& params, void* state, cudaStream_t stream,
                         DenseKernels kernels = DenseKernels::kFastest);

// Writes params.dq, dk, dv and d_log_fgate, zeros for tokens of no sequence. `state` is what
// DenseForward left for the same parameters, out and log_fgate unchanged; `gradients`:
// DenseGradientBytes() of device memory, 256-byte aligned, scratch. Otherwise as DenseForward.
cudaError_t DenseBackward(const DenseAttentionParams& params, void* state, void* gradients,
                          cudaStream_t stream, DenseKernels kernels = DenseKernels::kFastest);

}  // namespace fox::cuda
