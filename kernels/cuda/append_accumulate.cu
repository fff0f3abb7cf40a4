// Append of any batch, second kernel of two: walks each query head's row blocks in order and brings
// together what append_prefill.cu found in each: c_base, the running state, scores and horizons, as
// Fold of kernels/cpu/append.cc does. 32 blocks at a time: a warp's lanes hold one each and add up
// by scans, while the block's threads hold one dimension of N each.
#include "kernels/acp.h"
#include "kernels/core/check.h"
#include "kernels/cuda/append_fold.cuh"
#include "kernels/cuda/append_kernels.h"
#include "kernels/cuda/launch.h"

namespace fox::cuda {
namespace {

template <int kHeadDim>
inline constexpr int kThreads = kHeadDim < kWarp ? kWarp : kHeadDim;

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

// What goes from a page to the next; the same in all lanes.
struct Carry {
  double c;          // after the last block
  double fold_c;     // after the last full page
  double decay_sum;  // S
  double score;      // log M - c: rises from page to page
  double key_norm;
  double horizon;
};

// A lane's block.
struct Page {
  bool full;
  int64_t summary;
  double c_end;
  double decay_sum;
};

template <int kHeadDim>
struct Space {
  static constexpr int kParts = kThreads<kHeadDim> / kWarp;
  double keep[kWarp];                   // decay of N over each block
  double key_sum[kWarp][kHeadDim + 1];  // N after each block; padded against bank conflicts
  double square[kParts][kWarp], rest[kParts][kWarp];  // of the bound on N
};

__device__ __forceinline__ Carry LoadCarry(const AppendParams& params, const PagedKv& kv,
                                           const Walk& walk) {
  const int64_t state = HeadIndex(kv, walk.rows.slot, walk.layer, walk.head);
  const int64_t page = walk.rows.position / kPageTokens, group = GroupOf(kv);
  Carry carry{kv.c[state], 0, 0, -CUDART_INF, 0, CUDART_INF};
  if (params.acp == AcpMode::kOff) return carry;
  carry.fold_c = carry.c;
  if (walk.rows.position % kPageTokens != 0) {
    carry.fold_c = kv.c_base[walk.table[page] * group + walk.g];
  }
  carry.decay_sum = kv.decay_sum[state];
  carry.score = kv.log_mass[state] - carry.fold_c;
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

// Cumulative gates of this lane's block; writes c_base.
__device__ __forceinline__ Page ScanGates(const PagedKv& kv, const Walk& walk, int i,
                                          const double* record, Carry& carry, double& page_base) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool there = i < walk.blocks;
  const int64_t position = walk.Position(i);
  Page page{i < walk.full, 0, 0, 0};
  double c = there ? record[kLogGate] : 0;
  if (there) {
    page.summary = static_cast<int64_t>(walk.table[position / kPageTokens]) * GroupOf(kv) + walk.g;
  }
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const double before = __shfl_up_sync(kAllLanes, c, offset);
    if (lane >= offset) c += before;
  }
  page.c_end = c + carry.c;
  page_base = __shfl_up_sync(kAllLanes, page.c_end, 1);
  if (lane == 0) page_base = carry.c;
  if (there && position % kPageTokens == 0) kv.c_base[page.summary] = page_base;
  if (there && position % kPageTokens != 0) page_base = kv.c_base[page.summary];
  carry.c = __shfl_sync(kAllLanes, page.c_end, kWarp - 1);
  return page;
}

// S, score and largest key norm of this lane's page; writes the latter two, and `keep`.
__device__ __forceinline__ void ScanPages(const AppendParams& params, const PagedKv& kv,
                                          const Walk& walk, int i, const double* record,
                                          double page_base, Page& page, Carry& carry,
                                          double* keep_out) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  double keep = 1, top = -CUDART_INF, sum = 0, key_norm = 0;
  if (page.full) {
    keep = exp(page.c_end - page_base);
    page.decay_sum = record[kCount];
    top = record[kLogMass] - page.c_end;
    sum = 1;
    key_norm = record[kKeyNorm];
  }
  keep_out[lane] = keep;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const double earlier_keep = __shfl_up_sync(kAllLanes, keep, offset);
    const double earlier_count = __shfl_up_sync(kAllLanes, page.decay_sum, offset);
    const double earlier_top = __shfl_up_sync(kAllLanes, top, offset);
    const double earlier_sum = __shfl_up_sync(kAllLanes, sum, offset);
    const double earlier_norm = __shfl_up_sync(kAllLanes, key_norm, offset);
    if (lane < offset) continue;
    page.decay_sum += keep * earlier_count;
    keep *= earlier_keep;
    AddLogTerms(top, sum, earlier_top, earlier_sum);
    key_norm = fmax(key_norm, earlier_norm);
  }
  page.decay_sum += keep * carry.decay_sum;
  AddLogTerms(top, sum, carry.score, 1);
  key_norm = fmax(key_norm, carry.key_norm);
  const double score = top + log(sum);
  if (page.full) {
    const double end = static_cast<double>(walk.Position(i) / kPageTokens + 1) * kPageTokens;
    kv.key_norm[page.summary] = key_norm;
    kv.score[page.summary] = params.acp == AcpMode::kPaper ? log(end) - page.c_end : score;
  }
  carry.decay_sum = __shfl_sync(kAllLanes, page.decay_sum, kWarp - 1);
  carry.score = __shfl_sync(kAllLanes, score, kWarp - 1);
  carry.key_norm = __shfl_sync(kAllLanes, key_norm, kWarp - 1);
  const int full = min(walk.full - (i - lane), kWarp);
  if (full > 0) carry.fold_c = __shfl_sync(kAllLanes, page.c_end, full - 1);
}

