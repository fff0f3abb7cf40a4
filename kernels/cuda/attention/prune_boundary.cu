// A warp finds the boundary of one (query head, tile): each round its lanes test the ends of 32
// equal stretches of pages and keep the first stretch that may not be dropped whole, so two rounds
// cover 65536 tokens and three 2M. The rule is in kernels/paging/acp.h.
#include <cuda_bf16.h>

#include <cmath>

#include "kernels/cuda/attention/prune_boundary.h"
#include "kernels/cuda/primitives/kv_index.cuh"
#include "kernels/cuda/primitives/page_part.cuh"
#include "kernels/cuda/primitives/vec8.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/paging/acp.h"

namespace fox::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;

struct BoundaryArguments {
  const double* log_tolerance;  // null: nothing is dropped
  AcpMode acp;
  int layer;
  const double* self_logit_bound;
  const double* max_logit_bound;
  const __nv_bfloat16* q;
  int64_t q_stride;
};

// An upper bound on c of a list's position.
__device__ double CumulativeGate(const PagedKv& kv, const int32_t* table, int in_group,
                                 int position) {
  const int64_t own = kv.SummaryIndex(table[position / kPageTokens], in_group);
  return UpperCumulativeGate(
      kv.page_cum_log_f[own],
      static_cast<double>(kv.LogFOffsets<float>(own)[position % kPageTokens]));
}

// Eight elements of a key, from the pool's element `at` on.
__device__ uint4 LoadKey(const PagedKv& kv, int32_t page, int token, int64_t at) {
  if (kv.exponents == nullptr) return static_cast<const uint4*>(kv.keys)[at / kVec8];
  return WidenPart(static_cast<const uint2*>(kv.keys)[at / kVec8], *kv.KeyExponent(page, token));
}

// In place of 2U: how far above a row's own logit that of a key with norm up to `key_norm` can lie.
__device__ double RowLogitSpread(const __nv_bfloat16* q, const PagedKv& kv, int32_t page, int token,
                                 double key_norm) {
  const int head_dim = kv.shape.head_dim;
  const int64_t key = (static_cast<int64_t>(page) * kPageTokens + token) * head_dim;
  float square = 0, self = 0, magnitude = 0;
#pragma unroll 4
  for (int m = 0; m < head_dim; m += kVec8) {
    const Float8 a = LoadVec8(q + m), b = Widen(LoadKey(kv, page, token, key + m));
#pragma unroll
    for (int i = 0; i < kVec8; ++i) {
      square = fmaf(a.x[i], a.x[i], square);
      self = fmaf(a.x[i], b.x[i], self);
      magnitude = fmaf(fabsf(a.x[i]), fabsf(b.x[i]), magnitude);
    }
  }
  // Products of bf16 are exact, and a float32 sum of n of them errs by at most n 2^-24 of their
  // magnitudes. The rule's inflation pays for that of `square`.
  const double rounding = head_dim * 0x1p-23 * static_cast<double>(magnitude);
  return PerQueryLogitSpread(sqrt(static_cast<double>(square)), key_norm,
                             static_cast<double>(self) - rounding, head_dim);
}

// The largest threshold of the rows for pages before the first row's, one row per lane, by the
// whole warp. Infinity if one is NaN: nothing may be dropped.
__device__ double PerQueryThreshold(const BoundaryArguments& arguments, const PagedKv& kv,
                                    const int32_t* table, int head, const RowBlock& rows) {
  const int group = kv.shape.group(), in_group = head % group, head_dim = kv.shape.head_dim;
  const int before = rows.position / kPageTokens - 1;
  const double key_norm = kv.max_key_norm[static_cast<int64_t>(table[before]) * group + in_group];
  double largest = -CUDART_INF;
  for (int r = Lane(); r < rows.count; r += kWarp) {
    const int position = rows.position + r;
    const double spread =
        RowLogitSpread(arguments.q + (rows.first_row + r) * arguments.q_stride + head * head_dim,
                       kv, table[position / kPageTokens], position % kPageTokens, key_norm);
    const double threshold = CumulativeGate(kv, table, in_group, position) + spread;
    if (!(threshold <= largest)) largest = isnan(threshold) ? CUDART_INF : threshold;
  }
  return WarpMax(largest);
}

// The most that the rows add to a page's log_mass_bound. By the whole warp. kPerQuery: see
// UsesPerQueryBound.
template <bool kPerQuery>
__device__ double Threshold(const BoundaryArguments& arguments, const PagedKv& kv,
                            const int32_t* table, int head, const RowBlock& rows) {
  const int group = kv.shape.group(), in_group = head % group;
  const double any = arguments.max_logit_bound[head];
  if constexpr (kPerQuery) {
    if (isinf(any)) return PerQueryThreshold(arguments, kv, table, head, rows);
  }
  double log_denominator_bound = 0;
  if (arguments.acp == AcpMode::kCertified) {
    const int32_t before = table[rows.position / kPageTokens - 1];
    log_denominator_bound =
        kv.log_denominator_bound[static_cast<int64_t>(before) * group + in_group];
  }
  return PageThreshold(arguments.acp, log_denominator_bound,
                       CumulativeGate(kv, table, in_group, rows.position),
                       arguments.self_logit_bound[head], any);
}

