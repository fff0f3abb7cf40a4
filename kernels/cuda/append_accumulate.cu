// Append of any batch, second kernel of two: brings together, for each query head, what
// append_prefill.cu found in each of its row blocks: c_base, the running state, scores and
// horizons, as Fold of kernels/cpu/append.cc does. All of them are scans with an associative sum:
// lanes hold a block each, warps 32 blocks in a row, and warps then learn what all those before
// them add up to.
#include "kernels/acp.h"
#include "kernels/cuda/append_fold.cuh"
#include "kernels/cuda/append_kernels.h"
#include "kernels/cuda/head_dim.h"
#include "kernels/cuda/launch.h"

namespace fox::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;

// One query head of one sequence and its row blocks.
struct Walk {
  SequenceRows rows;
  int layer;
  int head, kv_head, g;  // g: in the group
  int64_t first_block;   // in StepWork::blocks
  int blocks;
  int full;  // blocks that complete their page: all, or all but the last
  const int32_t* table;

  __device__ int64_t Position(int i) const {
    return i == 0 ? rows.position : (rows.position / kPageTokens + i) * kPageTokens;
  }
};

// What goes from a page to the next; the same in all threads.
struct Carry {
  double c;          // after the last block
  double decay_sum;  // S
  double score;      // log M - c: rises from page to page
  double key_norm;
  double horizon;
};

// A lane's block, with what the blocks of the warp up to it add up to: c from the warp's first row
// on; the sums as if there were nothing before the warp. `keep` is the decay since the warp's
// first row, (top, sum) stands for the score top + log(sum).
struct Page {
  bool there, full;
  bool starts;  // the block holds its page's first row
  int64_t summary;
  double c;
  double keep, decay_sum, top, sum, key_norm;
};

template <int kHeadDim>
struct Space {
  Page total[kWarps];                          // of a warp's last lane
  double horizon[kWarps];                      // least of a warp
  double keep[kWarps][kWarp];                  // decay of N over each block
  double end[kWarps][kHeadDim];                // N after a warp's last block, from nothing
  alignas(16) float start[kWarps][kHeadDim];   // N before the warp's first block
  float key_sum[kWarps][kWarp][kHeadDim + 1];  // N after each block, from nothing; padded
};

__device__ __forceinline__ Carry LoadCarry(const AppendParams& params, const PagedKv& kv,
                                           const Walk& walk) {
  const int64_t state = HeadIndex(kv, walk.rows.slot, walk.layer, walk.head);
  const int64_t page = walk.rows.position / kPageTokens, group = GroupOf(kv);
  Carry carry{kv.c[state], 0, -CUDART_INF, 0, CUDART_INF};
  if (params.acp == AcpMode::kOff) return carry;
  double fold_c = carry.c;  // after the last full page
  if (walk.rows.position % kPageTokens != 0) {
    fold_c = kv.c_base[walk.table[page] * group + walk.g];
  }
  carry.decay_sum = kv.decay_sum[state];
  carry.score = kv.log_mass[state] - fold_c;
  if (page == 0) return carry;
  const int64_t before = walk.table[page - 1] * group + walk.g;  // the last full page is live
  carry.key_norm = kv.key_norm[before];
  if (params.acp == AcpMode::kCertified) carry.horizon = kv.horizon[before];
  return carry;
}

// (top, sum) stands for top + log(sum); adds an earlier pair. A NaN stays.
__device__ __forceinline__ void AddLogTerms(double& top, double& sum, double earlier_top,
                                            double earlier_sum) {
  const double high = earlier_top > top ? earlier_top : top;
  if (high == -CUDART_INF) return;
  sum = sum * static_cast<double>(expf(static_cast<float>(top - high))) +
        earlier_sum * static_cast<double>(expf(static_cast<float>(earlier_top - high)));
  top = high;
}

