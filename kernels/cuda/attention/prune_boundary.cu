// A warp finds the boundary of one (query head, tile): each round its lanes test the ends of 32
// equal stretches of pages and keep the first stretch that may not be dropped whole, so two rounds
// cover 65536 tokens and three 2M. The test is MayDrop of kernels/acp.h, in float64.
#include <cmath>

#include "kernels/acp.h"
#include "kernels/cuda/attention/prune_boundary.h"
#include "kernels/cuda/kv_index.cuh"
#include "kernels/cuda/launch.h"

namespace fox::cuda {
namespace {

constexpr int kWarps = 8;

struct BoundaryArguments {
  const double* log_tolerance;  // null: nothing is dropped
  AcpMode acp;
  int layer;
  const double* self_logit;
  const double* any_logit;
};

// What the tile's first row, in page `page` of the list, adds to a page's score (kernels/acp.h).
// NaN: nothing may be dropped.
__device__ double Threshold(const BoundaryArguments& arguments, const PagedKv& kv,
                            const int32_t* table, int head, int page, int token) {
  const int group = GroupOf(kv), in_group = head % group;
  const int64_t own = static_cast<int64_t>(table[page]) * group + in_group;
  const float local = static_cast<const float*>(kv.local_gate)[own * kPageTokens + token];
  const double c = kv.c_base[own] + static_cast<double>(local);
  if (arguments.acp == AcpMode::kPaper) {
    const double any = arguments.any_logit[head];
    return isfinite(any) ? c + 2 * any : static_cast<double>(NAN);
  }
  const double horizon = kv.horizon[static_cast<int64_t>(table[page - 1]) * group + in_group];
  const double self = c + arguments.self_logit[head];
  return self < horizon ? self : horizon;
}

// First page of [low, high) that may not be dropped, or `high`. The whole warp calls.
__device__ int SearchBoundary(const PagedKv& kv, const int32_t* table, int head, int low, int high,
                              double threshold, double log_eps) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = GroupOf(kv), in_group = head % group;
  while (low < high) {
    const int stretch = (high - low + 31) / 32;
    const int end = low + lane * stretch + stretch - 1;  // the stretch's last page
    bool may_drop = false;
    if (end < high) {
      const double score = kv.score[static_cast<int64_t>(table[end]) * group + in_group];
      may_drop = score + threshold <= log_eps - kAcpSlack;
    }
    const unsigned kept = ~__ballot_sync(kAllLanes, may_drop);
    const int dropped = kept == 0 ? 32 : __ffs(static_cast<int>(kept)) - 1;
    low = min(high, low + dropped * stretch);
    high = min(high, low + stretch - 1);
  }
  return low;
}

__global__ void __launch_bounds__(kWarps * 32)
    FindBoundaries(BoundaryArguments arguments, PagedKv kv, StepWork work) {
  LetNextStart();
  WaitForPrevious();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int t = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int head = static_cast<int>(blockIdx.y);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *work.tile_counter = 0;
  if (t >= *work.num_tiles) return;
  const RowBlock tile = work.tiles[t];
  const int64_t list = ListIndex(kv, tile.slot, arguments.layer, head / GroupOf(kv));
  const int32_t* table = Table(kv, list);
  const int page = tile.position / kPageTokens;
  int boundary = min(kv.first_live[list], page);
  const double log_eps =
      arguments.log_tolerance == nullptr ? -INFINITY : arguments.log_tolerance[tile.seq];
  if (boundary < page && isfinite(log_eps)) {
    const double threshold =
        Threshold(arguments, kv, table, head, page, tile.position % kPageTokens);
    boundary = SearchBoundary(kv, table, head, boundary, page, threshold, log_eps);
  }
  if (lane == 0) work.boundary[static_cast<int64_t>(head) * work.max_tiles + t] = boundary;
}

}  // namespace

cudaError_t PruneBoundaries(const BatchView& batch, const AttentionParams& params,
                            const PagedKv& kv, const StepWork& work, int max_tiles,
                            cudaStream_t stream) {
  const BoundaryArguments arguments{params.acp == AcpMode::kOff ? nullptr : batch.log_tolerance,
                                    params.acp, params.layer, params.bound.self_logit,
                                    params.bound.any_logit};
  const dim3 grid(static_cast<unsigned>((max_tiles + kWarps - 1) / kWarps),
                  static_cast<unsigned>(kv.shape.q_heads));
  return Launch(FindBoundaries, grid, dim3(kWarps * 32), 0, stream, arguments, kv, work);
}

}  // namespace fox::cuda
