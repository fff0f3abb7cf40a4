// VarlenPrefillSm80: the kernel of kernel.cuh over arrays.
#include "kernels/cuda/attention/prefill/prefill.h"
#include "kernels/cuda/attention/prefill/sm80/kernel.cuh"
#include "kernels/cuda/attention/prefill/sm80/varlen_source.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/paging/acp.h"

namespace fox::cuda {

cudaError_t VarlenPrefillSm80(const VarlenAttentionParams& params, const VarlenState& state,
                              cudaStream_t stream) {
  sm80::VarlenSource source{};
  source.state = state;
  source.q = params.q;
  source.k = params.k;
  source.v = params.v;
  source.out = params.out;
  source.group = params.q_heads / params.kv_heads;
  source.scale = static_cast<float>(params.scale * kLog2EDouble);
  source.sink = params.sink;
  return DispatchHeadDim<32>(params.head_dim, [&]<int kHeadDim>() {
    return sm80::LaunchPrefillSm80<sm80::VarlenSource, kHeadDim>(source, params.q_heads,
                                                                 state.max_tiles, stream);
  });
}

}  // namespace fox::cuda