// This lane's block and its warp's sums up to it. `c` is that before the walk's first block.
__device__ __forceinline__ Page ScanPages(const PagedKv& kv, const Walk& walk, int i,
                                          const double* record, bool folds, double c,
                                          double* keep_out) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  Page page{i < walk.blocks, folds && i < walk.full, false, 0, 0, 1, 0, -CUDART_INF, 0, 0};
  double span = 0, log_mass = 0;  // span: from the page's start to the block's end
  if (page.there) {
    const int64_t position = walk.Position(i);
    page.starts = position % kPageTokens == 0;
    page.summary = static_cast<int64_t>(walk.table[position / kPageTokens]) * GroupOf(kv) + walk.g;
    page.c = record[kLogGate];
    span = page.c;
    if (!page.starts) span += c - kv.c_base[page.summary];
  }
  if (page.full) {
    page.decay_sum = record[kCount];
    log_mass = record[kLogMass];
    page.key_norm = record[kKeyNorm];
    page.keep = exp(span);
  }
  keep_out[lane] = page.keep;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const double before = __shfl_up_sync(kAllLanes, page.c, offset);
    if (lane >= offset) page.c += before;
  }
  if (!folds) return page;
  if (page.full) {
    page.top = log_mass - page.c;
    page.sum = 1;
  }
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const double keep = __shfl_up_sync(kAllLanes, page.keep, offset);
    const double decay_sum = __shfl_up_sync(kAllLanes, page.decay_sum, offset);
    const double top = __shfl_up_sync(kAllLanes, page.top, offset);
    const double sum = __shfl_up_sync(kAllLanes, page.sum, offset);
    const double key_norm = __shfl_up_sync(kAllLanes, page.key_norm, offset);
    if (lane < offset) continue;
    page.decay_sum += page.keep * decay_sum;
    page.keep *= keep;
    AddLogTerms(page.top, page.sum, top, sum);
    page.key_norm = fmax(page.key_norm, key_norm);
  }
  return page;
}

// What `carry` becomes over a warp's blocks; the horizon apart.
__device__ __forceinline__ void Advance(Carry& carry, const Page& total, bool folds) {
  if (folds) {
    double top = total.top - carry.c, sum = total.sum;
    AddLogTerms(top, sum, carry.score, 1);
    carry.score = top + log(sum);
    carry.decay_sum = total.decay_sum + total.keep * carry.decay_sum;
    carry.key_norm = fmax(carry.key_norm, total.key_norm);
  }
  carry.c += total.c;
}

// The lane's summaries, and the state if the block is the last. `before` is the carry before the
// warp's first block. Gives S after the block.
__device__ __forceinline__ double StorePage(const AppendParams& params, const PagedKv& kv,
                                            const Walk& walk, int i, const Page& page,
                                            const Carry& before) {
  const int64_t state = HeadIndex(kv, walk.rows.slot, walk.layer, walk.head);
  const double earlier = __shfl_up_sync(kAllLanes, page.c, 1);
  const double c_end = before.c + page.c;
  if (page.there && page.starts) {
    kv.c_base[page.summary] =
        static_cast<int>(threadIdx.x) % kWarp == 0 ? before.c : before.c + earlier;
  }
  if (i == walk.blocks - 1) kv.c[state] = c_end;
  if (!page.full) return 1;
  Carry after = before;
  Advance(after, page, true);
  const double end = static_cast<double>(walk.Position(i) / kPageTokens + 1) * kPageTokens;
  kv.key_norm[page.summary] = after.key_norm;
  kv.score[page.summary] = params.acp == AcpMode::kPaper ? log(end) - c_end : after.score;
  if (i == walk.full - 1) {
    kv.decay_sum[state] = after.decay_sum;
    kv.log_mass[state] = after.score + c_end;
  }
  return after.decay_sum;
}

