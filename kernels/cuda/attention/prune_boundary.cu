// A warp finds the boundary of one (query head, tile): each round its lanes test the ends of 32
// equal stretches of pages and keep the first stretch that may not be dropped whole, so two rounds
// cover 65536 tokens and three 2M. The rule is in kernels/acp.h.
#include <math_constants.h>

#include <cmath>

#include "kernels/cuda/attention/prune_boundary.h"
#include "kernels/cuda/primitives/kv_index.cuh"
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
};

// An upper bound on c of a list's position.
__device__ double CumulativeGate(const PagedKv& kv, const int32_t* table, int in_group,
                                 int position) {
  const int64_t own = kv.SummaryIndex(table[position / kPageTokens], in_group);
  return UpperCumulativeGate(
      kv.page_cum_log_f[own],
      static_cast<double>(kv.LogFOffsets<float>(own)[position % kPageTokens]));
}

// The most that the rows add to a page's log_mass_bound. By the whole warp.
__device__ double Threshold(const BoundaryArguments& arguments, const PagedKv& kv,
                            const int32_t* table, int head, const RowBlock& rows) {
  const int group = kv.shape.group(), in_group = head % group;
  double log_denominator_bound = 0;
  if (arguments.acp == AcpMode::kCertified) {
    const int32_t before = table[rows.position / kPageTokens - 1];
    log_denominator_bound =
        kv.log_denominator_bound[static_cast<int64_t>(before) * group + in_group];
  }
  return PageThreshold(arguments.acp, log_denominator_bound,
                       CumulativeGate(kv, table, in_group, rows.position),
                       arguments.self_logit_bound[head], arguments.max_logit_bound[head]);
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
__device__ int BoundaryOf(const BoundaryArguments& arguments, const PagedKv& kv, int head,
                          const RowBlock& rows) {
  const int64_t list = kv.ListIndex(rows.slot, arguments.layer, head / kv.shape.group());
  const int32_t* table = kv.Table(list);
  const int page = rows.position / kPageTokens;
  const int first = min(kv.first_live[list], page);
  const double log_eps =
      arguments.log_tolerance == nullptr ? -CUDART_INF : arguments.log_tolerance[rows.seq];
  if (first == page || !isfinite(log_eps)) return first;
  const double threshold = Threshold(arguments, kv, table, head, rows);
  return SearchBoundary(kv, table, head, first, page, threshold, log_eps);
}

__global__ void __launch_bounds__(kThreads)
    FindBoundaries(BoundaryArguments arguments, PagedKv kv, StepSchedule schedule) {
  TriggerDependents();
  WaitOnDependencies();
  const int t = static_cast<int>(blockIdx.x) * kWarps + Warp();
  const int head = static_cast<int>(blockIdx.y);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *schedule.tile_counter = 0;
  if (t >= *schedule.num_tiles) return;
  const int boundary = BoundaryOf(arguments, kv, head, schedule.tiles[t]);
  if (Lane() == 0) schedule.boundary[schedule.HeadTile(head, t)] = boundary;
}

BoundaryArguments ArgumentsOf(const BatchView& batch, const AttentionParams& params) {
  return {.log_tolerance = params.acp == AcpMode::kOff ? nullptr : batch.log_tolerance,
          .acp = params.acp,
          .layer = params.layer,
          .self_logit_bound = params.bound.self_logit_bound,
          .max_logit_bound = params.bound.max_logit_bound};
}

}  // namespace

cudaError_t PruneBoundaries(const BatchView& batch, const AttentionParams& params,
                            const PagedKv& kv, const StepSchedule& schedule, int max_tiles,
                            cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((max_tiles + kWarps - 1) / kWarps),
                  static_cast<unsigned>(kv.shape.q_heads));
  return Launch(FindBoundaries, grid, dim3(kThreads), 0, stream, ArgumentsOf(batch, params), kv,
                schedule);
}

}  // namespace fox::cuda
