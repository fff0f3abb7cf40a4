// VarlenPrefillSm90: the kernel of kernel.cuh over arrays.
#include "kernels/cuda/attention/prefill/prefill.h"
#include "kernels/cuda/attention/prefill/sm90/kernel.cuh"
#include "kernels/cuda/attention/prefill/sm90/varlen_source.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/cuda/runtime/tensor_map.h"

namespace fox::cuda {
namespace {

template <int kHeadDim>
cudaError_t LaunchFor(const VarlenAttentionParams& params, VarlenSource& source,
                      cudaStream_t stream) {
  const auto encode = [&](const VarlenView& view, int heads, int box_tokens, CUtensorMap* map) {
    return EncodeVarlenMap(view, params.batch, params.tokens, heads, kHeadDim, box_tokens,
                           PrefillPlan<kHeadDim>::kColumns, map);
  };
  cudaError_t error = encode(params.q, params.q_heads, kTileRows, &source.q_map);
  if (error != cudaSuccess) return error;
  error = encode(params.k, params.kv_heads, kPageTokens, &source.k_map);
  if (error != cudaSuccess) return error;
  error = encode(params.v, params.kv_heads, kPageTokens, &source.v_map);
  if (error != cudaSuccess) return error;
  const int64_t work_tiles = static_cast<int64_t>(source.state.max_tiles) * params.q_heads;
  return LaunchPrefillSm90<VarlenSource, kHeadDim, false>(source, work_tiles, stream);
}

}  // namespace

bool HasVarlenPrefillSm90() { return HasPrefillSm90Kernel<VarlenSource, 64, false>(); }

cudaError_t VarlenPrefillSm90(const VarlenAttentionParams& params, const VarlenState& state,
                              cudaStream_t stream) {
  if (state.max_tiles == 0 || params.tokens == 0 || params.batch == 0) return cudaSuccess;
  VarlenSource source{};
  source.state = state;
  source.out = params.out;
  source.q_heads = params.q_heads;
  source.group = params.q_heads / params.kv_heads;
  source.scale = static_cast<float>(params.scale * kLog2EDouble);
  source.max_logit = params.max_logit;
  source.sink = params.sink;
  return DispatchHeadDim<32>(
      params.head_dim, [&]<int kHeadDim>() { return LaunchFor<kHeadDim>(params, source, stream); });
}

}  // namespace fox::cuda