// N over the warp's blocks, each lane in its dimensions: after each block as if there were nothing
// before the warp's first.
template <int kHeadDim>
__device__ __forceinline__ void SumPageKeys(const StepWork& work, const PagedKv& kv,
                                            const Walk& walk, int first, Space<kHeadDim>& space) {
  constexpr int kDims = kHeadDim < kWarp ? 1 : kHeadDim / kWarp;  // of a lane
  constexpr int kBatch = kDims > 2 ? 8 : 16;                      // blocks whose loads go together
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (lane >= kHeadDim) return;
  double sum[kDims] = {};
#pragma unroll 1
  for (int base = 0; base < kWarp && first + base < walk.full; base += kBatch) {
    double page_keys[kBatch][kDims];
#pragma unroll
    for (int l = 0; l < kBatch; ++l) {
      const int i = first + base + l;
      const double* keys =
          RecordOf(work, kv, walk.first_block + i, walk.head) + kRecordHeader + lane;
#pragma unroll
      for (int k = 0; k < kDims; ++k) {
        page_keys[l][k] = i < walk.full ? keys[k * kWarp] : 0;
      }
    }
#pragma unroll
    for (int l = 0; l < kBatch; ++l) {
      const double keep = space.keep[warp][base + l];
#pragma unroll
      for (int k = 0; k < kDims; ++k) {
        sum[k] = sum[k] * keep + page_keys[l][k];
        space.key_sum[warp][base + l][lane + k * kWarp] = static_cast<float>(sum[k]);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kDims; ++k) space.end[warp][lane + k * kWarp] = sum[k];
}

// Takes N over all warps: `sum` is in each warp N before the first of them, by the lane's
// dimensions, and becomes that after the last. Leaves what each warp starts with.
template <int kHeadDim, int kDims>
__device__ __forceinline__ void CarryKeys(Space<kHeadDim>& space, double (&sum)[kDims]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (lane >= kHeadDim) return;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
#pragma unroll
    for (int k = 0; k < kDims; ++k) {
      const int m = lane + k * kWarp;
      if (w == warp) space.start[w][m] = static_cast<float>(sum[k]);
      sum[k] = sum[k] * space.total[w].keep + space.end[w][m];
    }
  }
}

// The bound on -N of the lane's page, N being what is stored plus `keep` times the warp's start.
// float32 here, as for keys: nothing adds up over pages any more.
template <int kHeadDim, bool kGeneral>
__device__ __forceinline__ float BoundKeySum(const QueryBound& bound, int head, float keep,
                                             Space<kHeadDim>& space) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const float* start = space.start[warp];
  float* sums = space.key_sum[warp][threadIdx.x % kWarp];  // only this lane's from here on
  const int64_t first = static_cast<int64_t>(head) * kHeadDim;
  float square = 0, rest = 0;
  if constexpr (!kGeneral) {
    float part[4] = {};
#pragma unroll 4
    for (int m = 0; m < kHeadDim; m += 4) {
      const float4 a = *reinterpret_cast<const float4*>(bound.diagonal + first + m);
      const float4 s = *reinterpret_cast<const float4*>(start + m);
      const float x[4] = {a.x * fmaf(keep, s.x, sums[m]), a.y * fmaf(keep, s.y, sums[m + 1]),
                          a.z * fmaf(keep, s.z, sums[m + 2]), a.w * fmaf(keep, s.w, sums[m + 3])};
#pragma unroll
      for (int i = 0; i < 4; ++i) part[i] = fmaf(x[i], x[i], part[i]);
    }
    square = (part[0] + part[1]) + (part[2] + part[3]);
  } else {
#pragma unroll 4
    for (int m = 0; m < kHeadDim; ++m) {
      const float n = fmaf(keep, start[m], sums[m]);
      sums[m] = n;
      if (bound.linear != nullptr) rest -= bound.linear[first + m] * n;
      if (bound.absolute != nullptr) rest += bound.absolute[first + m] * fabsf(n);
      if (bound.dense != nullptr || bound.diagonal == nullptr) continue;
      const float x = bound.diagonal[first + m] * n;
      square += x * x;
    }
    constexpr int kRows = 4;
    for (int m = 0; bound.dense != nullptr && m < kHeadDim; m += kRows) {
      const float* rows = bound.dense + (first + m) * kHeadDim;
      float dot[kRows] = {};
#pragma unroll 4
      for (int i = 0; i < kHeadDim; ++i) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) dot[r] = fmaf(rows[r * kHeadDim + i], sums[i], dot[r]);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) square = fmaf(dot[r], dot[r], square);
    }
  }
  return static_cast<float>(bound.scale) * sqrtf(square) + rest;
}

// The least horizon of the warp's pages up to this lane's; infinity where there is none.
__device__ __forceinline__ double ScanHorizons(const Page& page, double c_end, double bound,
                                               double decay_sum) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  double horizon = CUDART_INF;
  if (page.full) {
    horizon = c_end + (bound / decay_sum - log(decay_sum));
    if (horizon != horizon) horizon = CUDART_INF;  // a NaN bounds nothing
  }
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const double earlier = __shfl_up_sync(kAllLanes, horizon, offset);
    if (lane >= offset) horizon = fmin(horizon, earlier);
  }
  return horizon;
}

// The raw last row, which the next step's first token shift needs.
__device__ __forceinline__ void KeepLastRow(const AppendParams& params, const PagedKv& kv,
                                            const Walk& walk) {
  const int m = static_cast<int>(threadIdx.x);
  if (walk.g != 0 || m >= kv.shape.head_dim) return;
  const __nv_bfloat16* row = ProjectionRow(params, walk.rows.first_row + walk.rows.count - 1) +
                             walk.kv_head * kv.shape.head_dim + m;
  const int slot = walk.rows.slot;
  if (params.k_shift_column >= 0) {
    LastRow(kv, kv.last_k, slot, walk.layer, walk.kv_head)[m] =
        __bfloat162float(row[params.k_column]);
  }
  if (params.v_shift_column >= 0) {
    LastRow(kv, kv.last_v, slot, walk.layer, walk.kv_head)[m] =
        __bfloat162float(row[params.v_column]);
  }
}

