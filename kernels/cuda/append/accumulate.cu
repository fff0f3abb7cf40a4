// Append of any batch, second kernel of two: brings together, for each query head, what
// prefill.cu found in each of its row blocks: page_cum_log_f, the running state, scores and
// log_denominator_bounds, as AccumulatePage of kernels/cpu/append.cc does. All of them are scans
// with an associative sum: lanes hold a block each, warps 32 blocks in a row, and warps then learn
// what all those before them add up to.
#include "kernels/acp.h"
#include "kernels/cuda/append/kernels.h"
#include "kernels/cuda/append/page_sums.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/cuda/runtime/kernel_attributes.h"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;

// One query head of one sequence and its row blocks.
struct HeadScan {
  SequenceRows rows;
  int layer;
  int head, kv_head, g;  // g: in the group
  int64_t first_block;   // in StepSchedule::blocks
  int blocks;
  int full;  // blocks that complete their page: all, or all but the last
  const int32_t* table;

  __device__ int64_t Position(int i) const {
    return i == 0 ? rows.position : (rows.position / kPageTokens + i) * kPageTokens;
  }
};

// What goes from a page to the next; the same in all threads.
struct ScanCarry {
  double c;               // after the last block
  double decay_sum;       // S
  double log_mass_bound;  // log M - c: rises from page to page
  double key_norm;
  double log_denominator_bound;
};

// A lane's block, with what the blocks of the warp up to it add up to: c from the warp's first row
// on; the sums as if there were nothing before the warp. `keep` is the decay since the warp's
// first row, `score` is log M - c.
struct Page {
  bool there, full;
  bool starts;  // the block holds its page's first row
  int64_t summary;
  double c;
  double decay_factor, decay_sum, key_norm;
  LogTerm log_mass_bound;
};

// What the keys of one page weigh at the next one's end, and N of the page itself at its own.
struct PageWeights {
  double decay_factor, own;
};

template <int kHeadDim>
struct Space {
  Page total[kWarps];                          // of a warp's last lane
  double log_denominator_bound[kWarps];        // least of a warp
  PageWeights weights[kWarps][kWarp];          // of N, for each block
  double end[kWarps][kHeadDim];                // N after a warp's last block, from nothing
  alignas(16) float start[kWarps][kHeadDim];   // N before the warp's first block
  float key_sum[kWarps][kWarp][kHeadDim + 1];  // N after each block, from nothing; padded
};

__device__ __forceinline__ ScanCarry LoadCarry(const AppendParams& params, const PagedKv& kv,
                                               const HeadScan& scan) {
  const int64_t state = kv.HeadIndex(scan.rows.slot, scan.layer, scan.head);
  const int64_t page = scan.rows.position / kPageTokens, group = kv.shape.group();
  ScanCarry carry{kv.cum_log_f[state], 0, -CUDART_INF, 0, CUDART_INF};
  if (params.acp == AcpMode::kOff) return carry;
  double page_end_c = carry.c;  // after the last full page
  if (scan.rows.position % kPageTokens != 0) {
    page_end_c = kv.page_cum_log_f[scan.table[page] * group + scan.g];
  }
  carry.decay_sum = kv.decay_sum[state];
  carry.log_mass_bound = kv.log_mass[state] - page_end_c;
  if (page == 0) return carry;
  const int64_t before = scan.table[page - 1] * group + scan.g;  // the last full page is live
  carry.key_norm = kv.max_key_norm[before];
  if (params.acp == AcpMode::kCertified)
    carry.log_denominator_bound = kv.log_denominator_bound[before];
  return carry;
}

