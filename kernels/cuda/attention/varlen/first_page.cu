// The paper's bound needs only gates; the certified one (kernels/docs/acp.md section 2) first sums
// a tile's keys, then accumulates N, S and H from tile to tile. Training knows all of a sequence's
// queries, so their largest norm replaces the model's bounds: a(k) = max |q| |k|.
#include <cuda_bf16.h>
#include <math_constants.h>

#include "kernels/cuda/attention/varlen/kernels.h"
#include "kernels/cuda/attention/varlen/tile_scan.cuh"
#include "kernels/cuda/primitives/vec8.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/paging/acp.h"

namespace fox::cuda {
namespace {

constexpr int kKeyWarps = kVarlenTile / kWarp;

// Pays for the float32 sums of N over a tile: 128 additions and weights accurate to 2^-22, relative
// to the terms, because the keys may cancel.
constexpr double kTileSumRounding = 0x1p-16;

// The largest logit of a key, over its norm.
__device__ __forceinline__ double LogitOverNorm(const VarlenAttentionParams& params, int seq,
                                                int head) {
  return kProductInflation * params.scale *
         static_cast<double>(params.max_query_norm[int64_t{seq} * params.q_heads + head]);
}

// log sum exp with NaNs that stay.
__device__ __forceinline__ double AddMass(double a, double b) {
  return isnan(a) ? a : LogAddExp(a, b);
}

__device__ __forceinline__ float LargestOrNan(float a, float b) {
  return isnan(a) || b <= a ? a : b;
}

// A head's cumulative gates at a tile's keys.
__device__ __forceinline__ const float* OffsetsOf(const VarlenState& state, int64_t head_tile) {
  return state.log_f_offset + head_tile * kVarlenTile;
}
__device__ __forceinline__ double CumulativeGate(const VarlenState& state, int64_t head_tile,
                                                 int position) {
  return state.cum_log_f[head_tile] +
         static_cast<double>(OffsetsOf(state, head_tile)[position % kVarlenTile]);
}

struct KeySumSpace {
  float weight[kVarlenTile];
  float top[kKeyWarps], mass[kKeyWarps], count[kKeyWarps], norm[kKeyWarps];
  float keys[kVarlenTile];
};

// The tile's scalars, from each warp's results for its 32 keys. One thread.
__device__ void StoreKeySums(const VarlenState& state, const VarlenTile& tile, int64_t own, int t,
                             const KeySumSpace& space, double paid) {
  VarlenKeySums sums{};
  for (int p = 0; p < 2; ++p) {
    double log_mass = kNoMass;
    for (int w = 2 * p; w < 2 * p + 2; ++w) {
      if (space.top[w] == -CUDART_INF_F) continue;  // no keys
      log_mass = AddMass(
          log_mass, static_cast<double>(space.top[w]) + log(static_cast<double>(space.mass[w])));
    }
    sums.page_log_mass[p] =
        log_mass + paid - CumulativeGate(state, own, p * kVarlenPage + kVarlenPage - 1);
  }
  const double c = CumulativeGate(state, own, kVarlenTile - 1);
  sums.decay = tile.seq_first == t ? 0 : exp(c - CumulativeGate(state, own - 1, kVarlenTile - 1));
  for (int w = 0; w < kKeyWarps; ++w) {
    sums.count += space.count[w];
    sums.max_key_norm = LargestOrNan(sums.max_key_norm, space.norm[w]);
  }
  state.key_sums[own] = sums;
}

// A block per (tile, kv head), a thread per key.
template <int kHeadDim>
__global__ void __launch_bounds__(kVarlenTile)
    SumKeys(VarlenAttentionParams params, VarlenState state) {
  __shared__ KeySumSpace space;
  TriggerDependents();
  WaitOnDependencies();
  const int t = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  if (t >= *state.num_tiles) return;
  const VarlenTile tile = state.tiles[t];
  const auto* keys = params.k.At<const __nv_bfloat16>(tile.batch, tile.first_token, kv_head);
  const int j = static_cast<int>(threadIdx.x), warp = Warp();
  const bool there = j < tile.count;
  float square = 0;
  for (int m = 0; there && m < kHeadDim; m += kVec8) {
    const Float8 x = LoadVec8(keys + j * params.k.token_stride + m);
#pragma unroll
    for (int i = 0; i < kVec8; ++i) square = fmaf(x.x[i], x.x[i], square);
  }
  const float norm = sqrtf(square), any_nan = WarpSum(norm), largest = WarpMax(norm);
  if (Lane() == 0) space.norm[warp] = isnan(any_nan) ? any_nan : largest;

  const int group = params.q_heads / params.kv_heads;
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const int64_t own = state.HeadTile(head, t);
    const float* offsets = OffsetsOf(state, own);
    const float end = offsets[kVarlenTile - 1], page_end = offsets[j | (kVarlenPage - 1)];
    const double paid = OffsetRounding(static_cast<double>(end));
    const auto logit = static_cast<float>(LogitOverNorm(params, tile.seq, head)) * norm;
    const float term = there ? logit + (page_end - offsets[j]) : -CUDART_INF_F;
    const float weight = there ? expf(end - offsets[j] - static_cast<float>(paid)) : 0.0f;
    const float top = WarpMax(term), mass = WarpSum(there ? expf(term - top) : 0.0f);
    const float count = WarpSum(weight);
    __syncthreads();  // the previous head is done with `space`
    space.weight[j] = weight;
    if (Lane() == 0) {
      space.top[warp] = top;
      space.mass[warp] = mass;
      space.count[warp] = count;
    }
    __syncthreads();
    constexpr int kParts = kVarlenTile / kHeadDim;
    const int m = j % kHeadDim, part = j / kHeadDim;
    float sum = 0;
    for (int i = part; i < tile.count; i += kParts) {
      sum = fmaf(space.weight[i], __bfloat162float(keys[i * params.k.token_stride + m]), sum);
    }
    space.keys[j] = sum;
    __syncthreads();
    if (part == 0) {
#pragma unroll
      for (int p = 1; p < kParts; ++p) sum += space.keys[p * kHeadDim + m];
      state.lse[own * kVarlenTile + m] = sum;
    }
    if (j == 0) StoreKeySums(state, tile, own, t, space, paid);
  }
}

// 64 registers are too few for four dimensions a lane.
template <int kHeadDim>
inline constexpr int kRunThreads = kHeadDim > 64 ? 512 : 1024;

// N and S from tile to tile. Lanes hold kDims dimensions each.
template <int kDims>
struct RunningKeySums {
  double keys[kDims];
  double count;
  double decay;  // of what came before the first tile; 0 after a restart
  float max_key_norm;

