// A thread block bounds and adds up the losses of one decode row, or of some prefill rows of a
// page, over all heads and layers; a second kernel adds up these parts of prefill sequences. Both
// trigger after their wait: else the product behind them started three launches ahead (launch.h).
#include <math_constants.h>

#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/cuda/attention/lost_mass.h"
#include "kernels/cuda/primitives/kv_index.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/paging/acp.h"
#include "kernels/paging/lost_mass.h"

namespace fox::cuda {
namespace {

// As many as most models have heads in all layers: a decode row's loads are all under way at once.
constexpr int kThreads = 1024;
constexpr int kPartRows = kPageTokens / kLostMassParts;

struct Arguments {
  BatchView batch;
  EvictParams params;
  PagedKv kv;
  StepSchedule schedule;
};

// The terms of a head of a layer that the bounds of all rows of a block share. A row's bound is
// min(relative - its log sum, log eps).
struct HeadTerms {
  float relative;          // -infinity: the rows lost nothing
  float log_value;         // the log of the largest ||v|| / sqrt(head_dim)
  const float2* row_sums;  // of the batch's row 0
};

// LostMass in float32, as a thread adds it up. Masses are sums of at most kThreads partial sums of
// a few numbers, so rounding is far below the slack.
struct Lost {
  float sum, max_log, shift_sum, max_log_shift;