// This lane's block and its warp's sums up to it. `c` is that before the walk's first block.
__device__ __forceinline__ Page ScanPages(const PagedKv& kv, const HeadScan& scan, int i,
                                          const double* record, bool accumulates, double c,
                                          PageWeights* weights) {
  Page page{i < scan.blocks, accumulates && i < scan.full, false, 0, 0, 1, 0, 0, {-CUDART_INF, 0}};
  double span = 0, log_mass = 0, own = 0;  // span: from the page's start to the block's end
  if (page.there) {
    const int64_t position = scan.Position(i);
    page.starts = position % kPageTokens == 0;
    page.summary =
        static_cast<int64_t>(scan.table[position / kPageTokens]) * kv.shape.group() + scan.g;
    page.c = record[kLogGate];
    span = page.c;
    if (!page.starts) span += c - kv.page_cum_log_f[page.summary];
  }
  if (page.full) {
    const double paid = OffsetRounding(span);
    own = exp(-paid);
    page.decay_sum = __dmul_rn(record[kCount], own);
    log_mass = record[kLogMass] + paid;
    page.key_norm = record[kKeyNorm];
    page.decay_factor = exp(span);
  }
  weights[Lane()] = {page.decay_factor, own};
  page.c = WarpScan(page.c);
  if (!accumulates) return page;
  if (page.full) page.log_mass_bound = {log_mass - page.c, 1};
  page.log_mass_bound = LogAddExpScan(page.log_mass_bound);
  page.key_norm = WarpScan(page.key_norm, [](double a, double b) { return fmax(b, a); });
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const double decay_factor = FromLaneBelow(page.decay_factor, offset);
    const double decay_sum = FromLaneBelow(page.decay_sum, offset);
    if (Lane() < offset) continue;
    page.decay_sum = fma(page.decay_factor, decay_sum, page.decay_sum);
    page.decay_factor *= decay_factor;
  }
  return page;
}

// What `carry` becomes over a warp's blocks; the log_denominator_bound apart.
__device__ __forceinline__ void Advance(ScanCarry& carry, const Page& total, bool accumulates) {
  if (accumulates) {
    LogTerm log_mass_bound{total.log_mass_bound.max - carry.c, total.log_mass_bound.sum};
    AddLogTerm(log_mass_bound, {carry.log_mass_bound, 1});
    carry.log_mass_bound = log_mass_bound.max + log(log_mass_bound.sum);
    carry.decay_sum = fma(total.decay_factor, carry.decay_sum, total.decay_sum);
    carry.key_norm = fmax(carry.key_norm, total.key_norm);
  }
  carry.c += total.c;
}

// The lane's summaries but H, and the state if the block is the last. `before` is the carry before
// the warp's first block. Gives S after the lane's block.
__device__ __forceinline__ double StorePage(const AppendParams& params, const PagedKv& kv,
                                            const HeadScan& scan, int i, const Page& page,
                                            const ScanCarry& before) {
  const int64_t state = kv.HeadIndex(scan.rows.slot, scan.layer, scan.head);
  const double earlier = FromLaneBelow(page.c, 1);
  const double c_end = before.c + page.c;
  if (page.there && page.starts)
    kv.page_cum_log_f[page.summary] = Lane() == 0 ? before.c : before.c + earlier;
  if (i == scan.blocks - 1) kv.cum_log_f[state] = c_end;
  ScanCarry after = before;
  if (!page.full) return 1;
  Advance(after, page, true);
  const auto last =
      static_cast<double>(scan.Position(i) / kPageTokens * kPageTokens + kPageTokens - 1);
  const double log_mass = after.log_mass_bound + c_end;
  kv.max_key_norm[page.summary] = after.key_norm;
  kv.log_mass_bound[page.summary] =
      params.acp == AcpMode::kPaper
          ? PaperLogMassBound(last, c_end)
          : CertifiedLogMassBound(log_mass, last, c_end, params.bound.max_logit_bound[scan.head]);
  if (i == scan.full - 1) {
    kv.decay_sum[state] = after.decay_sum;
    kv.log_mass[state] = log_mass;
  }
  return after.decay_sum;
}

