// Operations of the blocks that share a row of logits: candidate keys, sums over the row, and
// SelectByRunningSum, a radix search by running sum. Sums are exact, so all blocks make the same
// decisions without communicating them, and a row gives the same result in any batch. Used by
// sample.cu.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/core/sampling_arithmetic.h"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/cluster.cuh"

namespace fox::cuda::sample {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBinBits = 9;
constexpr int kBins = 1 << kBinBits;
constexpr int kMaxCandidates = 128;            // this many candidates are compared directly
constexpr uint64_t kNotFinite = ~uint64_t{0};  // larger than any key
static_assert(kBins == kThreads, "one thread a bin");

struct Candidate {
  uint64_t key, weight;
};

// Two of everything that other blocks read, used alternately: a block that writes for exchange n +
// 2 has passed the barrier of n + 1, before which all blocks had read n.
struct Shared {
  uint64_t partial[2][kWarps];
  // Sums by bin; a weight is high * 2^32 + low, because shared memory adds 32 bits at a time.
  uint32_t count[2][kBins], low[2][kBins], high[2][kBins];
  uint32_t num_candidates[2];
  Candidate candidates[2][kMaxCandidates];
  // Private to this block.
  Candidate merged[kMaxCandidates];
  uint64_t warp_sum[kWarps];
  uint64_t bin_before, picked;
  uint32_t bin_count;
  int bin;
};

// A block's view of its row.
struct Row {
  const float* logits;             // finite, or -infinity: masked
  int32_t vocabulary, begin, end;  // the block's ids: [begin, end)
  int id_bits;                     // of a key
  float fixed_point_one;           // FixedPointOne(vocabulary)
  int rank;                        // of the block in its row
  float largest;
  Shared* shared;
  int parity;  // exchanges done, modulo 2
};

// --- Blocks of a row ---

// Publishes writes to shared memory to the other blocks, and nothing else.
template <int kBlocks>
__device__ __forceinline__ void RowBarrier() {
  if constexpr (kBlocks == 1) {
    __syncthreads();
  } else {
    ArriveReleasingShared();
    WaitForCluster();
  }
}

// The value of *local in block `rank` of the row.
template <int kBlocks, typename T>
__device__ __forceinline__ T ReadPeer(const T* local, int rank) {
  if constexpr (kBlocks > 1) return LoadFromBlock(local, rank);
  return *local;
}

struct Plus {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};
struct Larger {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};

template <typename Operator>
__device__ __forceinline__ uint64_t WarpReduce(uint64_t value, Operator combine) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = combine(value, FromLaneXor(value, offset));
  }
  return value;
}

// Reduces over all threads of the row, the result in all of them; 0 is the operator's neutral
// element.
template <int kBlocks, typename Operator>
__device__ uint64_t AllReduce(Row& row, uint64_t value, Operator combine) {
  uint64_t* partial = row.shared->partial[row.parity];
  value = WarpReduce(value, combine);
  if (Lane() == 0) partial[Warp()] = value;
  RowBarrier<kBlocks>();
  row.parity ^= 1;
  uint64_t result = 0;
#pragma unroll
  for (int at = Lane(); at < kBlocks * kWarps; at += kWarp) {
    result = combine(result, ReadPeer<kBlocks>(partial + at % kWarps, at / kWarps));
  }
  return WarpReduce(result, combine);
}

// --- Logits and keys ---

// Calls visit(logit, id) for the block's ids, with kAhead loads of a thread in flight.
template <int kAhead, typename Visit>
__device__ __forceinline__ void ForEach(const Row& row, Visit visit) {
  for (int32_t first = row.begin + static_cast<int32_t>(threadIdx.x); first < row.end;
       first += kAhead * kThreads) {
    float x[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t id = first + i * kThreads;
      x[i] = id < row.end ? row.logits[id] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t id = first + i * kThreads;
      if (id < row.end) visit(x[i], id);
    }
  }
}

// Floats as integers of the same order; -0 counts as 0.
__device__ __forceinline__ uint32_t Order(float x) {
  const auto bits = BitCast<int32_t>(__fadd_rn(x, 0.0f));
  return static_cast<uint32_t>(bits ^ ((bits >> 31) & 0x7fffffff)) ^ 0x80000000u;
}

// A candidate's rank among all: the larger logit, then the lower id.
__device__ __forceinline__ uint64_t KeyOf(const Row& row, float x, int32_t id) {
  const uint32_t ids = (uint32_t{1} << row.id_bits) - 1;
  return (uint64_t{Order(x)} << row.id_bits) | (ids - static_cast<uint32_t>(id));
}