// First page of [low, high) that may not be dropped, or `high`. By the whole warp.
__device__ int SearchBoundary(const PagedKv& kv, const int32_t* table, int head, int low, int high,
                              double threshold, double log_eps) {
  const int group = kv.shape.group(), in_group = head % group;
  while (low < high) {
    const int stretch = (high - low + kWarp - 1) / kWarp;
    const int end = low + Lane() * stretch + stretch - 1;  // the stretch's last page
    bool may_drop = false;
    if (end < high) {
      may_drop = MayDrop(kv.log_mass_bound[static_cast<int64_t>(table[end]) * group + in_group],
                         threshold, log_eps);
    }
    const unsigned kept = ~__ballot_sync(kAllLanes, may_drop);
    const int dropped = kept == 0 ? kWarp : __ffs(static_cast<int>(kept)) - 1;
    low = min(high, low + dropped * stretch);
    high = min(high, low + stretch - 1);
  }
  return low;
}

// The first page that the rows of one tile may see. By the whole warp.
template <bool kPerQuery>
__device__ int BoundaryOf(const BoundaryArguments& arguments, const PagedKv& kv, int head,
                          const RowBlock& rows) {
  const int64_t list = kv.ListIndex(rows.slot, arguments.layer, head / kv.shape.group());
  const int32_t* table = kv.Table(list);
  const int page = rows.position / kPageTokens;
  const int first = min(kv.first_live[list], page);
  const double log_eps =
      arguments.log_tolerance == nullptr ? -CUDART_INF : arguments.log_tolerance[rows.seq];
  if (first == page || !isfinite(log_eps)) return first;
  const double threshold = Threshold<kPerQuery>(arguments, kv, table, head, rows);
  return SearchBoundary(kv, table, head, first, page, threshold, log_eps);
}

template <bool kPerQuery>
__global__ void __launch_bounds__(kThreads)
    FindBoundaries(BoundaryArguments arguments, PagedKv kv, StepSchedule schedule) {
  TriggerDependents();
  WaitOnDependencies();
  const int t = static_cast<int>(blockIdx.x) * kWarps + Warp();
  const int head = static_cast<int>(blockIdx.y);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *schedule.tile_counter = 0;
  if (t >= *schedule.num_tiles) return;
  const int boundary = BoundaryOf<kPerQuery>(arguments, kv, head, schedule.tiles[t]);
  if (Lane() == 0) schedule.boundary[schedule.HeadTile(head, t)] = boundary;
}

// One warp per (sequence, head).
__global__ void __launch_bounds__(kThreads)
    FindFirstVisiblePagesKernel(BatchView batch, BoundaryArguments arguments, PagedKv kv,
                                StepSchedule schedule) {
  TriggerDependents();
  WaitOnDependencies();
  const int seq_head = static_cast<int>(blockIdx.x) * kWarps + Warp();
  const int seq = seq_head / kv.shape.q_heads;
  if (seq >= batch.num_seqs) return;
  const SequenceRows rows = RowsOf(batch, seq);
  if (rows.count != 1) return;
  const RowBlock row{seq, rows.slot, static_cast<int32_t>(rows.first_row), 1,
                     static_cast<int32_t>(rows.position)};
  const int window = BoundaryOf<true>(arguments, kv, seq_head % kv.shape.q_heads, row);
  if (Lane() == 0) schedule.first_visible_page[seq_head] = window;
}

BoundaryArguments ArgumentsOf(const BatchView& batch, const AttentionParams& params) {
  return {params.acp == AcpMode::kOff ? nullptr : batch.log_tolerance,
          params.acp,
          params.layer,
          params.bound.self_logit_bound,
          params.bound.max_logit_bound,
          static_cast<const __nv_bfloat16*>(params.q.data),
          params.q.row_stride};
}

}  // namespace

bool UsesPerQueryBound(const AttentionParams& params) {
  return params.acp == AcpMode::kPaper && !IsDiagonal(params.bound);
}

cudaError_t PruneBoundaries(const BatchView& batch, const AttentionParams& params,
                            const PagedKv& kv, const StepSchedule& schedule, int max_tiles,
                            cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((max_tiles + kWarps - 1) / kWarps),
                  static_cast<unsigned>(kv.shape.q_heads));
  const auto kernel = UsesPerQueryBound(params) ? FindBoundaries<true> : FindBoundaries<false>;
  return Launch(kernel, grid, dim3(kThreads), 0, stream, ArgumentsOf(batch, params), kv, schedule);
}

cudaError_t FindFirstVisiblePages(const BatchView& batch, const AttentionParams& params,
                                  const PagedKv& kv, const StepSchedule& schedule,
                                  cudaStream_t stream) {
  const int seq_heads = batch.num_seqs * kv.shape.q_heads;
  return Launch(FindFirstVisiblePagesKernel,
                dim3(static_cast<unsigned>((seq_heads + kWarps - 1) / kWarps)), dim3(kThreads),
                SmemConfig(0, batch.num_rows <= kOverlapRows), stream, batch,
                ArgumentsOf(batch, params), kv, schedule);
}

}  // namespace fox::cuda