// N over the warp's blocks, each lane in its dimensions: after each block as if there were nothing
// before the warp's first.
template <int kHeadDim>
__device__ __forceinline__ void SumPageKeys(const StepSchedule& schedule, const PagedKv& kv,
                                            const HeadScan& scan, int first,
                                            Space<kHeadDim>& space) {
  constexpr int kDims = kHeadDim < kWarp ? 1 : kHeadDim / kWarp;  // of a lane
  constexpr int kBatch = kDims > 2 ? 8 : 16;                      // blocks whose loads go together
  const int lane = Lane();
  const int warp = Warp();
  if (lane >= kHeadDim) return;
  double sum[kDims] = {};
#pragma unroll 1
  for (int base = 0; base < kWarp && first + base < scan.full; base += kBatch) {
    double page_keys[kBatch][kDims];
#pragma unroll
    for (int l = 0; l < kBatch; ++l) {
      const int i = first + base + l;
      const double* keys =
          RecordOf(schedule, kv, scan.first_block + i, scan.head) + kRecordHeader + lane;
#pragma unroll
      for (int k = 0; k < kDims; ++k) {
        page_keys[l][k] = i < scan.full ? keys[k * kWarp] : 0;
      }
    }
#pragma unroll
    for (int l = 0; l < kBatch; ++l) {
      const PageWeights weights = space.weights[warp][base + l];
#pragma unroll
      for (int k = 0; k < kDims; ++k) {
        sum[k] = fma(sum[k], weights.decay_factor, __dmul_rn(page_keys[l][k], weights.own));
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
__device__ __forceinline__ void PropagateKeySums(Space<kHeadDim>& space, double (&sum)[kDims]) {
  const int lane = Lane();
  const int warp = Warp();
  if (lane >= kHeadDim) return;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
#pragma unroll
    for (int k = 0; k < kDims; ++k) {
      const int m = lane + k * kWarp;
      if (w == warp) space.start[w][m] = static_cast<float>(sum[k]);
      sum[k] = fma(sum[k], space.total[w].decay_factor, space.end[w][m]);
    }
  }
}

// The bound on -N of the lane's page, N being what is stored plus `keep` times the warp's start.
// float32 here, as for keys: nothing adds up over pages any more.
template <int kHeadDim, bool kGeneralBound>
__device__ __forceinline__ float BoundKeySum(const QueryBound& bound, int head, float decay_factor,
                                             Space<kHeadDim>& space) {
  const int warp = Warp();
  const float* start = space.start[warp];
  float* sums = space.key_sum[warp][Lane()];  // only this lane's from here on
  const int64_t first = static_cast<int64_t>(head) * kHeadDim;
  float square = 0, rest = 0;
  if constexpr (!kGeneralBound) {
    float part[4] = {};
#pragma unroll 4
    for (int m = 0; m < kHeadDim; m += 4) {
      const float4 a = *reinterpret_cast<const float4*>(bound.diagonal + first + m);
      const float4 s = *reinterpret_cast<const float4*>(start + m);
      const float x[4] = {
          a.x * fmaf(decay_factor, s.x, sums[m]), a.y * fmaf(decay_factor, s.y, sums[m + 1]),
          a.z * fmaf(decay_factor, s.z, sums[m + 2]), a.w * fmaf(decay_factor, s.w, sums[m + 3])};
#pragma unroll
      for (int i = 0; i < 4; ++i) part[i] = fmaf(x[i], x[i], part[i]);
    }
    square = (part[0] + part[1]) + (part[2] + part[3]);
  } else {
#pragma unroll 4
    for (int m = 0; m < kHeadDim; ++m) {
      const float n = fmaf(decay_factor, start[m], sums[m]);
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

// The least bound H of the warp's pages up to this lane's; infinity where there is none.
__device__ __forceinline__ double ScanDenominatorBounds(const Page& page, double c_end,
                                                        double beta) {
  const double bound = page.full ? LogDenominatorBound(CUDART_INF, c_end, beta) : CUDART_INF;
  return WarpScan(bound, [](double a, double b) { return fmin(b, a); });
}

// The sequence's raw row `r` of this step.
__device__ __forceinline__ void StoreRow(const AppendParams& params, const PagedKv& kv,
                                         const HeadScan& scan, int64_t r, void* keys,
                                         void* values) {
  const int m = static_cast<int>(threadIdx.x), slot = scan.rows.slot;
  const __nv_bfloat16* row =
      ProjectionRow(params, scan.rows.first_row + r) + scan.kv_head * kv.shape.head_dim + m;
  if (params.k_shift_column >= 0) {
    LastRow(kv, keys, slot, scan.layer, scan.kv_head)[m] = __bfloat162float(row[params.k_column]);
  }
  if (params.v_shift_column >= 0) {
    LastRow(kv, values, slot, scan.layer, scan.kv_head)[m] = __bfloat162float(row[params.v_column]);
  }
}

// The raw last row, which the next step's first token shift needs, and that of the last page end,
// for who starts there (Ops::Share).
__device__ __forceinline__ void StoreLastRow(const AppendParams& params, const PagedKv& kv,
                                             const HeadScan& scan) {
  if (scan.g != 0 || static_cast<int>(threadIdx.x) >= kv.shape.head_dim) return;
  StoreRow(params, kv, scan, scan.rows.count - 1, kv.last_k, kv.last_v);
  const int64_t page_end = (scan.rows.position + scan.rows.count) / kPageTokens * kPageTokens;
  if (page_end <= scan.rows.position) return;
  StoreRow(params, kv, scan, page_end - 1 - scan.rows.position, kv.page_end_k, kv.page_end_v);
}

__device__ __forceinline__ HeadScan MakeHeadScan(const BatchView& batch, const PagedKv& kv,
                                                 int layer, int seq, int head, int* warp_sums) {
  HeadScan scan;
  scan.rows = RowsOf(batch, seq);
  scan.layer = layer;
  scan.head = head;
  scan.kv_head = head / kv.shape.group();
  scan.g = head % kv.shape.group();
  int before = 0, total = 0;
  for (int s = static_cast<int>(threadIdx.x); s < seq; s += kThreads) {
    before += NumSpans(RowsOf(batch, s), kPageTokens);
  }
  InclusiveScan<kThreads>(before, warp_sums, total);
  scan.first_block = total;
  scan.blocks = NumSpans(scan.rows, kPageTokens);
  scan.full = scan.blocks - ((scan.rows.position + scan.rows.count) % kPageTokens != 0 ? 1 : 0);
  scan.table = kv.Table(kv.ListIndex(scan.rows.slot, layer, scan.kv_head));
  return scan;
}

// H of the lane's page, and then of the carry: the minimum with those of the warps before.
template <int kHeadDim>
__device__ __forceinline__ void StoreDenominatorBound(const PagedKv& kv, const Page& page,
                                                      double log_denominator_bound,
                                                      const Space<kHeadDim>& space,
                                                      ScanCarry& carry) {
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w == Warp() && page.full) {
      kv.log_denominator_bound[page.summary] =
          fmin(log_denominator_bound, carry.log_denominator_bound);
    }
    carry.log_denominator_bound = fmin(carry.log_denominator_bound, space.log_denominator_bound[w]);
  }
}

// One CTA per (query head, sequence).
template <int kHeadDim, bool kGeneralBound>
__global__ void __launch_bounds__(kThreads, kHeadDim > 64 ? 3 : 4)
    AccumulateKernel(const __grid_constant__ BatchView batch,
                     const __grid_constant__ AppendParams params,
                     const __grid_constant__ PagedKv kv,
                     const __grid_constant__ StepSchedule schedule) {
  constexpr int kDims = kHeadDim < kWarp ? 1 : kHeadDim / kWarp;
  extern __shared__ char memory[];
  __shared__ int warp_sums[kWarps];
  Space<kHeadDim>& space = *reinterpret_cast<Space<kHeadDim>*>(memory);
  TriggerDependents();
  WaitOnDependencies();
  const int seq = static_cast<int>(blockIdx.y);
  const int lane = Lane();
  const int warp = Warp();
  if (batch.slot[seq] < 0) return;
  const HeadScan scan =
      MakeHeadScan(batch, kv, params.layer, seq, static_cast<int>(blockIdx.x), warp_sums);
  StoreLastRow(params, kv, scan);
  const bool accumulates = params.acp != AcpMode::kOff && scan.full > 0, has_dim = lane < kHeadDim;
  double* state_keys =
      kv.key_sum + kv.HeadIndex(scan.rows.slot, params.layer, scan.head) * kHeadDim;
  ScanCarry carry = LoadCarry(params, kv, scan);
  const double first_c = carry.c;
  double key_sum[kDims] = {};
#pragma unroll
  for (int k = 0; k < kDims; ++k) {
    if (accumulates && has_dim) key_sum[k] = state_keys[lane + k * kWarp];
  }

#pragma unroll 1
  for (int base = 0; base < scan.blocks; base += kThreads) {
    const int first = base + warp * kWarp, i = first + lane;
    const double* record = RecordOf(schedule, kv, scan.first_block + i, scan.head);
    const Page page = ScanPages(kv, scan, i, record, accumulates, first_c, space.weights[warp]);
    if (lane == kWarp - 1) space.total[warp] = page;
    __syncwarp();
    if (accumulates) SumPageKeys<kHeadDim>(schedule, kv, scan, first, space);
    __syncthreads();
    ScanCarry before = carry;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (base + w * kWarp >= scan.blocks) break;
      if (w == warp) before = carry;
      Advance(carry, space.total[w], accumulates);
    }
    const double decay_sum = StorePage(params, kv, scan, i, page, before);
    if (accumulates) PropagateKeySums<kHeadDim>(space, key_sum);
    const bool certifies = accumulates && params.acp == AcpMode::kCertified;
    double log_denominator_bound = CUDART_INF;
    if (certifies) {
      __syncwarp();
      double beta = 0;
      if (page.full) {
        const float bound = BoundKeySum<kHeadDim, kGeneralBound>(
            params.bound, scan.head, static_cast<float>(page.decay_factor), space);
        beta = static_cast<double>(bound) / decay_sum +
               kKeySumRounding * MaxNormProduct(params.bound, scan.head) - log(decay_sum);
      }
      log_denominator_bound = ScanDenominatorBounds(page, before.c + page.c, beta);
      if (lane == kWarp - 1) space.log_denominator_bound[warp] = log_denominator_bound;
    }
    __syncthreads();
    if (certifies) StoreDenominatorBound<kHeadDim>(kv, page, log_denominator_bound, space, carry);
  }

  if (!accumulates || warp != 0 || !has_dim) return;
#pragma unroll
  for (int k = 0; k < kDims; ++k) state_keys[lane + k * kWarp] = key_sum[k];
}

template <int kHeadDim>
cudaError_t LaunchFor(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                      const StepSchedule& schedule, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(kv.shape.q_heads), static_cast<unsigned>(batch.num_seqs));
  const auto kernel = IsDiagonal(params.bound) || params.acp == AcpMode::kOff
                          ? AccumulateKernel<kHeadDim, false>
                          : AccumulateKernel<kHeadDim, true>;
  constexpr int kBytes = sizeof(Space<kHeadDim>);
  if (const cudaError_t error = AllowDynamicSmem(KernelAddress(kernel), kBytes)) return error;
  return Launch(kernel, grid, kThreads, kBytes, stream, batch, params, kv, schedule);
}

}  // namespace

cudaError_t AccumulateBlocks(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                             const StepSchedule& schedule, cudaStream_t stream) {
  return DispatchHeadDim(kv.shape.head_dim, [&]<int kHeadDim>() {
    return LaunchFor<kHeadDim>(batch, params, kv, schedule, stream);
  });
}

}  // namespace fox::cuda
