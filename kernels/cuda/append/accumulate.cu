// Append of prefill rows, second kernel of three: combines, for each query head, the records that
// prefill.cu wrote for its row blocks into page_cum_log_f, the running state, log_mass_bounds
// and log_denominator_bounds, as AccumulatePage of kernels/cpu/append.cc does.
//
// Sums over pages are running sums in float64: each page adds to the sum so far, so a prompt
// produces the same bits in one chunk and in many. A step of a running sum is a few instructions;
// everything else is computed for many pages in parallel, and maxima and minima, whose order does
// not matter, are scans. Masses, whose step is a logarithm, are added by pairs of pages
// (2t, 2t + 1), which a chunk that begins at a multiple of 128 tokens never separates.
#include "kernels/cuda/append/append.h"
#include "kernels/cuda/append/page_sums.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/cuda/runtime/kernel_attributes.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/paging/acp.h"

namespace fox::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
// Blocks of a round: one per thread, or half as many where the sums of their keys would not fit
// into the shared memory of every device.
template <int kHeadDim>
constexpr int kRound = kHeadDim <= 64 ? kThreads : kThreads / 2;
// Warps that add up N, one dimension per lane.
template <int kHeadDim>
constexpr int kKeyWarps = (kHeadDim + kWarp - 1) / kWarp;

// One query head of one sequence and its row blocks.
struct HeadScan {
  SequenceRows rows;
  int layer;
  int head, kv_head, g;  // g: in the group
  int64_t first_block;   // in StepSchedule::blocks
  int blocks;
  int full;  // blocks that complete their page: all, or all but the last
  const int32_t* table;

  // True if pages are added in pairs.
  __device__ bool paired() const { return rows.position / kPageTokens % 2 == 0; }
  __device__ int64_t Position(int i) const {
    return i == 0 ? rows.position : (rows.position / kPageTokens + i) * kPageTokens;
  }
};

// The state before the first block.
struct ScanCarry {
  double c;
  double decay_sum;  // S
  double log_mass;   // log M, relative to the last page end
  PageBounds bounds;
};

// A thread's block of a round. decay: from the page's start to the block's end. The rest applies to
// full pages: mass is log M of the page alone, at its end.
struct PageBlock {
  bool there = false, full = false;
  bool starts = false;  // the block holds its page's first row
  int64_t summary = 0;
  double decay = 0, mass = 0;
};

// A page's factors of the running sum before it and of its own keys.
struct alignas(16) PageFactors {
  double before, own;
};

// The blocks of a round. AddPages turns each block's addend into the running sum after it.
template <int kHeadDim>
struct Space {
  static constexpr int kBlocks = kRound<kHeadDim>;
  PageFactors factors[kBlocks];          // 1 and 0 past the last full page
  double c[kBlocks];                     // input: the log gate of a block's rows
  double log_mass[kBlocks];              // input: of a page, or of a pair
  double decay[kBlocks];                 // of that page or pair
  double decay_sum[kBlocks];             // input: of a page
  double first_c, first_log_mass;        // before the round
  PageBounds total[kWarps];              // of each warp
  float key_sum[kBlocks][kHeadDim + 1];  // N after each page; padded
};

__device__ __forceinline__ ScanCarry LoadCarry(const AppendParams& params, const PagedKv& kv,
                                               const HeadScan& scan) {
  const int64_t state = kv.HeadIndex(scan.rows.slot, scan.layer, scan.head);
  const int64_t page = scan.rows.position / kPageTokens, group = kv.shape.group();
  const int before = kv.After(scan.rows.slot, scan.rows.position);
  ScanCarry carry{kv.cum_log_f[kv.HeadIndex(before, scan.layer, scan.head)], 0, -CUDART_INF,
                  PageBounds::OfNone()};
  if (params.acp == AcpMode::kOff) return carry;
  carry.decay_sum = kv.decay_sum[state];
  carry.log_mass = kv.log_mass[state];
  if (page == 0) return carry;
  carry.bounds = BoundsAt(kv, params.acp, scan.table[page - 1] * group + scan.g);  // it is live
  return carry;
}