// The bound on -N of 32 pages, in parts by dimension: thread t takes page t % 32 and part t / 32.
template <int kHeadDim, bool kGeneral>
__device__ __forceinline__ void BoundKeySums(const QueryBound& bound, int head,
                                             Space<kHeadDim>& space) {
  constexpr int kDims = kHeadDim / Space<kHeadDim>::kParts;
  const int page = static_cast<int>(threadIdx.x) % kWarp;
  const int part = static_cast<int>(threadIdx.x) / kWarp;
  const double* key_sum = space.key_sum[page];
  const int64_t first = static_cast<int64_t>(head) * kHeadDim;
  double square = 0, rest = 0;
  for (int m = part * kDims; m < (part + 1) * kDims; ++m) {
    const double n = key_sum[m];
    if constexpr (kGeneral) {
      if (bound.dense != nullptr) {
        const float* row = bound.dense + (first + m) * kHeadDim;
        double dot = 0;
#pragma unroll 8
        for (int i = 0; i < kHeadDim; ++i) dot += static_cast<double>(row[i]) * key_sum[i];
        square += dot * dot;
      } else if (bound.diagonal != nullptr) {
        const double x = static_cast<double>(bound.diagonal[first + m]) * n;
        square += x * x;
      }
      if (bound.linear != nullptr) rest -= static_cast<double>(bound.linear[first + m]) * n;
      if (bound.absolute != nullptr) {
        rest += static_cast<double>(bound.absolute[first + m]) * fabs(n);
      }
    } else {
      const double x = static_cast<double>(bound.diagonal[first + m]) * n;
      square += x * x;
    }
  }
  space.square[part][page] = square;
  space.rest[part][page] = rest;
}

// Horizons of the pages, by the first warp.
template <int kHeadDim>
__device__ __forceinline__ void WriteHorizons(const AppendParams& params, const PagedKv& kv,
                                              const Space<kHeadDim>& space, const Page& page,
                                              Carry& carry) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  double square = 0, rest = 0;
#pragma unroll
  for (int part = 0; part < Space<kHeadDim>::kParts; ++part) {
    square += space.square[part][lane];
    rest += space.rest[part][lane];
  }
  double horizon = CUDART_INF;
  if (page.full) {
    const double beta =
        (params.bound.scale * sqrt(square) + rest) / page.decay_sum - log(page.decay_sum);
    horizon = page.c_end + beta;
    if (horizon != horizon) horizon = CUDART_INF;  // a NaN bounds nothing
  }
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const double earlier = __shfl_up_sync(kAllLanes, horizon, offset);
    if (lane >= offset) horizon = fmin(horizon, earlier);
  }
  horizon = fmin(horizon, carry.horizon);
  if (page.full) kv.horizon[page.summary] = horizon;
  carry.horizon = __shfl_sync(kAllLanes, horizon, kWarp - 1);
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

template <int kThreadCount>
__device__ __forceinline__ Walk MakeWalk(const BatchView& batch, const PagedKv& kv, int layer,
                                         int seq, int head, int* warp_sums) {
  Walk walk;
  walk.rows = RowsOf(batch, seq);
  walk.layer = layer;
  walk.head = head;
  walk.kv_head = head / GroupOf(kv);
  walk.g = head % GroupOf(kv);
  int before = 0, total = 0;
  for (int s = static_cast<int>(threadIdx.x); s < seq; s += kThreadCount) {
    before += PiecesOf(RowsOf(batch, s), kPageTokens);
  }
  InclusiveScan<kThreadCount>(before, warp_sums, total);
  walk.first_block = total;
  walk.blocks = PiecesOf(walk.rows, kPageTokens);
  walk.full = walk.blocks - ((walk.rows.position + walk.rows.count) % kPageTokens != 0 ? 1 : 0);
  walk.table = Table(kv, ListIndex(kv, walk.rows.slot, layer, walk.kv_head));
  return walk;
}

