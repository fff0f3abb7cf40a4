// PrefillSm80: the kernel of kernel.cuh over the pages of the cache.
#include <cmath>

#include "kernels/cuda/attention/prefill/prefill.h"
#include "kernels/cuda/attention/prefill/sm80/kernel.cuh"
#include "kernels/cuda/attention/prefill/sm80/paged_source.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/paging/acp.h"

namespace fox::cuda {

cudaError_t PrefillSm80(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                        const StepSchedule& schedule, int max_tiles, cudaStream_t stream) {
  sm80::PagedSource source{};
  source.kv = kv;
  source.schedule = schedule;
  source.q = static_cast<const __nv_bfloat16*>(params.q.data);
  source.out = static_cast<__nv_bfloat16*>(params.out.data);
  source.lse = static_cast<float*>(params.lse.data);
  source.q_stride = params.q.row_stride;
  source.out_stride = params.out.row_stride;
  source.lse_stride = params.lse.row_stride;
  source.transform = MakeOutputTransformArguments(
      params, schedule.RowSums(params.layer, kv.shape.q_heads), kv.shape.q_heads);
  if (params.acp == AcpMode::kCertified) source.log_tolerance = batch.log_tolerance;
  source.max_norm_product = params.bound.max_norm_product != nullptr ? params.bound.max_norm_product
                                                                     : params.bound.max_logit_bound;
  source.blocks_total = params.blocks_total;
  source.blocks_pruned = params.blocks_pruned;
  source.layer = params.layer;
  source.scale =
      static_cast<float>(kLog2EDouble / std::sqrt(static_cast<double>(kv.shape.head_dim)));
  return DispatchHeadDim(kv.shape.head_dim, [&]<int kHeadDim>() {
    return sm80::LaunchPrefillSm80<sm80::PagedSource, kHeadDim>(source, kv.shape.q_heads, max_tiles,
                                                                stream);
  });
}

}  // namespace fox::cuda
