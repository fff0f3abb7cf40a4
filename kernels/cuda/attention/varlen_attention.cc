// Checks the kernels' requirements and enqueues them in order.
#include "kernels/cuda/attention/varlen_attention.h"

#include <initializer_list>

#include "kernels/cuda/attention/backward/backward.h"
#include "kernels/cuda/attention/prefill/prefill.h"
#include "kernels/cuda/attention/varlen/kernels.h"

namespace fox::cuda {
namespace {

constexpr uintptr_t kViewAlignment = 16;     // bytes
constexpr int64_t kStrideAlignment = 8;      // elements of bf16
constexpr uintptr_t kMemoryAlignment = 256;  // of state and gradients

bool IsAligned(const void* pointer, uintptr_t alignment) {
  return reinterpret_cast<uintptr_t>(pointer) % alignment == 0;
}

// Strides of dimensions of size 1 may be anything.
cudaError_t CheckViews(const VarlenAttentionParams& params, int heads,
                       std::initializer_list<VarlenView> views) {
  for (const VarlenView& view : views) {
    if (view.data == nullptr) return cudaErrorInvalidValue;
    if (!IsAligned(view.data, kViewAlignment) ||
        (params.batch > 1 && view.batch_stride % kStrideAlignment != 0) ||
        (params.tokens > 1 && view.token_stride % kStrideAlignment != 0) ||
        (heads > 1 && view.head_stride % kStrideAlignment != 0)) {
      return cudaErrorMisalignedAddress;
    }
  }
  return cudaSuccess;
}

cudaError_t CheckParams(const VarlenAttentionParams& params, const void* state) {
  const bool head_dim = params.head_dim == 32 || params.head_dim == 64 || params.head_dim == 128;
  const bool shapes = params.batch > 0 && params.tokens > 0 && params.q_heads > 0 &&
                      params.kv_heads > 0 && params.q_heads % params.kv_heads == 0;
  const VarlenSequences& seqs = params.seqs;
  const bool ranges =
      seqs.count > 0 && (seqs.begin == nullptr) == (seqs.end == nullptr) &&
      (seqs.packed ? params.batch == 1 && seqs.begin != nullptr : seqs.count <= params.batch);
  const bool bounds = (params.acp != AcpMode::kPaper || params.threshold != nullptr) &&
                      (params.acp != AcpMode::kCertified ||
                       (params.max_query_norm != nullptr && params.log_eps < 0));
  if (!head_dim || !shapes || !ranges || !bounds || state == nullptr ||
      params.log_fgate.data == nullptr) {
    return cudaErrorInvalidValue;
  }
  if (!IsAligned(state, kMemoryAlignment)) return cudaErrorMisalignedAddress;
  const cudaError_t error = CheckViews(params, params.q_heads, {params.q, params.out});
  if (error != cudaSuccess) return error;
  return CheckViews(params, params.kv_heads, {params.k, params.v});
}

}  // namespace

cudaError_t VarlenForward(const VarlenAttentionParams& params, void* state, cudaStream_t stream,
                          VarlenKernels kernels) {
  cudaError_t error = CheckParams(params, state);
  if (error != cudaSuccess) return error;
  const VarlenState varlen = MakeVarlen<VarlenState>(params, state);
  error = ScheduleVarlen(params, varlen, stream);
  if (error != cudaSuccess) return error;
  const bool fastest = kernels == VarlenKernels::kFastest && HasVarlenPrefillSm90();
  const auto prefill = fastest ? VarlenPrefillSm90 : VarlenPrefillSm80;
  error = prefill(params, varlen, stream);
  if (error != cudaSuccess) return error;
  return ZeroOutputPadding(params, stream);
}

cudaError_t VarlenBackward(const VarlenAttentionParams& params, void* state, void* gradients,
                           cudaStream_t stream, VarlenKernels kernels) {
  cudaError_t error = CheckParams(params, state);
  if (error == cudaSuccess) error = CheckViews(params, params.q_heads, {params.d_out, params.dq});
  if (error == cudaSuccess) error = CheckViews(params, params.kv_heads, {params.dk, params.dv});
  if (error != cudaSuccess) return error;
  if (gradients == nullptr || params.d_log_fgate.data == nullptr ||
      (params.sink != nullptr && params.d_sink == nullptr)) {
    return cudaErrorInvalidValue;
  }
  if (!IsAligned(gradients, kMemoryAlignment)) return cudaErrorMisalignedAddress;
  const VarlenState varlen = MakeVarlen<VarlenState>(params, state);
  const VarlenGradients scratch = MakeVarlen<VarlenGradients>(params, gradients);
  error = PrepareGradients(params, varlen, scratch, stream);
  if (error != cudaSuccess) return error;
  const bool fastest = kernels == VarlenKernels::kFastest && HasBackwardSm90();
  const auto backward = fastest ? BackwardSm90 : BackwardSm80;
  error = backward(params, varlen, scratch, stream);
  if (error != cudaSuccess) return error;
  error = FinishGradients(params, varlen, scratch, stream);
  if (error != cudaSuccess) return error;
  return ZeroGradientPadding(params, stream);
}

}  // namespace fox::cuda