// The lowest key that a logit of at least x can have.
__device__ __forceinline__ uint64_t LowestKey(const Row& row, float x) {
  return uint64_t{Order(x)} << row.id_bits;
}

__device__ __forceinline__ int32_t IdOf(const Row& row, uint64_t key) {
  const uint32_t ids = (uint32_t{1} << row.id_bits) - 1;
  return static_cast<int32_t>(ids - (static_cast<uint32_t>(key) & ids));
}

// The logit that a key was made of.
__device__ __forceinline__ float LogitOf(const Row& row, uint64_t key) {
  const auto bits = static_cast<int32_t>(static_cast<uint32_t>(key >> row.id_bits) ^ 0x80000000u);
  return BitCast<float>(bits ^ ((bits >> 31) & 0x7fffffff));
}

// --- The radix search ---

// The measure that a search adds up: one per candidate, or its weight (0: no candidate); and the
// number of its first bins per unit of logit.
struct Counting {
  static constexpr bool kWeighs = false;
  static constexpr float kBinsPerUnit = 16;
  __device__ float bins_per_unit() const { return kBinsPerUnit; }
  __device__ uint64_t operator()(const Row&, float) const { return 1; }
};
struct Weighing {
  static constexpr bool kWeighs = true;
  double inverse_temperature;
  float bins_per_logit;  // finite
  __device__ float bins_per_unit() const { return bins_per_logit; }
  __device__ uint64_t operator()(const Row& row, float x) const {
    return FixedPointWeight(Weight(x, row.largest, inverse_temperature), row.fixed_point_one);
  }
};

// Bins of equal width from the largest logit down, the last one open. Most rows need no others,
// because few logits share a bin near the top. Never decreases as x decreases, however it is
// rounded.
__device__ __forceinline__ int FirstBin(const Row& row, float x, float bins_per_unit) {
  const float bin = (row.largest - x) * bins_per_unit;
  return bin < kBins - 1 ? static_cast<int>(bin) : kBins - 1;
}

// The candidates with keys in [low, high], and with that first bin unless it is -1.
struct Range {
  uint64_t low, high;
  int first_bin = -1;
  __device__ bool Has(const Row& row, float x, uint64_t key, float bins_per_unit) const {
    return key >= low && key <= high &&
           (first_bin < 0 || FirstBin(row, x, bins_per_unit) == first_bin);
  }
  // Narrows the range to first bin `bin`. The keys' bounds need not be tight.
  __device__ void NarrowTo(const Row& row, int bin, float bins_per_unit) {
    constexpr double kRounding = 0x1p-20;  // ample for the two roundings of FirstBin
    const double unit = 1.0 / static_cast<double>(bins_per_unit);
    const double far = (bin + 1) * unit * (1 + kRounding);
    const double near = bin * unit * (1 - kRounding);
    const double largest = static_cast<double>(row.largest);
    const uint64_t highest =
        LowestKey(row, __double2float_ru(largest - near)) | ((uint64_t{1} << row.id_bits) - 1);
    first_bin = bin;
    high = high < highest ? high : highest;
    if (bin < kBins - 1) low = Larger()(low, LowestKey(row, __double2float_rd(largest - far)));
  }
};

// Collects the candidates of the range, at most kMaxCandidates in all blocks, in `merged` of every
// block, in no order. Returns their number.
template <int kBlocks, typename Measure>
__device__ int GatherCandidates(Row& row, const Range& range, Measure measure) {
  Shared& shared = *row.shared;
  const int tid = static_cast<int>(threadIdx.x);
  const int parity = row.parity;
  if (tid == 0) shared.num_candidates[parity] = 0;
  __syncthreads();
  ForEach<4>(row, [&](float x, int32_t id) {
    const uint64_t key = KeyOf(row, x, id);
    if (!range.Has(row, x, key, measure.bins_per_unit())) return;
    const uint64_t weight = measure(row, x);
    if (weight == 0) return;
    shared.candidates[parity][atomicAdd(&shared.num_candidates[parity], 1u)] = {key, weight};
  });
  RowBarrier<kBlocks>();
  row.parity ^= 1;
  int total = 0;
#pragma unroll
  for (int rank = 0; rank < kBlocks; ++rank) {
    const int count = static_cast<int>(ReadPeer<kBlocks>(&shared.num_candidates[parity], rank));
    if (tid < count) {
      const Candidate* from = &shared.candidates[parity][tid];
      shared.merged[total + tid] = {ReadPeer<kBlocks>(&from->key, rank),
                                    ReadPeer<kBlocks>(&from->weight, rank)};
    }
    total += count;
  }
  __syncthreads();
  return total;
}

