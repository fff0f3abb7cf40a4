// Sampling and scoring on the device: one cluster of blocks per row, each with a slice of the ids;
// one block per row if rows are many or there are no clusters. Penalties, biases and masks are
// applied once, in place, rounded as in engine/request/sampler.cc. A token is sampled by one pass
// over the logits, the exponential race of kernels/core/sampling_arithmetic.h. Filters come before
// it and need no sort: the k-th best and the end of the top_p mass are found by a radix search.
// Read radix_select.cuh next.
#include <math_constants.h>

#include <cfloat>
#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/core/sampling_arithmetic.h"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sampling/radix_select.cuh"
#include "kernels/cuda/sampling/sample.h"

namespace fox::cuda {
namespace sample {
namespace {

constexpr int kMaxLogBlocks = 3;  // the largest portable clusters have 8 blocks

// True if a logit may be sampled from; -infinity is masked where `masks`.
__device__ __forceinline__ bool IsLegal(float x, bool masks) {
  return (BitCast<int32_t>(x) & 0x7f800000) != 0x7f800000 || (masks && x == -CUDART_INF_F);
}

__device__ __forceinline__ bool HasTopK(const Row& row, const SampleRow& how) {
  return how.top_k > 0 && how.top_k < row.vocabulary;
}

// The lowest key that the filters keep, in the order min_p, top_k, top_p.
template <int kBlocks>
__device__ uint64_t LowestKept(Row& row, const SampleRow& how, uint64_t best) {
  uint64_t low = LowestKey(row, -FLT_MAX);
  if (how.min_p > 0.0f) {
    low = LowestKey(row, MinPFloor(how.min_p, how.temperature, row.largest));
  }
  if (HasTopK(row, how)) {
    const uint64_t top_k = static_cast<uint64_t>(how.top_k);
    low = SelectByRunningSum<kBlocks>(row, low, best, Counting(),
                                      [=](uint64_t) { return top_k - 1; });
  }
  if (how.top_p >= 1.0f) return low;
  // Weights below 1 / fixed_point_one are 0; leaving them out saves time.
  const double max_distance =
      (log(static_cast<double>(row.fixed_point_one)) + 1.4) * static_cast<double>(how.temperature);
  const float zero_weight_cutoff =
      __double2float_rd(static_cast<double>(row.largest) - max_distance);
  low = Larger()(low, LowestKey(row, zero_weight_cutoff));
  constexpr double kFinest = 1e30;
  const Weighing weighing{InverseTemperature(how.temperature),
                          static_cast<float>(fmin(kBins / max_distance, kFinest))};
  const float top_p = how.top_p;
  return SelectByRunningSum<kBlocks>(row, low, best, weighing,
                                     [=](uint64_t total) { return TopPSum(top_p, total) - 1; });
}

// A lane's ids of a group of the race, and its warp's groups of the block's slice, which begins
// with a group.
constexpr int kEach = kRaceGroup / kRaceLanes;
__device__ __forceinline__ int32_t GroupOf(const Row& row, int turn) {
  return row.begin + (turn * kWarps + Warp()) * kRaceGroup;
}

// The noise of a lane's ids of a group: the race adds it to their logits.
struct GroupNoise {
  float of[kEach];
};
__device__ __forceinline__ GroupNoise NoiseOf(const SampleRow& how, int32_t group) {
  const PhiloxCounter block =
      RaceWords(how.seed, how.position, group / kRaceGroup * kRaceLanes + Lane());
  const uint32_t words[kEach] = {block.x0, block.x1, block.x2, block.x3};
  const float scale = RaceScale(how.temperature);
  GroupNoise noise;
#pragma unroll
  for (int i = 0; i < kEach; ++i) noise.of[i] = RaceNoise(words[i], scale);
  return noise;
}

// The noise of a warp's first groups, drawn before the logits are there: it is most of a race's
// work, and three are all groups of 49,152 ids by eight blocks.
constexpr int kEarlyTurns = 3;
struct EarlyNoise {
  bool drawn = false;
  GroupNoise of[kEarlyTurns] = {};
};
__device__ __forceinline__ EarlyNoise DrawEarly(const Row& row, const SampleRow& how) {
  EarlyNoise early{true, {}};
#pragma unroll
  for (int turn = 0; turn < kEarlyTurns; ++turn) {
    early.of[turn] = NoiseOf(how, GroupOf(row, turn));
    for (float& x : early.of[turn].of) ComputeNow(x);
  }
  return early;
}

// The RaceKey of the sampled token, among keys from `low` on; kNotFinite, or 0 where all are
// masked.
template <int kBlocks>
__device__ uint64_t Race(Row& row, const SampleRow& how, const EarlyNoise& early, uint64_t low,
                         bool masks) {
  struct GroupLogits {
    float of[kEach];
  };
  const auto load = [&](int32_t group) {
    GroupLogits x;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int32_t id = group + i * kRaceLanes + Lane();
      x.of[i] = id < row.end ? row.logits[id] : 0.0f;
    }
    return x;
  };
  // A key is at least `low` if its logit is larger, or equal and its id not higher.
  const float lowest = LogitOf(row, low);
  const int32_t last = IdOf(row, low);
  uint64_t best = 0;
  bool finite = true;
  const auto join = [&](int32_t group, const GroupLogits& logits, const GroupNoise& noise) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int32_t id = group + i * kRaceLanes + Lane();
      const float x = logits.of[i];
      finite = finite && IsLegal(x, masks);
      const uint64_t key = RaceKey(RaceScore(x, noise.of[i]), id, row.id_bits);
      const bool kept = x > lowest || (x == lowest && id <= last);
      if (id < row.end && kept && key > best) best = key;
    }
  };
  if (early.drawn) {
    GroupLogits first[kEarlyTurns];
#pragma unroll
    for (int turn = 0; turn < kEarlyTurns; ++turn) first[turn] = load(GroupOf(row, turn));
#pragma unroll
    for (int turn = 0; turn < kEarlyTurns; ++turn) {
      join(GroupOf(row, turn), first[turn], early.of[turn]);
    }
  }
  for (int turn = early.drawn ? kEarlyTurns : 0; GroupOf(row, turn) < row.end; ++turn) {
    const int32_t group = GroupOf(row, turn);
    const GroupLogits x = load(group);
    join(group, x, NoiseOf(how, group));
  }
  return AllReduce<kBlocks>(row, finite ? best : kNotFinite, Larger());
}