  __device__ static float Mass(float log_mass) {  // MassOf
    return log_mass > -INFINITY ? Exp2(kLog2E * fmaxf(log_mass, static_cast<float>(kLeastLogMass)))
                                : 0;
  }
  __device__ void Add(float log_mass, float log_shift) {
    sum += Mass(log_mass);
    max_log = fmaxf(max_log, log_mass);
    shift_sum += Mass(log_shift);
    max_log_shift = fmaxf(max_log_shift, log_shift);
  }
};

// By all threads; the result is in the first one. `warps` is shared memory.
__device__ LostMass BlockSum(const Lost& lost, Lost (&warps)[kThreads / kWarp]) {
  const auto reduce = [](const Lost& x) {
    return Lost{WarpSum(x.sum), WarpMax(x.max_log), WarpSum(x.shift_sum), WarpMax(x.max_log_shift)};
  };
  const Lost of_warp = reduce(lost);
  if (Lane() == 0) warps[Warp()] = of_warp;
  __syncthreads();
  if (Warp() > 0) return {};
  static_assert(kThreads / kWarp == kWarp);
  const Lost all = reduce(warps[Lane()]);
  return {static_cast<double>(all.sum), static_cast<double>(all.max_log),
          static_cast<double>(all.shift_sum), static_cast<double>(all.max_log_shift)};
}

// c of a position, by the list's table.
__device__ double GateOf(const PagedKv& kv, int64_t list, int in_group, int position) {
  const int64_t own = kv.SummaryIndex(kv.Table(list)[position / kPageTokens], in_group);
  return kv.page_cum_log_f[own] +
         static_cast<double>(kv.LogFOffsets<float>(own)[position % kPageTokens]);
}

// PagedKv::evicted_log_mass of head `index` of all layers, as of the page end before the rows'
// page. `ends`: whether the page ends within the step.
__device__ double EvictedBefore(const Arguments& a, const RowBlock& rows, bool ends, int index) {
  if (!ends) return a.kv.evicted_log_mass[a.kv.HeadIndex(rows.slot, 0, 0) + index];
  const int64_t end_row = rows.first_row + kPageTokens - 1 - rows.position % kPageTokens;
  return a.schedule
      .evicted_before[StepSchedule::PageEndIndex(end_row, rows.seq) * a.kv.shape.heads_per_slot() +
                      index];
}

// The log sums and scales of head `index` of all layers: row r of the batch is r * q_heads further.
__device__ const float2* RowSumsOf(const Arguments& a, int index) {
  const int q_heads = a.kv.shape.q_heads;
  return reinterpret_cast<const float2*>(a.schedule.RowSums(index / q_heads, q_heads)) +
         index % q_heads;
}

// The bounds on |q| |k|, or else on logits, of each head of all layers.
__device__ const double* MaxProducts(const Arguments& a) {
  return a.params.max_norm_product != nullptr ? a.params.max_norm_product
                                              : a.params.max_logit_bound;
}

// Of head `index` of all layers, for rows of one page, whose log sums are relative to the gate of
// position `reference`, or for a decode row.
template <bool kDecode>
__device__ HeadTerms TermsOf(const Arguments& a, const RowBlock& rows, int reference, bool ends,
                             int index) {
  const PagedKv& kv = a.kv;
  const int layer = index / kv.shape.q_heads, head = index % kv.shape.q_heads;
  const int group = kv.shape.group();
  HeadTerms terms;
  terms.relative = -INFINITY;
  const double evicted = EvictedBefore(a, rows, ends, index);
  double c, c_last;
  if constexpr (kDecode) {  // without a branch, behind which loads would wait for `evicted`
    c = c_last = kv.cum_log_f[kv.HeadIndex(kv.After(rows.slot, rows.position + 1), 0, 0) + index];
  } else {
    if (evicted == kNoMass) return terms;
    const int64_t list = kv.ListIndex(rows.slot, layer, head / group);
    c = GateOf(kv, list, head % group, reference);
    c_last = GateOf(kv, list, head % group, rows.position + rows.count - 1);
  }
  const double rounding =
      RowRounding(kv.shape.head_dim, MaxProducts(a)[index], c_last, 0) + kWeightSumRounding;
  terms.relative = __double2float_ru(LogLostMass(evicted, c, 0, rounding, CUDART_INF));
  if (a.params.log_max_value != nullptr) {
    const float log_root = kLn2 / 2 * Log2(static_cast<float>(kv.shape.head_dim));
    terms.log_value = __fsub_ru(__double2float_ru(a.params.log_max_value[index]), log_root);
  }
  terms.row_sums = RowSumsOf(a, index);
  return terms;
}

// Adds a row of a head that lost something. `sum`: the row's log sum and scale.
__device__ void AddRow(const Arguments& a, const HeadTerms& terms, float2 sum, float log_eps,
                       Lost* lost) {
  const float log_mass = fminf(__fsub_ru(terms.relative, sum.x), log_eps);
  const float log_shift = a.params.log_max_value == nullptr
                              ? -INFINITY
                              : log_mass + terms.log_value + kLn2 * Log2(sum.y);
  lost->Add(log_mass, log_shift);
}

// The lost mass of a decode row, by all threads; the result is in the first one. Before it waits
// for the kernels in front, it reads the batch, which they do not write, and brings evicted masses
// and bounds into the L2, from which the step's weights have evicted them.
__device__ LostMass DecodeLostMass(const Arguments& a, int seq) {
  __shared__ Lost warps[kThreads / kWarp];
  const SequenceRows row = RowsOf(a.batch, seq);
  const float log_eps = __double2float_ru(LoadCoherent(a.batch.log_tolerance + seq));
  const bool prunes = row.slot >= 0 && log_eps > -INFINITY;
  const auto position = static_cast<int>(row.position), thread = static_cast<int>(threadIdx.x);
  const RowBlock rows{seq, row.slot, seq, 1, position};
  const bool ends = (position + 1) % kPageTokens == 0;
  const int heads = prunes ? static_cast<int>(a.kv.shape.heads_per_slot()) : 0;
#pragma unroll 1  // here and below: most models have no second turn
  for (int index = thread; index < heads; index += kThreads) {
    Prefetch(a.kv.evicted_log_mass + a.kv.HeadIndex(row.slot, 0, 0) + index);
    Prefetch(MaxProducts(a) + index);
    if (a.params.log_max_value != nullptr) Prefetch(a.params.log_max_value + index);
  }
  WaitOnDependencies();
  TriggerDependents();
  if (!prunes) return {};  // nothing is pruned, and Evict leaves the sequence out
  Lost lost{0, -INFINITY, 0, -INFINITY};
#pragma unroll 1
  for (int index = thread; index < heads; index += kThreads) {
    // The compiler would move another load to where its value is needed.
    const float2 sum =
        LoadCoherent(RowSumsOf(a, index) + static_cast<int64_t>(seq) * a.kv.shape.q_heads);
    const HeadTerms terms = TermsOf<true>(a, rows, position, ends, index);
    if (terms.relative > -INFINITY) AddRow(a, terms, sum, log_eps, &lost);
  }
  return BlockSum(lost, warps);
}

// The lost mass of rows [first, end) of `rows`, by all threads; the result is in the first one.
// Called behind the wait. `begin`: position of the sequence's first row in the step.
__device__ LostMass PrefillLostMass(const Arguments& a, const RowBlock& rows, int begin, int first,
                                    int end) {
  __shared__ HeadTerms terms[kThreads];
  __shared__ Lost warps[kThreads / kWarp];
  const int heads = static_cast<int>(a.kv.shape.heads_per_slot());
  const int thread = static_cast<int>(threadIdx.x), q_heads = a.kv.shape.q_heads;
  const int reference = max(begin, rows.position / kTileRows * kTileRows);
  const bool ends = (rows.position + rows.count) % kPageTokens == 0;
  const float log_eps = __double2float_ru(a.batch.log_tolerance[rows.seq]);
  if (log_eps == -INFINITY) return {};  // nothing is pruned, and Evict leaves the sequence out
  Lost lost{0, -INFINITY, 0, -INFINITY};
  for (int base = 0; base < heads; base += kThreads) {
    const int here = min(kThreads, heads - base);
    HeadTerms own;
    own.relative = -INFINITY;
    if (thread < here) own = TermsOf<false>(a, rows, reference, ends, base + thread);
    __syncthreads();  // the last ones have been read
    terms[thread] = own;
    if (__syncthreads_or(own.relative > -INFINITY) == 0) continue;
    for (int i = thread; i < (end - first) * here; i += kThreads) {
      const HeadTerms& of_head = terms[i % here];
      if (of_head.relative == -INFINITY) continue;
      const int64_t row = rows.first_row + first + i / here;
      AddRow(a, of_head, of_head.row_sums[row * q_heads], log_eps, &lost);
    }
  }
  return BlockSum(lost, warps);
}

// A thread block for each decode row, then kLostMassParts for each block of prefill rows, the
// batch's last row block first.
__global__ void __launch_bounds__(kThreads) LostMassKernel(const __grid_constant__ Arguments a) {
  const int block = static_cast<int>(blockIdx.x);
  if (block < a.batch.num_decodes) {
    const LostMass lost = DecodeLostMass(a, block);
    if (threadIdx.x == 0) a.params.lost_mass[block] = lost;
    return;
  }
  WaitOnDependencies();
  TriggerDependents();
  const int before = (block - a.batch.num_decodes) / kLostMassParts;
  const int part = (block - a.batch.num_decodes) % kLostMassParts;
  const int index = *a.schedule.num_blocks - 1 - before;
  if (index < 0) return;
  const RowBlock rows = a.schedule.blocks[index];
  if (rows.seq < a.batch.num_decodes) return;
  const int first = part * kPartRows, end = min(rows.count, first + kPartRows);
  LostMass lost;
  if (first < end) {
    const auto begin = static_cast<int>(RowsOf(a.batch, rows.seq).position);
    lost = PrefillLostMass(a, rows, begin, first, end);
  }
  if (threadIdx.x == 0) a.schedule.lost_mass_parts[index * kLostMassParts + part] = lost;
}

constexpr int kAddThreads = 32;

// A warp adds up the parts of each prefill sequence.
__global__ void __launch_bounds__(kAddThreads) AddPartsKernel(const __grid_constant__ Arguments a) {
  WaitOnDependencies();
  TriggerDependents();
  const int seq = a.batch.num_decodes + static_cast<int>(blockIdx.x);
  const int parts = *a.schedule.num_blocks * kLostMassParts;
  LostMass lost;
  for (int i = Lane(); i < parts; i += kAddThreads) {
    if (a.schedule.blocks[i / kLostMassParts].seq == seq) lost.Add(a.schedule.lost_mass_parts[i]);
  }
  lost = {WarpSum(lost.sum), WarpMax(lost.max_log), WarpSum(lost.shift_sum),
          WarpMax(lost.max_log_shift)};
  if (Lane() == 0) a.params.lost_mass[seq] = lost;
}

}  // namespace

cudaError_t SumLostMass(const BatchView& batch, const EvictParams& params, const PagedKv& kv,
                        const StepSchedule& schedule, cudaStream_t stream) {
  FOX_CHECK(schedule.row_sums != nullptr && params.max_logit_bound != nullptr);
  const Arguments arguments{batch, params, kv, schedule};
  const int prefills = batch.num_seqs - batch.num_decodes;
  const SmemConfig shared(0, batch.num_rows <= kOverlapRows);
  const auto grid =
      static_cast<unsigned>(batch.num_decodes + MaxPrefillBlocks(batch) * kLostMassParts);
  const cudaError_t error = Launch(LostMassKernel, grid, kThreads, shared, stream, arguments);
  if (error != cudaSuccess) return error;
  return Launch(AddPartsKernel, static_cast<unsigned>(prefills), kAddThreads, shared, stream,
                arguments);
}

}  // namespace fox::cuda
