// Sampling on the device: one cluster of blocks a row, each with a slice of the ids; one block a
// row where rows are many or there are no clusters. Penalties, biases and masks are applied once,
// in place; they and the weights are engine/sampler.cc's, bit for bit. Filters need no sort: the
// k-th best, the end of the top_p mass and the sampled token are each found by a radix search. Read
// radix_select.cuh next.
#include <math_constants.h>

#include <cfloat>
#include <cstdint>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/philox.h"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sampling/radix_select.cuh"
#include "kernels/cuda/sampling/sample.h"

namespace fox::cuda {
namespace sample {
namespace {

constexpr int kMostBlocks = 8;  // the largest portable cluster

__device__ __forceinline__ double InverseTemperature(const SampleRow& how) {
  return 1.0 / static_cast<double>(how.temperature);
}

// The sum that the sampled token is the first to pass; rounding must not lift it beyond the last.
__device__ __forceinline__ uint64_t SampleTarget(const SampleRow& how, uint64_t total) {
  const double uniform = PhiloxUniform(how.seed, how.position);
  const uint64_t target = static_cast<uint64_t>(uniform * static_cast<double>(total));
  return target < total ? target : total - 1;
}

// In the order of ids, among logits of at least `floor`. A warp adds up a contiguous segment; the
// block whose segment passes the target splits it among its threads.
template <int kBlocks>
__device__ int32_t SampleById(Row& row, const SampleRow& how, float floor) {
  Shared& shared = *row.shared;
  const double inverse_temperature = InverseTemperature(how);
  const int32_t size = row.end - row.begin;
  const int32_t segment = (size + kWarps - 1) / kWarps;
  const auto weight_at = [&](int32_t id) -> uint64_t {
    const float x = row.logits[id];
    return x >= floor ? Weight(row, x, inverse_temperature) : 0;
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
  const uint64_t target = SampleTarget(how, WarpReduce(total, Plus()));

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
      before = FromLane(through - gathered.value[i], lane);
    }
    running = FromLane(through, kWarp - 1);
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
      shared.sampled_id = id;
    }
  }
  RowBarrier<kBlocks>();
  return ReadPeer<kBlocks>(&shared.sampled_id, owner / kWarps);
}

// The filters in the order min_p, top_k, top_p, as in engine/sampler.cc; without a sort there, the
// candidates stay in the order of ids.
template <int kBlocks>
__device__ int32_t SampleFiltered(Row& row, const SampleRow& how, uint64_t best) {
  float floor = -FLT_MAX;
  if (how.min_p > 0.0f) {
    // Rounded up, so that no logit lies between.
    floor =
        __double2float_ru(static_cast<double>(row.largest) +
                          log(fmin(static_cast<double>(how.min_p), 1.0)) / InverseTemperature(how));
  }
  uint64_t low = LowestKey(row, floor);
  bool sorted = how.top_p < 1.0f;
  if (how.top_k > 0 && how.top_k < row.vocabulary) {
    const uint64_t top_k = static_cast<uint64_t>(how.top_k);
    const Selection kept = SelectByRunningSum<kBlocks>(row, low, best, Counting(),
                                                       [=](uint64_t) { return top_k - 1; });
    if (top_k < kept.total) {
      sorted = true;
      low = kept.key;
    }
  }
  if (!sorted) return SampleById<kBlocks>(row, how, floor);
  // Weights below 1 / (4 fixed_point_one) are 0; leaving them out saves time.
  const double max_distance =
      (log(static_cast<double>(row.fixed_point_one)) + 1.4) * static_cast<double>(how.temperature);
  const float zero_weight_cutoff =
      __double2float_rd(static_cast<double>(row.largest) - max_distance);
  low = Larger()(low, LowestKey(row, zero_weight_cutoff));
  constexpr double kFinest = 1e30;
  const Weighing weighing{InverseTemperature(how),
                          static_cast<float>(fmin(kBins / max_distance, kFinest))};
  if (how.top_p < 1.0f) {
    const double top_p = static_cast<double>(how.top_p);
    low = SelectByRunningSum<kBlocks>(row, low, best, weighing, [=](uint64_t total) {
            // The running sum is to reach the product, which is to pass the integer below it.
            return static_cast<uint64_t>(ceil(top_p * static_cast<double>(total))) - 1;
          }).key;
  }
  const Selection sampled = SelectByRunningSum<kBlocks>(
      row, low, best, weighing, [&](uint64_t total) { return SampleTarget(how, total); });
  return IdOf(row, sampled.key);
}

// Log-probabilities and ranks before temperature, of the sampled token and the `best_count` best.
template <int kBlocks>
__device__ void FillLogprobs(Row& row, int32_t id, uint64_t best, int best_count,
                             SampleRecord* out) {
  int num_candidates = 0;
  if (best_count > 0) {
    const uint64_t wanted = static_cast<uint64_t>(best_count);
    const uint64_t low = SelectByRunningSum<kBlocks>(row, 0, best, Counting(), [=](uint64_t) {
                           return wanted - 1;
                         }).key;
    num_candidates = GatherCandidates<kBlocks>(row, Range{low, best}, Counting());
  }
  const float sampled = row.logits[id];
  const uint64_t sampled_key = KeyOf(row, sampled, id);
  uint64_t weights = 0, better = 0;
  ForEach<4>(row, [&](float x, int32_t other) {
    weights += Weight(row, x, 1.0);
    better += KeyOf(row, x, other) > sampled_key ? 1 : 0;
  });
  weights = AllReduce<kBlocks>(row, weights, Plus());
  better = AllReduce<kBlocks>(row, better, Plus());
  if (row.rank != 0) return;
  const double lse = log(static_cast<double>(weights) / static_cast<double>(row.fixed_point_one)) +
                     static_cast<double>(row.largest);
  if (threadIdx.x == 0) {
    out->logprob = static_cast<float>(static_cast<double>(sampled) - lse);
    out->rank = static_cast<int32_t>(better) + 1;
  }
  if (static_cast<int>(threadIdx.x) >= num_candidates) return;
  const Candidate* merged = row.shared->merged;
  const uint64_t mine = merged[threadIdx.x].key;
  int place = 0;
  for (int i = 0; i < num_candidates; ++i) place += merged[i].key > mine ? 1 : 0;
  const int32_t top_id = IdOf(row, mine);
  out->top_ids[place] = top_id;
  out->top_logprobs[place] = static_cast<float>(static_cast<double>(row.logits[top_id]) - lse);
}

// A logit with its bias and penalties, each operation rounded as in engine/sampler.cc; masked ones
// become -infinity, infinite ones NaN.
__device__ __forceinline__ float Processed(float x, TokenPenaltyState state,
                                           const LogitsProcessorParams& how, bool masks_stops) {
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
__device__ void ProcessLogits(const Row& row, const SampleRow& how, const TokenPenaltyState* states,
                              float* logits) {
  constexpr int kAhead = 8;
  const LogitsProcessorParams logits_processor = how.logits_processor;
  const bool masks_stops = how.position < logits_processor.stops_from;
  for (int32_t first = row.begin + static_cast<int32_t>(threadIdx.x); first < row.end;
       first += kAhead * kThreads) {
    float x[kAhead];
    TokenPenaltyState state[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t id = first + i * kThreads;
      x[i] = id < row.end ? logits[id] : 0.0f;
      state[i] = id < row.end ? states[id] : TokenPenaltyState{};
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t id = first + i * kThreads;
      if (id < row.end) logits[id] = Processed(x[i], state[i], logits_processor, masks_stops);
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
    SampleKernel(const __grid_constant__ SampleParams params, int id_bits, float fixed_point_one) {
  __shared__ Shared shared;
  TriggerDependents();
  WaitOnDependencies();
  const int64_t index = blockIdx.x / kBlocks;
  const SampleRow& how = params.rows[index];
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
  row.fixed_point_one = fixed_point_one;
  row.shared = &shared;
  row.parity = 0;

  const bool processes_logits = how.logits_processor.on;
  TokenPenaltyState* states = params.penalty_state + static_cast<int64_t>(how.slot) * vocabulary;
  if (processes_logits) ProcessLogits(row, how, states, logits);
  const uint64_t best = FindBest<kBlocks>(row, processes_logits);
  SampleStatus status = SampleStatus::kNotFinite;
  int32_t id = 0;
  if (best != kNotFinite) {
    id = IdOf(row, best);
    row.largest = row.logits[id];
    status = row.largest == -CUDART_INF_F ? SampleStatus::kAllMasked : SampleStatus::kSampled;
  }
  const bool samples = status == SampleStatus::kSampled;
  if (samples && how.temperature > 0.0f) id = SampleFiltered<kBlocks>(row, how, best);
  SampleRecord* out = params.sampled + index;
  if (row.rank == 0 && threadIdx.x == 0) {
    out->id = id;
    out->status = status;
    params.sampled_tokens[how.slot] = id;
    if (processes_logits && samples) ++states[id].bits;
  }
  if (samples && how.logprobs >= 0) {
    const int best_count = min(min(how.logprobs, kMaxSampledLogprobs), vocabulary);
    FillLogprobs<kBlocks>(row, id, best, best_count, out);
  }
  RowBarrier<kBlocks>();  // no block may end while others read its shared memory
}

constexpr int kSetThreads = 1024;

__global__ void __launch_bounds__(kSetThreads, 1)
    SetPenaltyStateKernel(const __grid_constant__ PenaltyStateParams params) {
  TriggerDependents();
  WaitOnDependencies();
  TokenPenaltyState* states = params.penalty_state + params.slot * params.vocab_size;
  for (int64_t id = threadIdx.x; id < params.vocab_size; id += kSetThreads) states[id] = {};
  __syncthreads();
  for (int64_t i = threadIdx.x; i < params.count; i += kSetThreads) {
    const PenaltyEntry entry = params.entries[i];
    if (entry.id < 0 || entry.id >= params.vocab_size) continue;
    if (entry.state.bias != 0.0f) atomicAdd(&states[entry.id].bias, entry.state.bias);
    atomicOr(&states[entry.id].bits, entry.state.bits);
  }
}

using Kernel = void (*)(const SampleParams, int, float);

// As many blocks a row as run at once; the result does not depend on it.
std::pair<Kernel, int> KernelFor(int64_t rows) {
  constexpr int64_t kBlocksAtOnce = 128;  // of the smallest device with clusters, about
  const bool has_clusters = HasSm90Code(KernelAddress(SampleKernel<kMostBlocks>));
  if (!has_clusters || rows * 2 > kBlocksAtOnce) return {SampleKernel<1>, 1};
  if (rows * 4 > kBlocksAtOnce) return {SampleKernel<2>, 2};
  if (rows * 8 > kBlocksAtOnce) return {SampleKernel<4>, 4};
  return {SampleKernel<kMostBlocks>, kMostBlocks};
}

int BitWidth(int64_t value) {
  int bits = 0;
  for (; value > 0; value >>= 1) ++bits;
  return bits;
}

}  // namespace
}  // namespace sample

cudaError_t SetPenaltyState(const PenaltyStateParams& params, cudaStream_t stream) {
  FOX_CHECK(params.slot >= 0 && params.vocab_size > 0 && params.penalty_state != nullptr);
  return Launch(sample::SetPenaltyStateKernel, 1, sample::kSetThreads, 0, stream, params);
}

cudaError_t Sample(const SampleParams& params, cudaStream_t stream) {
  const MatrixView& logits = params.logits;
  FOX_CHECK(logits.dtype == DType::kF32 && logits.cols > 0);
  constexpr int64_t kMostCols = int64_t{1} << 30;
  FOX_CHECK(logits.cols <= kMostCols);
  FOX_CHECK(logits.rows >= 0 && logits.rows <= INT32_MAX / sample::kMostBlocks);
  FOX_CHECK(logits.rows <= 1 || logits.row_stride >= logits.cols);
  const auto [kernel, blocks] = sample::KernelFor(logits.rows);
  constexpr int kWeightBits = 63;
  return Launch(kernel, dim3(static_cast<unsigned>(logits.rows * blocks)), dim3(sample::kThreads),
                0, stream, params, sample::BitWidth(logits.cols - 1),
                static_cast<float>(uint64_t{1} << (kWeightBits - sample::BitWidth(logits.cols))));
}

}  // namespace fox::cuda