  __device__ void Add(const VarlenKeySums& sums, const float* tile_keys, bool restarts) {
#pragma unroll
    for (int k = 0; k < kDims; ++k) {
      const auto x = static_cast<double>(tile_keys[Lane() + k * kWarp]);
      keys[k] = restarts ? x : fma(keys[k], sums.decay, x);
    }
    count = restarts ? static_cast<double>(sums.count)
                     : fma(count, sums.decay, static_cast<double>(sums.count));
    decay = restarts ? 0 : decay * sums.decay;
    max_key_norm = restarts ? sums.max_key_norm : LargestOrNan(max_key_norm, sums.max_key_norm);
  }
};

// A block per query head, a warp per run of tiles: sums the run, adds the sums of earlier warps,
// and passes over the run again to write beta and the largest norm so far.
template <int kHeadDim>
__global__ void __launch_bounds__(kScanThreads)
    AccumulateKeys(VarlenAttentionParams params, VarlenState state) {
  constexpr int kDims = kHeadDim / kWarp, kRuns = kRunThreads<kHeadDim> / kWarp;
  __shared__ double keys[kRuns][kHeadDim], counts[kRuns], decays[kRuns];
  __shared__ float norms[kRuns];
  __shared__ bool restarts[kRuns];
  TriggerDependents();
  WaitOnDependencies();
  const int head = static_cast<int>(blockIdx.x), warp = Warp(), lane = Lane();
  const int num_tiles = *state.num_tiles, size = (num_tiles + kRuns - 1) / kRuns;
  const int first = min(num_tiles, warp * size), end = min(num_tiles, first + size);
  const int64_t of_head = int64_t{head} * state.max_tiles;
  RunningKeySums<kDims> running{{}, 0, 1, 0};
  bool restarted = false;
#pragma unroll 4
  for (int t = first; t < end; ++t) {
    const bool starts = state.tiles[t].seq_first == t;
    restarted |= starts;
    running.Add(state.key_sums[of_head + t], state.lse + (of_head + t) * kVarlenTile, starts);
  }
#pragma unroll
  for (int k = 0; k < kDims; ++k) keys[warp][lane + k * kWarp] = running.keys[k];
  if (lane == 0) {
    counts[warp] = running.count;
    decays[warp] = running.decay;
    norms[warp] = running.max_key_norm;
    restarts[warp] = restarted;
  }
  __syncthreads();

  running = {{}, 0, 1, 0};
#pragma unroll 1
  for (int w = 0; w < warp; ++w) {
#pragma unroll
    for (int k = 0; k < kDims; ++k) {
      const double own = keys[w][lane + k * kWarp];
      running.keys[k] = restarts[w] ? own : fma(running.keys[k], decays[w], own);
    }
    running.count = restarts[w] ? counts[w] : fma(running.count, decays[w], counts[w]);
    running.max_key_norm = restarts[w] ? norms[w] : LargestOrNan(running.max_key_norm, norms[w]);
  }
  for (int t = first; t < end; ++t) {
    const VarlenTile tile = state.tiles[t];
    VarlenKeySums& sums = state.key_sums[of_head + t];
    running.Add(sums, state.lse + (of_head + t) * kVarlenTile, tile.seq_first == t);
    double square = 0;
#pragma unroll
    for (int k = 0; k < kDims; ++k) square = fma(running.keys[k], running.keys[k], square);
    square = WarpSum(square);
    __syncwarp();  // all have read sums
    if (lane == 0) {
      const double logit = LogitOverNorm(params, tile.seq, head);
      const double bound = logit * (sqrt(square) / running.count +
                                    kTileSumRounding * static_cast<double>(running.max_key_norm));
      sums.threshold = LogDenominatorBound(
          CUDART_INF, CumulativeGate(state, of_head + t, kVarlenTile - 1), bound, running.count);
      sums.max_key_norm = running.max_key_norm;
    }
  }
}

// Running state of the certified bounds along a sequence.
struct Mass {
  double log_mass;           // log M - c
  double denominator_bound;  // H
};

// Turns the tiles' own sums into E of their pages and t of their rows.
__device__ void BoundTiles(const VarlenAttentionParams& params, const VarlenState& state, int head,
                           int num_tiles) {
  const int64_t of_head = int64_t{head} * state.max_tiles;
  const TileRun run = RunOfTiles(num_tiles, static_cast<int>(threadIdx.x));
  const auto add = [](const Mass& a, const Mass& b) {
    return Mass{AddMass(a.log_mass, b.log_mass), fmin(a.denominator_bound, b.denominator_bound)};
  };
  const Mass none{kNoMass, CUDART_INF};
  Segment<Mass> own{none, false};
  for (int t = run.first; t < run.end; ++t) {
    const VarlenKeySums& sums = state.key_sums[of_head + t];
    if (state.tiles[t].seq_first == t) own = {none, true};
    own.value =
        add(own.value, {AddMass(sums.page_log_mass[0], sums.page_log_mass[1]), sums.threshold});
  }
  Mass mass = ExclusiveSegmentScan(own, none, add);
  for (int t = run.first; t < run.end; ++t) {
    const VarlenTile tile = state.tiles[t];
    if (tile.seq_first == t) mass = none;
    const int64_t index = of_head + t;
    VarlenKeySums& sums = state.key_sums[index];
    const double logit =
        LogitOverNorm(params, tile.seq, head) * static_cast<double>(sums.max_key_norm);
    const auto last = static_cast<double>(OffsetsOf(state, index)[kVarlenTile - 1]);
    const double c = UpperCumulativeGate(state.cum_log_f[index],
                                         static_cast<double>(OffsetsOf(state, index)[0]));
    const double threshold =
        isnan(c) ? c : PageThreshold(AcpMode::kCertified, mass.denominator_bound, c, logit, logit);
    mass.denominator_bound = fmin(mass.denominator_bound, sums.threshold);
    sums.threshold = threshold;
    for (int p = 0; p < 2; ++p) {
      mass.log_mass = AddMass(mass.log_mass, sums.page_log_mass[p]);
      const int in_tile = p * kVarlenPage + kVarlenPage - 1;
      const double c_last = CumulativeGate(state, index, in_tile);
      // Only the bound by length still has to pay for the rounding of c_last; M has paid for it.
      sums.page_log_mass[p] = CertifiedLogMassBound(mass.log_mass + c_last,
                                                    static_cast<double>(tile.position + in_tile),
                                                    c_last, logit + OffsetRounding(last));
    }
  }
}

// First of the pages [0, high) that may not be dropped, or `high`; may_drop falls with the page.
template <typename MayDropPage>
__device__ int SearchFirstPage(int high, const MayDropPage& may_drop) {
  int low = 0;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (may_drop(middle)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ int FirstPageOf(const VarlenAttentionParams& params, const VarlenState& state, int head,
                           int t) {
  const VarlenTile tile = state.tiles[t];
  const int64_t of_head = int64_t{head} * state.max_tiles;
  const int pages = tile.position / kVarlenPage;
  if (params.acp == AcpMode::kCertified) {
    const double threshold = state.key_sums[of_head + t].threshold;
    return SearchFirstPage(pages, [&](int page) {
      const VarlenKeySums& sums = state.key_sums[of_head + tile.seq_first + page / 2];
      return MayDrop(sums.page_log_mass[page % 2], threshold, params.log_eps);
    });
  }
  const auto threshold =
      static_cast<double>(params.threshold[int64_t{tile.seq} * params.q_heads + head]);
  const double c = CumulativeGate(state, of_head + t, 0);
  return SearchFirstPage(pages, [&](int page) {
    const int last = page * kVarlenPage + kVarlenPage - 1;
    return c - CumulativeGate(state, of_head + tile.seq_first + last / kVarlenTile, last) <
           threshold;
  });
}

// A block per query head.
__global__ void __launch_bounds__(kScanThreads)
    FindFirstPagesKernel(VarlenAttentionParams params, VarlenState state) {
  TriggerDependents();
  WaitOnDependencies();
  const int head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int num_tiles = *state.num_tiles;
  if (params.acp == AcpMode::kCertified) {
    BoundTiles(params, state, head, num_tiles);
    __syncthreads();
  }
  int32_t* first_page = state.first_page + int64_t{head} * state.max_tiles;
  for (int t = thread; t < num_tiles; t += kScanThreads) {
    first_page[t] = FirstPageOf(params, state, head, t);
  }
  __syncthreads();
  // The minimum over the tile and all later ones, so it never falls along a sequence.
  const TileRun run = RunOfTiles(num_tiles, kScanThreads - 1 - thread);
  constexpr int kNone = 0x7fffffff;
  const auto add = [](int a, int b) { return min(a, b); };
  Segment<int> own{kNone, false};
  for (int t = run.end - 1; t >= run.first; --t) {
    if (state.tiles[t].seq_last == t) own = {kNone, true};
    own.value = min(own.value, first_page[t]);
  }
  int least = ExclusiveSegmentScan(own, kNone, add);
  for (int t = run.end - 1; t >= run.first; --t) {
    if (state.tiles[t].seq_last == t) least = kNone;
    first_page[t] = least = min(least, first_page[t]);
  }
}

template <int kHeadDim>
cudaError_t BoundKeys(const VarlenAttentionParams& params, const VarlenState& state,
                      cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(state.max_tiles), static_cast<unsigned>(params.kv_heads));
  const cudaError_t error = Launch(SumKeys<kHeadDim>, grid, kVarlenTile, 0, stream, params, state);
  if (error != cudaSuccess) return error;
  return Launch(AccumulateKeys<kHeadDim>, static_cast<unsigned>(params.q_heads),
                kRunThreads<kHeadDim>, 0, stream, params, state);
}

}  // namespace

cudaError_t FindFirstPages(const VarlenAttentionParams& params, const VarlenState& state,
                           cudaStream_t stream) {
  if (params.acp == AcpMode::kCertified) {
    const cudaError_t error = DispatchHeadDim<32>(params.head_dim, [&]<int kHeadDim>() {
      return BoundKeys<kHeadDim>(params, state, stream);
    });
    if (error != cudaSuccess) return error;
  }
  return Launch(FindFirstPagesKernel, static_cast<unsigned>(params.q_heads), kScanThreads, 0,
                stream, params, state);
}

}  // namespace fox::cuda