// log(exp(a) + exp(b)), the logarithm's argument in float32: the increment errs by 2^-22 of itself,
// and the increments of a log M add up to its growth, a few tens. A NaN stays.
__device__ __forceinline__ double AddMass(double a, double b) {
  const double high = a > b ? a : b, low = a > b ? b : a;
  if (high == -CUDART_INF) return low + high;
  return high + static_cast<double>(log1pf(expf(static_cast<float>(low - high))));
}

// Reads the thread's block and stores its addends for the running sums. Pages come in pairs where
// the first block begins an even page: an odd one then includes its neighbour's addend. `c` is the
// value before the very first block.
template <int kHeadDim>
__device__ __forceinline__ PageBlock ReadBlock(const StepSchedule& schedule, const PagedKv& kv,
                                               const HeadScan& scan, int i, bool accumulates,
                                               double c, Space<kHeadDim>& space) {
  const int at = static_cast<int>(threadIdx.x);
  const double* record = RecordOf(schedule, kv, scan.first_block + i, scan.head);
  PageBlock block;
  block.mass = -CUDART_INF;
  if (at >= kRound<kHeadDim>) return block;
  block.there = i < scan.blocks;
  block.full = accumulates && i < scan.full;
  double gate = 0;
  if (block.there) {
    const int64_t position = scan.Position(i);
    block.starts = position % kPageTokens == 0;
    block.summary = kv.SummaryIndex(scan.table[position / kPageTokens], scan.g);
    gate = block.decay = record[kLogGate];
    if (!block.starts) block.decay += c - kv.page_cum_log_f[block.summary];
  }
  space.c[at] = gate;
  PageFactors factors{1, 0};
  if (block.full) {
    const double paid = OffsetRounding(block.decay);
    factors = {exp(block.decay), exp(-paid)};
    space.decay_sum[at] = __dmul_rn(record[kCount], factors.own);
    block.mass = record[kLogMass] + paid;
  }
  space.factors[at] = factors;
  const double mass_before = FromLaneBelow(block.mass, 1);
  const double decay_before = FromLaneBelow(block.decay, 1);
  double mass = block.mass, decay = block.decay;
  if (scan.paired() && at % 2 == 1) {
    mass = AddMass(mass_before + decay, mass);
    decay += decay_before;
  }
  space.log_mass[at] = mass;
  space.decay[at] = decay;
  return block;
}

// Running sums N over a round's first `full` pages, by the first warps. Pages are added in batches
// while the next batch is being loaded, because a load takes as long as some ten additions.
template <int kHeadDim>
__device__ __forceinline__ void AddKeySums(const StepSchedule& schedule, const PagedKv& kv,
                                           const HeadScan& scan, int first, int full,
                                           Space<kHeadDim>& space, double& sum) {
  constexpr int kBatch = 16;
  static_assert(kRound<kHeadDim> % kBatch == 0);
  const int dim = static_cast<int>(threadIdx.x), whole = full / kBatch * kBatch;
  if (dim >= kHeadDim) return;
  const double* keys =
      RecordOf(schedule, kv, scan.first_block + first, scan.head) + kRecordHeader + dim;
  const int64_t stride = RecordOf(schedule, kv, 1, 0) - RecordOf(schedule, kv, 0, 0);
  double batch[kBatch];
  const auto load = [&](int base) {
    const double* from = keys + base * stride;
#pragma unroll
    for (int l = 0; l < kBatch; ++l, from += stride) batch[l] = *from;
  };
  const auto add = [&](int page, double page_keys) {
    const PageFactors factors = space.factors[page];
    sum = fma(sum, factors.before, __dmul_rn(page_keys, factors.own));
    space.key_sum[page][dim] = static_cast<float>(sum);
  };
  if (whole > 0) load(0);
#pragma unroll 1
  for (int base = 0; base < whole; base += kBatch) {
    double now[kBatch];
#pragma unroll
    for (int l = 0; l < kBatch; ++l) now[l] = batch[l];
    load(min(base + kBatch, whole - kBatch));  // loads the last batch twice instead of branching
#pragma unroll
    for (int l = 0; l < kBatch; ++l) add(base + l, now[l]);
  }
  if (whole == full) return;
#pragma unroll
  for (int l = 0; l < kBatch; ++l) batch[l] = whole + l < full ? keys[(whole + l) * stride] : 0;
#pragma unroll
  for (int l = 0; l < kBatch; ++l) add(whole + l, batch[l]);
}