// Adds up the block's candidates in the range by first bin or, where that is drained, by bin
// (high - key) >> shift.
template <typename Measure>
__device__ void FillBins(const Row& row, const Range& range, int shift, Measure measure) {
  Shared& shared = *row.shared;
  const int parity = row.parity;
  shared.count[parity][threadIdx.x] = 0;
  shared.low[parity][threadIdx.x] = 0;
  shared.high[parity][threadIdx.x] = 0;
  __syncthreads();
  ForEach<4>(row, [&](float x, int32_t id) {
    const uint64_t key = KeyOf(row, x, id);
    if (!range.Has(row, x, key, measure.bins_per_unit())) return;
    const int bin = range.first_bin < 0 ? FirstBin(row, x, measure.bins_per_unit())
                                        : static_cast<int>((range.high - key) >> shift);
    if constexpr (Measure::kWeighs) {
      const uint64_t weight = measure(row, x);
      if (weight == 0) return;
      const uint32_t part = static_cast<uint32_t>(weight);
      const uint32_t sum = atomicAdd(&shared.low[parity][bin], part) + part;
      const uint32_t carry = static_cast<uint32_t>(weight >> 32) + (sum < part ? 1 : 0);
      if (carry != 0) atomicAdd(&shared.high[parity][bin], carry);
    }
    atomicAdd(&shared.count[parity][bin], 1u);
  });
}

// The sum over the block's threads up to this one, and over all in *total.
__device__ uint64_t BlockScan(Shared& shared, uint64_t value, uint64_t* total) {
  const uint64_t scanned = WarpScan(value);
  if (Lane() == kWarp - 1) shared.warp_sum[Warp()] = scanned;
  __syncthreads();
  const uint64_t others = Lane() < kWarps ? shared.warp_sum[Lane()] : 0;
  *total = WarpReduce(others, Plus());
  return scanned + WarpReduce(Lane() < Warp() ? others : 0, Plus());
}

// The key of the candidate in [low, high], best first, at which the running sum of the measure
// passes target(total), the sum over the range; `low` where it does not. Narrows the range, first
// by bins of logits and then by bins of keys, until few candidates are left in it.
template <int kBlocks, typename Measure, typename Target>
__device__ uint64_t SelectByRunningSum(Row& row, uint64_t low, uint64_t high, Measure measure,
                                       Target target_of) {
  Shared& shared = *row.shared;
  Range range{low, high};
  uint64_t target = 0;
  for (bool first = true;; first = false) {
    const int shift =
        max(0, 64 - __clzll(static_cast<long long>(range.high - range.low)) - kBinBits);
    FillBins(row, range, shift, measure);
    const int parity = row.parity;
    RowBarrier<kBlocks>();
    row.parity ^= 1;
    uint32_t count = 0;
    uint64_t sum = 0;
#pragma unroll 4  // SampleKernel would spill
    for (int rank = 0; rank < kBlocks; ++rank) {
      count += ReadPeer<kBlocks>(&shared.count[parity][threadIdx.x], rank);
      if constexpr (Measure::kWeighs) {
        sum += (uint64_t{ReadPeer<kBlocks>(&shared.high[parity][threadIdx.x], rank)} << 32) +
               ReadPeer<kBlocks>(&shared.low[parity][threadIdx.x], rank);
      }
    }
    if constexpr (!Measure::kWeighs) sum = count;
    uint64_t total;
    const uint64_t through = BlockScan(shared, sum, &total);
    if (first) {
      target = target_of(total);
      if (target >= total) return low;
    }
    if (through - sum <= target && target < through) {
      shared.bin = static_cast<int>(threadIdx.x);
      shared.bin_before = through - sum;
      shared.bin_count = count;
    }
    __syncthreads();
    target -= shared.bin_before;
    if (first) {
      range.NarrowTo(row, shared.bin, measure.bins_per_unit());
    } else {
      range.high -= static_cast<uint64_t>(shared.bin) << shift;
      const uint64_t width = (uint64_t{1} << shift) - 1;
      if (range.high - range.low > width) range.low = range.high - width;
    }
    if (shared.bin_count <= kMaxCandidates) break;
  }
  const int num_candidates = GatherCandidates<kBlocks>(row, range, measure);
  if (static_cast<int>(threadIdx.x) < num_candidates) {
    const Candidate mine = shared.merged[threadIdx.x];
    uint64_t before = 0;
    for (int i = 0; i < num_candidates; ++i) {
      const Candidate other = shared.merged[i];
      if (other.key > mine.key) before += other.weight;
    }
    if (before <= target && target < before + mine.weight) shared.picked = mine.key;
  }
  __syncthreads();
  return shared.picked;
}

}  // namespace fox::cuda::sample
