// PrefillSm90: the kernel of kernel.cuh over the pages of the cache.
#include "kernels/core/check.h"
#include "kernels/cuda/attention/prefill/prefill.h"
#include "kernels/cuda/attention/prefill/sm90/kernel.cuh"
#include "kernels/cuda/attention/prefill/sm90/paged_source.cuh"
#include "kernels/cuda/attention/prefill/sm90/split_keys.h"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/cuda/runtime/tensor_map.h"

namespace fox::cuda {
namespace {

template <int kHeadDim>
cudaError_t LaunchFor(AcpMode acp, PagedSource& source, const MatrixView& q, int64_t work_tiles,
                      cudaStream_t stream) {
  const PagedKv& kv = source.kv;
  const WidePages& wide = source.schedule.wide;
  const bool widened = wide.pages > 0;
  const int64_t pool_rows = (widened ? wide.capacity : kv.shape.num_pages) * kPageTokens;
  FOX_CHECK(pool_rows <= INT32_MAX);  // the maps' coordinates
  const int64_t q_cols = static_cast<int64_t>(kv.shape.q_heads) * kHeadDim;
  constexpr int kColumns = PrefillPlan<kHeadDim>::kColumns;
  cudaError_t error =
      EncodeMatrixMap(q.data, q.rows, q_cols, q.row_stride, kTileRows, kColumns, &source.q_map);
  if (error != cudaSuccess) return error;
  error = EncodeMatrixMap(widened ? wide.keys : kv.keys, pool_rows, kHeadDim, kHeadDim, kPageTokens,
                          kColumns, &source.k_map);
  if (error != cudaSuccess) return error;
  error = EncodeMatrixMap(widened ? wide.values : kv.values, pool_rows, kHeadDim, kHeadDim,
                          kPageTokens, kColumns, &source.v_map);
  if (error != cudaSuccess) return error;
  error = acp == AcpMode::kCertified
              ? LaunchPrefillSm90<PagedSource, kHeadDim, true>(source, work_tiles, stream)
              : LaunchPrefillSm90<PagedSource, kHeadDim, false>(source, work_tiles, stream);
  if (error != cudaSuccess || source.schedule.key_splits.partial_rows == nullptr) return error;
  return MergeKeySplits<kHeadDim>(source, stream);
}

}  // namespace

bool HasPrefillSm90() { return HasPrefillSm90Kernel<PagedSource, 64, true>(); }

cudaError_t PrefillSm90(const BatchView& batch, const AttentionParams& params, const PagedKv& kv,
                        const StepSchedule& schedule, int max_tiles, cudaStream_t stream) {
  if (max_tiles == 0) return cudaSuccess;
  PagedSource source{};
  source.kv = kv;
  source.schedule = schedule;
  source.layer = params.layer;
  source.group = kv.shape.group();
  source.log_tolerance_of = params.acp == AcpMode::kCertified ? batch.log_tolerance : nullptr;
  source.max_logit_bound = params.bound.max_logit_bound;
  source.max_norm_product = params.bound.max_norm_product != nullptr ? params.bound.max_norm_product
                                                                     : params.bound.max_logit_bound;
  source.out = params.out.data;
  source.out_stride = params.out.row_stride;
  source.transform = MakeOutputTransformArguments(
      params, schedule.RowSums(params.layer, kv.shape.q_heads), kv.shape.q_heads);
  source.lse = static_cast<float*>(params.lse.data);
  source.lse_stride = params.lse.row_stride;
  source.blocks_total = params.blocks_total;
  source.blocks_pruned = params.blocks_pruned;
  int64_t work_tiles = static_cast<int64_t>(max_tiles) * kv.shape.q_heads;
  KeySplits& splits = source.schedule.key_splits;
  if (!MaySplit(batch, splits)) splits.partial_rows = nullptr;
  if (splits.partial_rows != nullptr) {
    work_tiles += splits.max_splits;
    const cudaError_t error = PlanKeySplits(kv.shape, schedule, stream);
    if (error != cudaSuccess) return error;
  }
  return DispatchHeadDim<32>(kv.shape.head_dim, [&]<int kHeadDim>() {
    return LaunchFor<kHeadDim>(params.acp, source, params.q, work_tiles, stream);
  });
}

}  // namespace fox::cuda