// log M over a round's first `full` pages: after every page or, if `paired`, after every second
// one. One thread.
template <int kHeadDim>
__device__ __forceinline__ double AddMasses(int full, bool paired, double log_mass,
                                            Space<kHeadDim>& space) {
  space.first_log_mass = log_mass;
  const int step = paired ? 2 : 1;
#pragma unroll 4
  for (int i = step - 1; i < full; i += step) {
    log_mass = AddMass(log_mass + space.decay[i], space.log_mass[i]);
    space.log_mass[i] = log_mass;
  }
  if (paired && full % 2 == 1) {
    log_mass = AddMass(log_mass + space.decay[full - 1], space.log_mass[full - 1]);
    space.log_mass[full - 1] = log_mass;
  }
  return log_mass;
}

// Running sums of c over a round's blocks, and S over its full pages. One thread.
template <int kHeadDim>
__device__ __forceinline__ void AddGates(int blocks, int full, Space<kHeadDim>& space,
                                         ScanCarry& carry) {
  space.first_c = carry.c;
#pragma unroll 8
  for (int i = 0; i < blocks; ++i) space.c[i] = carry.c += space.c[i];
#pragma unroll 8
  for (int i = 0; i < full; ++i) {
    carry.decay_sum = fma(carry.decay_sum, space.factors[i].before, space.decay_sum[i]);
    space.decay_sum[i] = carry.decay_sum;
  }
}

// All running sums of a round, in parallel in different warps. `key_sum`: N of the thread's
// dimension.
template <int kHeadDim>
__device__ __forceinline__ void AddPages(const StepSchedule& schedule, const PagedKv& kv,
                                         const HeadScan& scan, int first, bool accumulates,
                                         Space<kHeadDim>& space, ScanCarry& carry,
                                         double& key_sum) {
  constexpr int kKeys = kKeyWarps<kHeadDim>;
  static_assert(kWarps >= kKeys + 2);
  const int blocks = min(kRound<kHeadDim>, scan.blocks - first);
  const int full = accumulates ? max(0, min(kRound<kHeadDim>, scan.full - first)) : 0;
  const int warp = Warp(), lane = Lane();
  if (warp < kKeys) {
    AddKeySums<kHeadDim>(schedule, kv, scan, first, full, space, key_sum);
  } else if (warp == kKeys && lane == 0) {
    carry.log_mass = AddMasses(full, scan.paired(), carry.log_mass, space);
  } else if (warp == kKeys + 1 && lane == 0) {
    AddGates(blocks, full, space, carry);
  }
}

