// One cluster of blocks a (sequence, query head) pair. The window's units (half pages) are dealt to
// the cluster's warps in turn, eight to the first block, eight to the second and so on; a block
// that gets none ends at once, so a short window costs one block. The first block merges, in order.
#include <cuda_bf16.h>

#include <cfloat>
#include <cstdint>

#include "kernels/cuda/attention/decode_cluster.h"
#include "kernels/cuda/attention/decode_items.h"
#include "kernels/cuda/attention/decode_loads.h"
#include "kernels/cuda/attention/decode_softmax.h"
#include "kernels/cuda/device/cluster.h"
#include "kernels/cuda/head_dim.h"
#include "kernels/cuda/launch.h"

namespace fox::cuda {
namespace {

using namespace decode;

// The largest portable cluster. Twice as many blocks of half as many warps were slower: few such
// clusters find room at a time.
constexpr int kBlocks = 8;
constexpr int kBlockWarps = 8;
constexpr int kBlockThreads = kBlockWarps * kWarp;
constexpr int kUnitsAtOnce = kBlocks * kBlockWarps;

template <int kHeadDim>
struct Shared {
  WarpParts<kHeadDim, kBlockWarps> warps;
  KeptPair<kHeadDim> pairs[kBlockWarps];
  // In the first block: what each block has found.
  struct Part {
    float max, sum, out[kHeadDim];
  } blocks[kBlocks];
};

// Half pages that hold keys of the window.
__device__ __forceinline__ int NumUnits(const Pair& pair) {
  return (pair.length + kUnitKeys - 1) / kUnitKeys - pair.first_live * kUnitsPerPage;
}

// Unit k of the window; behind the last one: no valid keys, and a place that may be read.
__device__ __forceinline__ Unit UnitOf(const Pair& pair, int k, int count) {
  const int at = pair.first_live * kUnitsPerPage + (k < count ? k : 0);
  const int page = at / kUnitsPerPage;
  const int valid = k < count ? min(kUnitKeys, pair.length - at * kUnitKeys) : 0;
  return {LoadCoherent(pair.table + page), at % kUnitsPerPage, valid, page == NumPages(pair) - 1};
}

// Merges the blocks' parts. Called by the threads t < kHeadDim of the first block.
template <int kHeadDim>
__device__ __forceinline__ void MergeBlocks(const Decode& a, const Pair& pair,
                                            const Shared<kHeadDim>& shared, int blocks) {
  const int t = static_cast<int>(threadIdx.x);
  float max = shared.blocks[0].max, sum = 0, out = 0;
#pragma unroll
  for (int b = 1; b < kBlocks; ++b) {
    if (b < blocks) max = fmaxf(max, shared.blocks[b].max);
  }
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    if (b >= blocks) break;
    const float weight = exp2f(shared.blocks[b].max - max);
    sum = fmaf(weight, shared.blocks[b].sum, sum);
    out = fmaf(weight, shared.blocks[b].out[t], out);
  }
  StoreRow<kHeadDim>(a, pair, max, sum, out);
}

// The warp's units, every kUnitsAtOnce-th from `first`; keys and values of the first are in
// registers before the row is.
template <int kHeadDim>
__device__ __forceinline__ Softmax Attend(const Decode& a, const Pair& pair, int first, int count,
                                          KeptPair<kHeadDim>& kept) {
  using L = Layout<kHeadDim>;
  Unit unit = UnitOf(pair, first, count);
  Unit next = UnitOf(pair, first + kUnitsAtOnce, count);
  uint4 keys[L::kLoads], values[L::kLoads];
  PrefetchGates(a, pair, unit);
  LoadTile<kHeadDim>(a.kv.keys, unit, keys);
  LoadTile<kHeadDim>(a.kv.values, unit, values);
  if (next.valid > 0) {
    PrefetchGates(a, pair, next);
    PrefetchTiles<kHeadDim>(a, next);
  }
  LetNextStart();
  WaitForPrevious();
  Softmax softmax;
  if (first >= count) return softmax;
  const Row<kHeadDim> row = LoadRow<kHeadDim>(a, pair);
  Gate gate = LoadGate<kHeadDim>(a, pair, unit);
  LoadTileAgain<kHeadDim>(a.kv.keys, unit, keys);
  LoadTileAgain<kHeadDim>(a.kv.values, unit, values);
  Keep(pair, row, kept);
#pragma unroll 1
  for (int k = first;; k += kUnitsAtOnce) {
    const float weight = Weigh(kept, keys, gate, unit.valid, softmax);
    // Left here, not at the loop's end: where paths meet, the compiler would wait for loads.
    if (next.valid == 0) {
      AddValues<kHeadDim>(weight, values, softmax);
      return softmax;
    }
    unit = next;
    gate = LoadGate<kHeadDim>(a, pair, unit);
    LoadTile<kHeadDim>(a.kv.keys, unit, keys);
    next = UnitOf(pair, k + 2 * kUnitsAtOnce, count);
    AddValues<kHeadDim>(weight, values, softmax);
    LoadTile<kHeadDim>(a.kv.values, unit, values);
    if (next.valid > 0) PrefetchTiles<kHeadDim>(a, next);
  }
}

template <int kHeadDim>
__global__ void FOX_CLUSTER(kBlocks) __launch_bounds__(kBlockThreads, kHeadDim > 64 ? 1 : 2)
    DecodeClusterKernel(const __grid_constant__ Decode a) {
  __shared__ Shared<kHeadDim> shared;
  ArriveAtClusterRelaxed();  // the first block has started when parts are sent to it
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;
  const int index = static_cast<int>(blockIdx.x) / kBlocks;
  if (LoadCoherent(a.batch.slot + index / a.kv.shape.q_heads) < 0) {
    // Some block must wait, so that the end of this kernel implies that of all before it; it must
    // not hold back the next kernel, which starts when all blocks have let it.
    if (rank != 0) return;
    LetNextStart();
    WaitForPrevious();
    return;
  }
  const Pair pair = LoadPair(a, index);
  const int count = NumUnits(pair);
  if (rank * kBlockWarps >= count) return;
  const int warp = Warp(), t = static_cast<int>(threadIdx.x);
  shared.warps.Put(warp,
                   Attend<kHeadDim>(a, pair, rank * kBlockWarps + warp, count, shared.pairs[warp]));
  __syncthreads();
  float max = 0, sum = 0, out = 0;
  if (t < kHeadDim) shared.warps.Merge(t, max, sum, out);
  if (rank == 0 && t == 0) CountPages(a, pair);
  if (count <= kBlockWarps) {
    if (t < kHeadDim) StoreRow<kHeadDim>(a, pair, max, sum, out);
    return;
  }
  WaitForCluster();
  if (t < kHeadDim) {
    typename Shared<kHeadDim>::Part& part = shared.blocks[rank];
    StoreInBlock(&part.out[t], 0, out);
    if (t == 0) {
      StoreInBlock(&part.max, 0, max);
      StoreInBlock(&part.sum, 0, sum);
    }
  }
  ArriveAtCluster();
  if (rank != 0) return;
  WaitForCluster();
  const int blocks = min(kBlocks, (count + kBlockWarps - 1) / kBlockWarps);
  if (t < kHeadDim) MergeBlocks<kHeadDim>(a, pair, shared, blocks);
}

template <int kHeadDim>
cudaError_t LaunchFor(const Decode& arguments, cudaStream_t stream) {
  const int pairs = NumPairs(arguments);
  return Launch(DecodeClusterKernel<kHeadDim>, dim3(static_cast<unsigned>(pairs * kBlocks)),
                dim3(kBlockThreads), SharedBytes(0, true), stream, arguments);
}

}  // namespace

bool DecodeClusterRuns(int head_dim) {
  static const bool has_clusters = RunsClusters(DecodeClusterKernel<64>);
  return has_clusters && head_dim >= 32;
}

cudaError_t DecodeCluster(const Decode& arguments, cudaStream_t stream) {
  return DispatchHeadDim<32>(arguments.kv.shape.head_dim, [&]<int kHeadDim>() {
    return LaunchFor<kHeadDim>(arguments, stream);
  });
}

}  // namespace fox::cuda