__device__ __forceinline__ Walk MakeWalk(const BatchView& batch, const PagedKv& kv, int layer,
                                         int seq, int head, int* warp_sums) {
  Walk walk;
  walk.rows = RowsOf(batch, seq);
  walk.layer = layer;
  walk.head = head;
  walk.kv_head = head / GroupOf(kv);
  walk.g = head % GroupOf(kv);
  int before = 0, total = 0;
  for (int s = static_cast<int>(threadIdx.x); s < seq; s += kThreads) {
    before += PiecesOf(RowsOf(batch, s), kPageTokens);
  }
  InclusiveScan<kThreads>(before, warp_sums, total);
  walk.first_block = total;
  walk.blocks = PiecesOf(walk.rows, kPageTokens);
  walk.full = walk.blocks - ((walk.rows.position + walk.rows.count) % kPageTokens != 0 ? 1 : 0);
  walk.table = Table(kv, ListIndex(kv, walk.rows.slot, layer, walk.kv_head));
  return walk;
}

// A thread block a query head and sequence.
template <int kHeadDim, bool kGeneral>
__global__ void __launch_bounds__(kThreads, kHeadDim > 64 ? 3 : 4)
    AccumulateKernel(const __grid_constant__ BatchView batch,
                     const __grid_constant__ AppendParams params,
                     const __grid_constant__ PagedKv kv, const __grid_constant__ StepWork work) {
  constexpr int kDims = kHeadDim < kWarp ? 1 : kHeadDim / kWarp;
  extern __shared__ char memory[];
  __shared__ int warp_sums[kWarps];
  Space<kHeadDim>& space = *reinterpret_cast<Space<kHeadDim>*>(memory);
  LetNextStart();
  WaitForPrevious();
  const int seq = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (batch.slot[seq] < 0) return;
  const Walk walk = MakeWalk(batch, kv, params.layer, seq, static_cast<int>(blockIdx.x), warp_sums);
  KeepLastRow(params, kv, walk);
  const bool folds = params.acp != AcpMode::kOff && walk.full > 0, has_dim = lane < kHeadDim;
  double* state_keys =
      kv.key_sum + HeadIndex(kv, walk.rows.slot, params.layer, walk.head) * kHeadDim;
  Carry carry = LoadCarry(params, kv, walk);
  const double first_c = carry.c;
  double key_sum[kDims] = {};
#pragma unroll
  for (int k = 0; k < kDims; ++k) {
    if (folds && has_dim) key_sum[k] = state_keys[lane + k * kWarp];
  }

#pragma unroll 1
  for (int base = 0; base < walk.blocks; base += kThreads) {
    const int first = base + warp * kWarp, i = first + lane;
    const double* record = RecordOf(work, kv, walk.first_block + i, walk.head);
    const Page page = ScanPages(kv, walk, i, record, folds, first_c, space.keep[warp]);
    if (lane == kWarp - 1) space.total[warp] = page;
    __syncwarp();
    if (folds) SumPageKeys<kHeadDim>(work, kv, walk, first, space);
    __syncthreads();
    Carry before = carry;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (base + w * kWarp >= walk.blocks) break;
      if (w == warp) before = carry;
      Advance(carry, space.total[w], folds);
    }
    const double decay_sum = StorePage(params, kv, walk, i, page, before);
    if (folds) CarryKeys<kHeadDim>(space, key_sum);
    const bool certifies = folds && params.acp == AcpMode::kCertified;
    double horizon = CUDART_INF;
    if (certifies) {
      __syncwarp();
      double bound = 0;
      if (page.full) {
        bound = BoundKeySum<kHeadDim, kGeneral>(params.bound, walk.head,
                                                static_cast<float>(page.keep), space);
      }
      horizon = ScanHorizons(page, before.c + page.c, bound, decay_sum);
      if (lane == kWarp - 1) space.horizon[warp] = horizon;
    }
    __syncthreads();
    if (!certifies) continue;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp && page.full) kv.horizon[page.summary] = fmin(horizon, carry.horizon);
      carry.horizon = fmin(carry.horizon, space.horizon[w]);
    }
  }

  if (!folds || warp != 0 || !has_dim) return;
#pragma unroll
  for (int k = 0; k < kDims; ++k) state_keys[lane + k * kWarp] = key_sum[k];
}

template <int kHeadDim>
cudaError_t LaunchFor(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                      const StepWork& work, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(kv.shape.q_heads), static_cast<unsigned>(batch.num_seqs));
  const auto kernel = IsDiagonal(params.bound) || params.acp == AcpMode::kOff
                          ? AccumulateKernel<kHeadDim, false>
                          : AccumulateKernel<kHeadDim, true>;
  constexpr int kBytes = sizeof(Space<kHeadDim>);
  if (const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes)) {
    return error;
  }
  return Launch(kernel, grid, kThreads, kBytes, stream, batch, params, kv, work);
}

}  // namespace

cudaError_t AccumulateBlocks(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                             const StepWork& work, cudaStream_t stream) {
  return DispatchHeadDim(kv.shape.head_dim, [&]<int kHeadDim>() {
    return LaunchFor<kHeadDim>(batch, params, kv, work, stream);
  });
}

}  // namespace fox::cuda
