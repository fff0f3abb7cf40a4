// Sampling on the device: one cluster of blocks a row, each with a slice of the ids; one block a
// row where rows are many or there are no clusters. Penalties, biases and masks are applied once,
// in place; they and the weights are engine/sampler.cc's, bit for bit. Filters need no sort: the
// k-th best, the end of the top_p mass and the drawn token are each found by a radix search. Read
// candidate_search.cuh next.
#include <math_constants.h>

#include <cfloat>
#include <cstdint>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/cuda/candidate_search.cuh"
#include "kernels/cuda/device/cluster.h"
#include "kernels/cuda/device/philox.h"
#include "kernels/cuda/draw.h"
#include "kernels/cuda/launch.h"

namespace fox::cuda {
namespace draw {
namespace {

constexpr int kMostBlocks = 8;  // the largest portable cluster

__device__ __forceinline__ double Coldness(const DrawRow& how) {
  return 1.0 / static_cast<double>(how.temperature);
}

// The sum that the drawn token is the first to pass; rounding must not lift it beyond the last.
__device__ __forceinline__ uint64_t DrawTarget(const DrawRow& how, uint64_t total) {
  const double uniform = PhiloxUniform(how.seed, how.position);
  const uint64_t target = static_cast<uint64_t>(uniform * static_cast<double>(total));
  return target < total ? target : total - 1;
}

// In the order of ids, among logits of at least `floor`. A warp adds up a contiguous segment; the
// block whose segment passes the target splits it among its threads.
template <int kBlocks>
__device__ int32_t DrawById(Row& row, const DrawRow& how, float floor) {
  Shared& shared = *row.shared;
  const double coldness = Coldness(how);
  const int32_t size = row.end - row.begin;
  const int32_t segment = (size + kWarps - 1) / kWarps;
  const auto weight_at = [&](int32_t id) -> uint64_t {
    const float x = row.logits[id];
    return x >= floor ? Weight(row, x, coldness) : 0;
  };
  const int32_t begin = row.begin + min(size, Warp() * segment);
  const int32_t end = min(row.end, begin + segment);
  uint64_t sum = 0;
#pragma unroll 4
  for (int32_t id = begin + Lane(); id < end; id += kWarp) sum += weight_at(id);
  const Gathered<kBlocks> gathered = AllGather<kBlocks>(row, WarpReduce(sum, Plus()));
  uint64_t total = 0;
#pragma unroll
  for (const uint64_t part : gathered.value) total += part;
  const uint64_t target = DrawTarget(how, WarpReduce(total, Plus()));

  int owner = -1;       // the segment, counted through all blocks
  uint64_t before = 0;  // the sum of the segments before the owner's
  uint64_t running = 0;
#pragma unroll
  for (int i = 0; i < Gathered<kBlocks>::kEach; ++i) {
    const uint64_t through = running + WarpScan(gathered.value[i]);
    const unsigned passed = __ballot_sync(kAllLanes, through > target);
    if (passed != 0 && owner < 0) {
      const int lane = __ffs(static_cast<int>(passed)) - 1;
      owner = i * kWarp + lane;
      before = __shfl_sync(kAllLanes, through - gathered.value[i], lane);
    }
    running = __shfl_sync(kAllLanes, through, kWarp - 1);
  }
  if (owner / kWarps == row.rank) {
    const int32_t from = row.begin + owner % kWarps * segment;
    const int32_t to = min(row.end, from + segment);
    const int32_t each = (segment + kThreads - 1) / kThreads;
    const int32_t first = min(to, from + static_cast<int32_t>(threadIdx.x) * each);
    const int32_t last = min(to, first + each);
    uint64_t mine = 0, all;
    for (int32_t id = first; id < last; ++id) mine += weight_at(id);
    const uint64_t through = before + BlockScan(shared, mine, &all);
    if (through - mine <= target && target < through) {
      int32_t id = first;
      for (uint64_t reached = through - mine;; ++id) {
        reached += weight_at(id);
        if (reached > target) break;
      }
      shared.drawn_id = id;
    }
  }
  RowBarrier<kBlocks>();
  return ReadPeer<kBlocks>(&shared.drawn_id, owner / kWarps);
}

// The filters in the order min_p, top_k, top_p, as in engine/sampler.cc; without a sort there, the
// candidates stay in the order of ids.
template <int kBlocks>
__device__ int32_t DrawFiltered(Row& row, const DrawRow& how, uint64_t best) {
  float floor = -FLT_MAX;
  if (how.min_p > 0.0f) {
    // Rounded up, so that no logit lies between.
    floor = __double2float_ru(static_cast<double>(row.largest) +
                              log(fmin(static_cast<double>(how.min_p), 1.0)) / Coldness(how));
  }
  uint64_t low = LowestKey(row, floor);
  bool sorted = how.top_p < 1.0f;
  if (how.top_k > 0 && how.top_k < row.vocabulary) {
    const uint64_t top_k = static_cast<uint64_t>(how.top_k);
    const Found kept =
        Locate<kBlocks>(row, low, best, Counting(), [=](uint64_t) { return top_k - 1; });
    if (top_k < kept.total) {
      sorted = true;
      low = kept.key;
    }
  }
  if (!sorted) return DrawById<kBlocks>(row, how, floor);
  // Weights below 1 / (4 one) are 0; leaving them out saves time.
  const double farthest =
      (log(static_cast<double>(row.one)) + 1.4) * static_cast<double>(how.temperature);
  const float weightless = __double2float_rd(static_cast<double>(row.largest) - farthest);
  low = Larger()(low, LowestKey(row, weightless));
  constexpr double kFinest = 1e30;
  const Weighing weighing{Coldness(how), static_cast<float>(fmin(kBins / farthest, kFinest))};
  if (how.top_p < 1.0f) {
    const double top_p = static_cast<double>(how.top_p);
    low = Locate<kBlocks>(row, low, best, weighing, [=](uint64_t total) {
            // The running sum is to reach the product, which is to pass the integer below it.
            return static_cast<uint64_t>(ceil(top_p * static_cast<double>(total))) - 1;
          }).key;
  }
  const Found drawn = Locate<kBlocks>(row, low, best, weighing,
                                      [&](uint64_t total) { return DrawTarget(how, total); });
  return IdOf(row, drawn.key);
}

// Log-probabilities and ranks before temperature, of the drawn token and the `best_count` best.
template <int kBlocks>
__device__ void FillLogprobs(Row& row, int32_t id, uint64_t best, int best_count, DrawnToken* out) {
  int listed = 0;
  if (best_count > 0) {
    const uint64_t wanted = static_cast<uint64_t>(best_count);
    const uint64_t low =
        Locate<kBlocks>(row, 0, best, Counting(), [=](uint64_t) { return wanted - 1; }).key;
    listed = List<kBlocks>(row, Range{low, best}, Counting());
  }
  const float drawn = row.logits[id];
  const uint64_t drawn_key = KeyOf(row, drawn, id);
  uint64_t weights = 0, better = 0;
  ForEach<4>(row, [&](float x, int32_t other) {
    weights += Weight(row, x, 1.0);
    better += KeyOf(row, x, other) > drawn_key ? 1 : 0;
  });
  weights = AllReduce<kBlocks>(row, weights, Plus());
  better = AllReduce<kBlocks>(row, better, Plus());
  if (row.rank != 0) return;
  const double log_sum = log(static_cast<double>(weights) / static_cast<double>(row.one)) +
                         static_cast<double>(row.largest);
  if (threadIdx.x == 0) {
    out->logprob = static_cast<float>(static_cast<double>(drawn) - log_sum);
    out->rank = static_cast<int32_t>(better) + 1;
  }
  if (static_cast<int>(threadIdx.x) >= listed) return;
  const Candidate* merged = row.shared->merged;
  const uint64_t mine = merged[threadIdx.x].key;
  int place = 0;
  for (int i = 0; i < listed; ++i) place += merged[i].key > mine ? 1 : 0;
  const int32_t top_id = IdOf(row, mine);
  out->top_ids[place] = top_id;
  out->top_logprobs[place] = static_cast<float>(static_cast<double>(row.logits[top_id]) - log_sum);
}

// A logit with its bias and penalties, each operation rounded as in engine/sampler.cc; masked ones
// become -infinity, infinite ones NaN.
__device__ __forceinline__ float Adjusted(float x, TokenState state, const LogitAdjustment& how,
                                          bool masks_stops) {
  const auto clamp = [](float y) { return fminf(fmaxf(y, -FLT_MAX), FLT_MAX); };
  if (!isfinite(x)) return CUDART_NAN_F;
  if (how.only_allowed && (state.bits & kTokenAllowed) == 0) return -CUDART_INF_F;
  if (masks_stops && (state.bits & kTokenStops) != 0) return -CUDART_INF_F;
  x = clamp(__fadd_rn(x, state.bias));
  const uint32_t generated = state.bits & kTokenGenerated;
  if (generated == 0 && (state.bits & kTokenInPrompt) == 0) return x;
  x = x > 0.0f ? __fdiv_rn(x, how.repetition_penalty) : __fmul_rn(x, how.repetition_penalty);
  if (generated > 0) {
    x = __fsub_rn(x, __fmul_rn(how.frequency_penalty, __uint2float_rn(generated)));
    x = __fsub_rn(x, how.presence_penalty);
  }
  return clamp(x);
}

// Rewrites the block's logits. Every thread reads later what it wrote itself, others after the
// next RowBarrier.
__device__ void AdjustLogits(const Row& row, const DrawRow& how, const TokenState* states,
                             float* logits) {
  constexpr int kAhead = 8;
  const LogitAdjustment adjustment = how.adjustment;
  const bool masks_stops = how.position < adjustment.stops_from;
  for (int32_t first = row.begin + static_cast<int32_t>(threadIdx.x); first < row.end;
       first += kAhead * kThreads) {
    float x[kAhead];
    TokenState state[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t id = first + i * kThreads;
      x[i] = id < row.end ? logits[id] : 0.0f;
      state[i] = id < row.end ? states[id] : TokenState{};
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t id = first + i * kThreads;
      if (id < row.end) logits[id] = Adjusted(x[i], state[i], adjustment, masks_stops);
    }
  }
}

// The key of the best candidate, or kNotFinite. `masks`: a logit may be -infinity.
template <int kBlocks>
__device__ uint64_t FindBest(Row& row, bool masks) {
  uint32_t order = 0;
  int32_t id = -1;
  bool finite = true;
  ForEach<8>(row, [&](float x, int32_t at) {
    finite = finite &&
             ((__float_as_uint(x) & 0x7f800000u) != 0x7f800000u || (masks && x == -CUDART_INF_F));
    if (Order(x) > order) {  // never 0; ids ascend, so the lowest of equals stays
      order = Order(x);
      id = at;
    }
  });
  const uint32_t ids = (uint32_t{1} << row.id_bits) - 1;
  uint64_t key = 0;
  if (id >= 0) key = (uint64_t{order} << row.id_bits) | (ids - static_cast<uint32_t>(id));
  return AllReduce<kBlocks>(row, finite ? key : kNotFinite, Larger());
}

template <int kBlocks>
__global__ void FOX_CLUSTER(kBlocks) __launch_bounds__(kThreads, 1)
    DrawKernel(const __grid_constant__ DrawParams params, int id_bits, float one) {
  __shared__ Shared shared;
  LetNextStart();
  WaitForPrevious();
  const int64_t index = blockIdx.x / kBlocks;
  const DrawRow& how = params.rows[index];
  if (how.slot < 0) return;  // all blocks of the row
  const int32_t vocabulary = static_cast<int32_t>(params.logits.cols);
  const int32_t slice = (vocabulary + kBlocks - 1) / kBlocks;
  float* logits = static_cast<float*>(params.logits.data) + index * params.logits.row_stride;
  Row row;
  row.logits = logits;
  row.vocabulary = vocabulary;
  row.rank = static_cast<int>(blockIdx.x % kBlocks);
  row.begin = min(vocabulary, row.rank * slice);
  row.end = min(vocabulary - row.begin, slice) + row.begin;
  row.id_bits = id_bits;
  row.one = one;
  row.shared = &shared;
  row.turn = 0;

  const bool adjusts = how.adjustment.on;
  TokenState* states = params.token_states + static_cast<int64_t>(how.slot) * vocabulary;
  if (adjusts) AdjustLogits(row, how, states, logits);
  const uint64_t best = FindBest<kBlocks>(row, adjusts);
  DrawStatus status = DrawStatus::kNotFinite;
  int32_t id = 0;
  if (best != kNotFinite) {
    id = IdOf(row, best);
    row.largest = row.logits[id];
    status = row.largest == -CUDART_INF_F ? DrawStatus::kAllMasked : DrawStatus::kDrawn;
  }
  const bool draws = status == DrawStatus::kDrawn;
  if (draws && how.temperature > 0.0f) id = DrawFiltered<kBlocks>(row, how, best);
  DrawnToken* out = params.drawn + index;
  if (row.rank == 0 && threadIdx.x == 0) {
    out->id = id;
    out->status = status;
    params.drawn_tokens[how.slot] = id;
    if (adjusts && draws) ++states[id].bits;
  }
  if (draws && how.logprobs >= 0) {
    const int best_count = min(min(how.logprobs, kMaxDrawnLogprobs), vocabulary);
    FillLogprobs<kBlocks>(row, id, best, best_count, out);
  }
  RowBarrier<kBlocks>();  // no block may end while others read its shared memory
}

constexpr int kSetThreads = 1024;

__global__ void __launch_bounds__(kSetThreads, 1)
    SetTokenStatesKernel(const __grid_constant__ TokenStatesParams params) {
  LetNextStart();
  WaitForPrevious();
  TokenState* states = params.token_states + params.slot * params.vocab_size;
  for (int64_t id = threadIdx.x; id < params.vocab_size; id += kSetThreads) states[id] = {};
  __syncthreads();
  for (int64_t i = threadIdx.x; i < params.count; i += kSetThreads) {
    const TokenEntry entry = params.entries[i];
    if (entry.id < 0 || entry.id >= params.vocab_size) continue;
    if (entry.state.bias != 0.0f) atomicAdd(&states[entry.id].bias, entry.state.bias);
    atomicOr(&states[entry.id].bits, entry.state.bits);
  }
}

using Kernel = void (*)(const DrawParams, int, float);

// As many blocks a row as run at once; the result does not depend on it.
std::pair<Kernel, int> KernelFor(int64_t rows) {
  constexpr int64_t kBlocksAtOnce = 128;  // of the smallest device with clusters, about
  static const bool has_clusters = RunsClusters(DrawKernel<kMostBlocks>);
  if (!has_clusters || rows * 2 > kBlocksAtOnce) return {DrawKernel<1>, 1};
  if (rows * 4 > kBlocksAtOnce) return {DrawKernel<2>, 2};
  if (rows * 8 > kBlocksAtOnce) return {DrawKernel<4>, 4};
  return {DrawKernel<kMostBlocks>, kMostBlocks};
}

int BitWidth(int64_t value) {
  int bits = 0;
  for (; value > 0; value >>= 1) ++bits;
  return bits;
}

}  // namespace
}  // namespace draw

cudaError_t SetTokenStates(const TokenStatesParams& params, cudaStream_t stream) {
  FOX_CHECK(params.slot >= 0 && params.vocab_size > 0 && params.token_states != nullptr);
  return Launch(draw::SetTokenStatesKernel, 1, draw::kSetThreads, 0, stream, params);
}

cudaError_t Draw(const DrawParams& params, cudaStream_t stream) {
  const MatrixView& logits = params.logits;
  FOX_CHECK(logits.dtype == DType::kF32 && logits.cols > 0);
  constexpr int64_t kMostCols = int64_t{1} << 30;
  FOX_CHECK(logits.cols <= kMostCols);
  FOX_CHECK(logits.rows >= 0 && logits.rows <= INT32_MAX / draw::kMostBlocks);
  FOX_CHECK(logits.rows <= 1 || logits.row_stride >= logits.cols);
  const auto [kernel, blocks] = draw::KernelFor(logits.rows);
  constexpr int kWeightBits = 63;
  return Launch(kernel, dim3(static_cast<unsigned>(logits.rows * blocks)), dim3(draw::kThreads), 0,
                stream, params, draw::BitWidth(logits.cols - 1),
                static_cast<float>(uint64_t{1} << (kWeightBits - draw::BitWidth(logits.cols))));
}

}  // namespace fox::cuda