// A thread block a query head and sequence.
template <int kHeadDim, bool kGeneral>
__global__ void __launch_bounds__(kThreads<kHeadDim>)
    AccumulateKernel(const BatchView batch, const AppendParams params, const PagedKv kv,
                     const StepWork work) {
  __shared__ Space<kHeadDim> space;
  __shared__ int warp_sums[kThreads<kHeadDim> / kWarp];
  LetNextStart();
  WaitForPrevious();
  const int seq = static_cast<int>(blockIdx.y), m = static_cast<int>(threadIdx.x);
  const int lane = m % kWarp;
  if (batch.slot[seq] < 0) return;
  const Walk walk = MakeWalk<kThreads<kHeadDim>>(batch, kv, params.layer, seq,
                                                 static_cast<int>(blockIdx.x), warp_sums);
  KeepLastRow(params, kv, walk);
  const bool folds = params.acp != AcpMode::kOff && walk.full > 0, has_dim = m < kHeadDim;
  const int64_t state = HeadIndex(kv, walk.rows.slot, params.layer, walk.head);
  Carry carry = LoadCarry(params, kv, walk);
  double key_sum = folds && has_dim ? kv.key_sum[state * kHeadDim + m] : 0;

  for (int base = 0; base < walk.blocks; base += kWarp) {
    double page_keys[kWarp];
#pragma unroll
    for (int l = 0; l < kWarp; ++l) {
      page_keys[l] = 0;
      if (folds && has_dim && base + l < walk.full) {
        page_keys[l] =
            RecordOf(work, kv, walk.first_block + base + l, walk.head)[kRecordHeader + m];
      }
    }
    Page page{};
    if (m < kWarp) {
      const double* record = RecordOf(work, kv, walk.first_block + base + lane, walk.head);
      double page_base;
      page = ScanGates(kv, walk, base + lane, record, carry, page_base);
      if (folds) {
        ScanPages(params, kv, walk, base + lane, record, page_base, page, carry, space.keep);
      }
    }
    if (!folds) continue;
    __syncthreads();
    if (has_dim) {
#pragma unroll
      for (int l = 0; l < kWarp; ++l) {
        key_sum = key_sum * space.keep[l] + page_keys[l];
        space.key_sum[l][m] = key_sum;
      }
    }
    __syncthreads();
    if (params.acp != AcpMode::kCertified) continue;
    BoundKeySums<kHeadDim, kGeneral>(params.bound, walk.head, space);
    __syncthreads();
    if (m < kWarp) WriteHorizons(params, kv, space, page, carry);
  }

  if (m == 0) kv.c[state] = carry.c;
  if (!folds) return;
  if (has_dim) kv.key_sum[state * kHeadDim + m] = key_sum;
  if (m == 0) {
    kv.decay_sum[state] = carry.decay_sum;
    kv.log_mass[state] = carry.score + carry.fold_c;
  }
}

template <int kHeadDim>
cudaError_t LaunchFor(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                      const StepWork& work, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(kv.shape.q_heads), static_cast<unsigned>(batch.num_seqs));
  return IsDiagonal(params.bound) || params.acp == AcpMode::kOff
             ? Launch(AccumulateKernel<kHeadDim, false>, grid, kThreads<kHeadDim>, 0, stream, batch,
                      params, kv, work)
             : Launch(AccumulateKernel<kHeadDim, true>, grid, kThreads<kHeadDim>, 0, stream, batch,
                      params, kv, work);
}

}  // namespace

cudaError_t AccumulateBlocks(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                             const StepWork& work, cudaStream_t stream) {
  switch (kv.shape.head_dim) {
    case 16:
      return LaunchFor<16>(batch, params, kv, work, stream);
    case 32:
      return LaunchFor<32>(batch, params, kv, work, stream);
    case 64:
      return LaunchFor<64>(batch, params, kv, work, stream);
    case 128:
      return LaunchFor<128>(batch, params, kv, work, stream);
    default:
      FOX_CHECK(false);
      return cudaErrorInvalidValue;
  }
}

}  // namespace fox::cuda
