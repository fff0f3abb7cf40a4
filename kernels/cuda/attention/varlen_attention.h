// Varlen forgetting attention on the device (kernels/interface/varlen_attention.h): the two calls
// that training needs. Both only enqueue on `stream`; nothing is allocated and nothing waits for
// the host.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention/varlen/state.h"
#include "kernels/interface/varlen_attention.h"

namespace fox::cuda {

// kFastest: the kernels of the device's architecture. kPortable: the kernels for every GPU since
// Ampere.
enum class VarlenKernels : uint8_t { kFastest, kPortable };

// Writes params.out, zeros for tokens of no sequence, and the state into `state`,
// VarlenBytes<VarlenState>() of device memory, 256-byte aligned, which need not be initialised.
// REQUIRES: head_dim 32, 64 or 128; kv_heads a divisor of q_heads; views of bf16 16-byte aligned
// with strides that are multiples of 8 elements; the arrays that `acp` reads not null; log_eps
// below 0 for kCertified. cudaErrorInvalidValue or cudaErrorMisalignedAddress if a requirement does
// not hold, else the launches' error.
cudaError_t VarlenForward(const VarlenAttentionParams& params, void* state, cudaStream_t stream,
                          VarlenKernels kernels = VarlenKernels::kFastest);

// Writes params.dq, dk, dv and d_log_fgate, zeros for tokens of no sequence, and d_sink. `state` is
// the output of VarlenForward for the same parameters, out and log_fgate unchanged; `gradients`:
// VarlenBytes<VarlenGradients>() of device memory, 256-byte aligned, scratch. Otherwise as
// VarlenForward.
cudaError_t VarlenBackward(const VarlenAttentionParams& params, void* state, void* gradients,
                           cudaStream_t stream, VarlenKernels kernels = VarlenKernels::kFastest);

}  // namespace fox::cuda