// The bound on -N of the thread's page. float32 as for keys, because errors no longer add up over
// pages.
template <int kHeadDim, bool kGeneralBound>
__device__ __forceinline__ float BoundKeySum(const QueryBound& bound, int head, const float* sums) {
  const int64_t first = static_cast<int64_t>(head) * kHeadDim;
  float square = 0, rest = 0;
  if constexpr (!kGeneralBound) {
    float part[4] = {};
#pragma unroll 4
    for (int m = 0; m < kHeadDim; m += 4) {
      const float4 a = *reinterpret_cast<const float4*>(bound.diagonal + first + m);
      const float x[4] = {a.x * sums[m], a.y * sums[m + 1], a.z * sums[m + 2], a.w * sums[m + 3]};
#pragma unroll
      for (int i = 0; i < 4; ++i) part[i] = fmaf(x[i], x[i], part[i]);
    }
    square = (part[0] + part[1]) + (part[2] + part[3]);
  } else {
#pragma unroll 4
    for (int m = 0; m < kHeadDim; ++m) {
      if (bound.linear != nullptr) rest -= bound.linear[first + m] * sums[m];
      if (bound.absolute != nullptr) rest += bound.absolute[first + m] * fabsf(sums[m]);
      if (bound.dense != nullptr || bound.diagonal == nullptr) continue;
      const float x = bound.diagonal[first + m] * sums[m];
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

// After the running sums: c of the thread's block, and the state if it is the last.
template <int kHeadDim>
__device__ __forceinline__ void StoreGates(const PagedKv& kv, const HeadScan& scan, int i,
                                           const PageBlock& block, const Space<kHeadDim>& space) {
  const int at = static_cast<int>(threadIdx.x);
  if (!block.there) return;
  if (block.starts) kv.page_cum_log_f[block.summary] = at == 0 ? space.first_c : space.c[at - 1];
  if (i != scan.blocks - 1) return;
  const int after = kv.After(scan.rows.slot, scan.rows.position + scan.rows.count);
  kv.cum_log_f[kv.HeadIndex(after, scan.layer, scan.head)] = space.c[at];
}

// The bounds of the thread's page alone, and the state if it is the last full one.
template <int kHeadDim, bool kGeneralBound>
__device__ __forceinline__ PageBounds FinishPage(const AppendParams& params, const PagedKv& kv,
                                                 const HeadScan& scan, int i,
                                                 const PageBlock& block,
                                                 const Space<kHeadDim>& space) {
  if (!block.full) return PageBounds::OfNone();
  const int at = static_cast<int>(threadIdx.x);
  double log_mass = space.log_mass[at];
  if (scan.paired() && at % 2 == 0 && i + 1 < scan.full) {  // only pairs were added
    const double before = at == 0 ? space.first_log_mass : space.log_mass[at - 1];
    log_mass = AddMass(before + block.decay, block.mass);
  }
  const double c_end = space.c[at], decay_sum = space.decay_sum[at];
  if (i == scan.full - 1) {
    const int64_t state = kv.HeadIndex(scan.rows.slot, scan.layer, scan.head);
    kv.decay_sum[state] = decay_sum;
    kv.log_mass[state] = log_mass;
  }
  const int64_t last = scan.Position(i) / kPageTokens * kPageTokens + kPageTokens - 1;
  return BoundPage(params.bound, params.acp, scan.head, last, c_end, log_mass, decay_sum, [&] {
    return BoundKeySum<kHeadDim, kGeneralBound>(params.bound, scan.head, space.key_sum[at]);
  });
}

// The thread's summaries: extremes of its page and all before it. By the whole thread block.
template <int kHeadDim>
__device__ __forceinline__ void StoreSummaries(const AppendParams& params, const PagedKv& kv,
                                               const PageBlock& block, const PageBounds& own,
                                               Space<kHeadDim>& space, ScanCarry& carry) {
  const auto most = [](double a, double b) { return fmax(b, a); };
  const auto raise = [](const PageBounds& a, const PageBounds& b) -> PageBounds {
    return {fmax(a.log_mass_bound, b.log_mass_bound),
            fmin(a.log_denominator_bound, b.log_denominator_bound)};
  };
  const PageBounds up_to{
      WarpScan(own.log_mass_bound, most),
      WarpScan(own.log_denominator_bound, [](double a, double b) { return fmin(b, a); })};
  if (Lane() == kWarp - 1) space.total[Warp()] = up_to;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w == Warp() && block.full) {
      StoreBounds(kv, params.acp, block.summary, own, raise(up_to, carry.bounds));
    }
    carry.bounds = raise(carry.bounds, space.total[w]);
  }
}

// The sequence's raw row `r` of this step.
__device__ __forceinline__ void StoreRow(const AppendParams& params, const PagedKv& kv,
                                         const HeadScan& scan, int64_t r, int slot, void* keys,
                                         void* values) {
  const int m = static_cast<int>(threadIdx.x);
  const __nv_bfloat16* row =
      ProjectionRow(params, scan.rows.first_row + r) + scan.kv_head * kv.shape.head_dim + m;
  if (params.k_shift_column >= 0) {
    LastRow(kv, keys, slot, scan.layer, scan.kv_head)[m] = __bfloat162float(row[params.k_column]);
  }
  if (params.v_shift_column >= 0) {
    LastRow(kv, values, slot, scan.layer, scan.kv_head)[m] = __bfloat162float(row[params.v_column]);
  }
}

// Stores the raw last row, which the next step's first token shift needs, and the raw row at the
// last page end, from which a shared slot starts (Ops::Share).
__device__ __forceinline__ void StoreLastRow(const AppendParams& params, const PagedKv& kv,
                                             const HeadScan& scan) {
  if (scan.g != 0 || static_cast<int>(threadIdx.x) >= kv.shape.head_dim) return;
  const int64_t end = scan.rows.position + scan.rows.count;
  const int slot = scan.rows.slot, after = kv.After(slot, end);
  StoreRow(params, kv, scan, scan.rows.count - 1, after, kv.last_k, kv.last_v);
  const int64_t page_end = end / kPageTokens * kPageTokens, last = page_end - 1;
  if (page_end <= scan.rows.position) return;
  StoreRow(params, kv, scan, last - scan.rows.position, slot, kv.page_end_k, kv.page_end_v);
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

// One CTA per (query head, sequence), the sequences from `first_seq` on.
template <int kHeadDim, bool kGeneralBound>
__global__ void __launch_bounds__(kThreads, 1)
    AccumulateKernel(const __grid_constant__ BatchView batch,
                     const __grid_constant__ AppendParams params,
                     const __grid_constant__ PagedKv kv,
                     const __grid_constant__ StepSchedule schedule, int first_seq) {
  extern __shared__ char memory[];
  __shared__ int warp_sums[kWarps];
  Space<kHeadDim>& space = *reinterpret_cast<Space<kHeadDim>*>(memory);
  WaitOnDependencies();
  TriggerDependents();  // after the wait: queries.cu relies on it
  const int seq = first_seq + static_cast<int>(blockIdx.y);
  if (batch.slot[seq] < 0) return;
  const HeadScan scan =
      MakeHeadScan(batch, kv, params.layer, seq, static_cast<int>(blockIdx.x), warp_sums);
  StoreLastRow(params, kv, scan);
  const bool accumulates = params.acp != AcpMode::kOff && scan.full > 0;
  const bool sums_keys = accumulates && threadIdx.x < kHeadDim;
  double* state_keys =
      kv.key_sum + kv.HeadIndex(scan.rows.slot, params.layer, scan.head) * kHeadDim + threadIdx.x;
  ScanCarry carry = LoadCarry(params, kv, scan);
  const double first_c = carry.c;
  double key_sum = sums_keys ? *state_keys : 0;
  __syncthreads();  // all have read the state

#pragma unroll 1
  for (int first = 0; first < scan.blocks; first += kRound<kHeadDim>) {
    const int i = first + static_cast<int>(threadIdx.x);
    const PageBlock block = ReadBlock(schedule, kv, scan, i, accumulates, first_c, space);
    __syncthreads();
    AddPages(schedule, kv, scan, first, accumulates, space, carry, key_sum);
    __syncthreads();
    StoreGates(kv, scan, i, block, space);
    if (accumulates) {
      const PageBounds own = FinishPage<kHeadDim, kGeneralBound>(params, kv, scan, i, block, space);
      StoreSummaries(params, kv, block, own, space, carry);
    }
    __syncthreads();  // the space is free
  }
  if (sums_keys) *state_keys = key_sum;
}

template <int kHeadDim>
cudaError_t LaunchFor(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                      const StepSchedule& schedule, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(kv.shape.q_heads),
                  static_cast<unsigned>(batch.num_seqs - batch.num_decodes));
  const auto kernel = IsDiagonal(params.bound) || params.acp == AcpMode::kOff
                          ? AccumulateKernel<kHeadDim, false>
                          : AccumulateKernel<kHeadDim, true>;
  constexpr size_t kBytes = sizeof(Space<kHeadDim>);
  if (const cudaError_t error = AllowDynamicSmem<kBytes>(KernelAddress(kernel))) return error;
  return Launch(kernel, grid, kThreads, kBytes, stream, batch, params, kv, schedule,
                batch.num_decodes);
}

}  // namespace

cudaError_t AccumulateBlocks(const BatchView& batch, const AppendParams& params, const PagedKv& kv,
                             const StepSchedule& schedule, cudaStream_t stream) {
  return DispatchHeadDim(kv.shape.head_dim, [&]<int kHeadDim>() {
    return LaunchFor<kHeadDim>(batch, params, kv, schedule, stream);
  });
}

}  // namespace fox::cuda