// Log-probabilities and ranks before temperature, of the sampled token and the `best_count` best.
template <int kBlocks>
__device__ void FillLogprobs(Row& row, int32_t id, uint64_t best, int best_count,
                             SampleRecord* out) {
  int num_candidates = 0;
  if (best_count > 0) {
    const uint64_t wanted = static_cast<uint64_t>(best_count);
    const uint64_t low =
        SelectByRunningSum<kBlocks>(row, 0, best, Counting(), [=](uint64_t) { return wanted - 1; });
    num_candidates = GatherCandidates<kBlocks>(row, Range{low, best}, Counting());
  }
  const float sampled = row.logits[id];
  const uint64_t sampled_key = KeyOf(row, sampled, id);
  uint64_t weights = 0, better = 0;
  ForEach<4>(row, [&](float x, int32_t other) {
    weights += FixedPointWeight(Weight(x, row.largest, 1.0), row.fixed_point_one);
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

// A logit with its bias and penalties, each operation rounded as in engine/request/sampler.cc;
// masked ones become -infinity, infinite ones NaN.
__device__ __forceinline__ float Processed(float x, TokenPenaltyState state, bool may_follow,
                                           const LogitsProcessorParams& how, bool masks_stops) {
  const auto clamp = [](float y) { return fminf(fmaxf(y, -FLT_MAX), FLT_MAX); };
  if (!isfinite(x)) return CUDART_NAN_F;
  if (!may_follow) return -CUDART_INF_F;
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

// Rewrites the block's logits; other blocks may read them after the next RowBarrier.
template <int kBlocks>
__device__ void ProcessLogits(const Row& row, const SampleRow& how, const TokenPenaltyState* states,
                              const uint32_t* masks, float* logits) {
  constexpr int kAhead = 8;
  const LogitsProcessorParams logits_processor = how.logits_processor;
  const bool masks_stops = how.position < logits_processor.stops_from;
  const bool has_mask = logits_processor.mask >= 0;
  if (has_mask) masks += logits_processor.mask * MaskWords(row.vocabulary);
  for (int32_t first = row.begin + static_cast<int32_t>(threadIdx.x); first < row.end;
       first += kAhead * kThreads) {
    float x[kAhead];
    TokenPenaltyState state[kAhead];
    uint32_t mask[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t id = first + i * kThreads;
      x[i] = id < row.end ? logits[id] : 0.0f;
      state[i] = id < row.end ? states[id] : TokenPenaltyState{};
      mask[i] = has_mask && id < row.end ? masks[id / 32] : ~uint32_t{0};
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t id = first + i * kThreads;
      const bool may_follow = (mask[i] >> (id % 32) & 1) != 0;
      if (id >= row.end) continue;
      logits[id] = Processed(x[i], state[i], may_follow, logits_processor, masks_stops);
    }
  }
  if constexpr (kBlocks > 1) ReleaseAll();
  __syncthreads();
}

// The key of the best candidate; kNotFinite, or 0 where all are masked.
template <int kBlocks>
__device__ uint64_t FindBest(Row& row, bool masks) {
  uint32_t order = 0;
  int32_t id = -1;
  bool finite = true;
  ForEach<8>(row, [&](float x, int32_t at) {
    finite = finite && IsLegal(x, masks);
    // Ids ascend, so the lowest of equals stays.
    if (Order(x) > order && x != -CUDART_INF_F) {
      order = Order(x);
      id = at;
    }
  });
  const uint32_t ids = (uint32_t{1} << row.id_bits) - 1;
  uint64_t key = 0;
  if (id >= 0) key = (uint64_t{order} << row.id_bits) | (ids - static_cast<uint32_t>(id));
  return AllReduce<kBlocks>(row, finite ? key : kNotFinite, Larger());
}

// The part of this block in the row of number blockIdx.x / kBlocks, whose `largest` is not known.
template <int kBlocks>
__device__ __forceinline__ Row RowOf(const MatrixView& logits, int id_bits, float fixed_point_one,
                                     Shared& shared) {
  const int32_t vocabulary = static_cast<int32_t>(logits.cols);
  const int32_t slice =
      (vocabulary + kBlocks * kRaceGroup - 1) / (kBlocks * kRaceGroup) * kRaceGroup;
  Row row;
  row.logits = logits.Row<float>(blockIdx.x / kBlocks);
  row.vocabulary = vocabulary;
  row.rank = static_cast<int>(blockIdx.x % kBlocks);
  row.begin = min(vocabulary, row.rank * slice);
  row.end = min(vocabulary - row.begin, slice) + row.begin;
  row.id_bits = id_bits;
  row.fixed_point_one = fixed_point_one;
  row.shared = &shared;
  row.parity = 0;
  return row;
}

// A row's parameters, before WaitOnDependencies().
__device__ __forceinline__ SampleRow LoadRow(const SampleRow* from) {
  using Word = uint64_t;
  static_assert(sizeof(SampleRow) % sizeof(Word) == 0 && alignof(SampleRow) % sizeof(Word) == 0);
  Word words[sizeof(SampleRow) / sizeof(Word)];
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(SampleRow) / sizeof(Word)); ++i) {
    words[i] = LoadCoherent(reinterpret_cast<const Word*>(from) + i);
  }
  return BitCast<SampleRow>(words);
}

// Brings the block's logits into the L2, in which the product of a large vocabulary has left few.
__device__ __forceinline__ void PrefetchLogits(const Row& row) {
  constexpr int kSectorIds = 32 / sizeof(float);
  for (int32_t id = row.begin + static_cast<int32_t>(threadIdx.x) * kSectorIds; id < row.end;
       id += kThreads * kSectorIds) {
    Prefetch(row.logits + id);
  }
}

// True for the key of a token.
__device__ __forceinline__ bool IsKey(uint64_t key) { return key != 0 && key != kNotFinite; }

// Two blocks fit an SM, so that ChooseBlocks finds room for more blocks per row.
template <int kBlocks>
__global__ void FOX_CLUSTER(kBlocks) __launch_bounds__(kThreads, 2)
    SampleKernel(const __grid_constant__ SampleParams params, int id_bits, float fixed_point_one) {
  __shared__ Shared shared;
  TriggerDependents();
  const int64_t index = blockIdx.x / kBlocks;
  // Later calls that need most of the row read params.rows again, to leave its registers free.
  const SampleRow how = LoadRow(params.rows + index);
  Row row = RowOf<kBlocks>(params.logits, id_bits, fixed_point_one, shared);
  const bool races = how.temperature > 0.0f;
  EarlyNoise early;
  // Without the branch ptxas would move some of it behind the wait.
  if (races) early = DrawEarly(row, how);
  WaitOnDependencies();
  const bool has_mask = how.logits_processor.mask >= 0;
  if (how.slot < 0 || has_mask != (params.masks != nullptr)) return;  // all blocks of the row
  PrefetchLogits(row);
  const int32_t vocabulary = row.vocabulary;

  const bool processes_logits = how.logits_processor.on;
  TokenPenaltyState* states = params.penalty_state + static_cast<int64_t>(how.slot) * vocabulary;
  if (processes_logits) {
    early = {};  // its registers are needed
    ProcessLogits<kBlocks>(row, params.rows[index], states, params.masks,
                           params.logits.Row<float>(index));
  }
  const bool filters = how.min_p > 0.0f || how.top_p < 1.0f || HasTopK(row, how);
  uint64_t low = LowestKey(row, -FLT_MAX);  // all but masked tokens
  uint64_t best = low, winner = low;
  if (!races || filters || how.logprobs >= 0) {
    early = {};
    winner = best = FindBest<kBlocks>(row, processes_logits);
    if (IsKey(best)) row.largest = row.logits[IdOf(row, best)];
    if (IsKey(best) && filters && races) low = LowestKept<kBlocks>(row, params.rows[index], best);
  }
  if (races && IsKey(best)) winner = Race<kBlocks>(row, how, early, low, processes_logits);
  const bool samples = IsKey(winner);
  const int32_t id = samples ? IdOf(row, winner) : 0;
  const SampleStatus status = samples       ? SampleStatus::kSampled
                              : winner == 0 ? SampleStatus::kAllMasked
                                            : SampleStatus::kNotFinite;
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

template <int kBlocks>
__global__ void FOX_CLUSTER(kBlocks) __launch_bounds__(kThreads, 2)
    ScoreKernel(const __grid_constant__ ScoreParams params, int id_bits, float fixed_point_one) {
  __shared__ Shared shared;
  TriggerDependents();
  WaitOnDependencies();
  const int64_t index = blockIdx.x / kBlocks;
  const ScoreRow how = params.rows[index];
  Row row = RowOf<kBlocks>(params.logits, id_bits, fixed_point_one, shared);
  SampleRecord* out = params.scores + index;
  const uint64_t best = FindBest<kBlocks>(row, /*masks=*/false);
  if (row.rank == 0 && threadIdx.x == 0) {
    out->id = how.target;
    out->status = IsKey(best) ? SampleStatus::kSampled : SampleStatus::kNotFinite;
  }
  if (IsKey(best)) {
    row.largest = row.logits[IdOf(row, best)];
    const int best_count = min(min(how.logprobs, kMaxSampledLogprobs), row.vocabulary);
    FillLogprobs<kBlocks>(row, how.target, best, best_count, out);
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

// The log2 of the most blocks per row with which the clusters of all rows run at once. A row's
// result does not depend on it.
template <typename Params>
cudaError_t ChooseBlocks(int64_t rows, void (*const (&kernels)[4])(const Params, int, float),
                         int* log_blocks) {
  for (*log_blocks = kMaxLogBlocks; *log_blocks > 0; --*log_blocks) {
    const void* kernel = KernelAddress(kernels[*log_blocks]);
    if (!HasSm90Code(kernel)) continue;  // no clusters
    int clusters = 0;
    const cudaError_t error = ResidentClusters(kernel, kThreads, 0, 1 << *log_blocks, &clusters);
    if (error != cudaSuccess) return error;
    if (rows <= clusters) break;
  }
  return cudaSuccess;
}

// Launches one of the kernels of 1, 2, 4 and 8 blocks per row.
template <typename Params>
cudaError_t LaunchRows(const Params& params, void (*const (&kernels)[4])(const Params, int, float),
                       cudaStream_t stream) {
  const MatrixView& logits = params.logits;
  FOX_CHECK(logits.dtype == DType::kF32 && logits.cols > 0);
  constexpr int64_t kMaxCols = int64_t{1} << 30;
  FOX_CHECK(logits.cols <= kMaxCols);
  FOX_CHECK(logits.rows >= 0 && logits.rows <= INT32_MAX >> kMaxLogBlocks);
  FOX_CHECK(logits.rows <= 1 || logits.row_stride >= logits.cols);
  int log_blocks = 0;
  const cudaError_t error = ChooseBlocks(logits.rows, kernels, &log_blocks);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(logits.rows << log_blocks));
  return Launch(kernels[log_blocks], grid, dim3(kThreads),
                SmemConfig(0, logits.rows <= kOverlapRows), stream, params, IdBits(logits.cols),
                FixedPointOne(logits.cols));
}

}  // namespace
}  // namespace sample

cudaError_t SetPenaltyState(const PenaltyStateParams& params, cudaStream_t stream) {
  FOX_CHECK(params.slot >= 0 && params.vocab_size > 0 && params.penalty_state != nullptr);
  return Launch(sample::SetPenaltyStateKernel, 1, sample::kSetThreads, 0, stream, params);
}

cudaError_t Sample(const SampleParams& params, cudaStream_t stream) {
  using namespace sample;
  return LaunchRows<SampleParams>(
      params, {SampleKernel<1>, SampleKernel<2>, SampleKernel<4>, SampleKernel<8>}, stream);
}

cudaError_t Score(const ScoreParams& params, cudaStream_t stream) {
  using namespace sample;
  return LaunchRows<ScoreParams>(
      params, {ScoreKernel<1>, ScoreKernel<2>, ScoreKernel<4>, ScoreKernel<8>}, stream);
}

}  // namespace fox::cuda
