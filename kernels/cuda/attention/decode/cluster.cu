// One cluster of blocks a (sequence, query head). The half pages of its window are dealt to
// the cluster's warps in turn, eight to the first block, eight to the second and so on; a block
// that gets none ends at once, so a short window costs one block. The first block merges, in order.
#include <cuda_bf16.h>

#include <cfloat>
#include <cstdint>

#include "kernels/cuda/attention/decode/cluster.cuh"
#include "kernels/cuda/attention/decode/loads.cuh"
#include "kernels/cuda/attention/decode/softmax.cuh"
#include "kernels/cuda/attention/decode/splits.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/runtime/head_dim.h"
#include "kernels/cuda/runtime/launch.h"

namespace fox::cuda {
namespace {

using namespace decode;

// The largest portable cluster. Twice as many blocks of half as many warps were slower: few such
// clusters find room at a time.
constexpr int kBlocks = 8;
constexpr int kBlockWarps = 8;
constexpr int kBlockThreads = kBlockWarps * kWarp;
constexpr int kHalfPagesAtOnce = kBlocks * kBlockWarps;

template <int kHeadDim>
struct ClusterShared {
  WarpParts<kHeadDim, kBlockWarps> warps;
  KeptSeqHead<kHeadDim> seq_heads[kBlockWarps];
  // In the first block: what each block has found.
  struct Part {
    float max, sum, out[kHeadDim];
  } blocks[kBlocks];
};

// Half pages that hold keys of the window.
__device__ __forceinline__ int NumHalfPages(const SeqHead& seq_head) {
  return (seq_head.length + kHalfPageKeys - 1) / kHalfPageKeys -
         seq_head.first_live * kHalvesPerPage;
}

// HalfPage k of the window; past the last one: no valid keys, and a place that may be read.
__device__ __forceinline__ HalfPage HalfPageOf(const SeqHead& seq_head, int k, int count) {
  const int at = seq_head.first_live * kHalvesPerPage + (k < count ? k : 0);
  const int page = at / kHalvesPerPage;
  const int valid = k < count ? min(kHalfPageKeys, seq_head.length - at * kHalfPageKeys) : 0;
  return {LoadCoherent(seq_head.table + page), at % kHalvesPerPage, valid,
          page == NumPages(seq_head) - 1};
}

// Merges the blocks' parts. Called by the threads t < kHeadDim of the first block.
template <int kHeadDim>
__device__ __forceinline__ void MergeBlocks(const Decode& a, const SeqHead& seq_head,
                                            const ClusterShared<kHeadDim>& shared, int blocks) {
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
  StoreRow<kHeadDim>(a, seq_head, max, sum, out);
}

// The warp's half pages, every kHalfPagesAtOnce-th from `first`; keys and values of the first are
// in registers before the row is.
template <int kHeadDim>
__device__ __forceinline__ Softmax Attend(const Decode& a, const SeqHead& seq_head, int first,
                                          int count, KeptSeqHead<kHeadDim>& kept) {
  using L = Layout<kHeadDim>;
  HalfPage half_page = HalfPageOf(seq_head, first, count);
  HalfPage next = HalfPageOf(seq_head, first + kHalfPagesAtOnce, count);
  uint4 keys[L::kLoads], values[L::kLoads];
  PrefetchGates(a, seq_head, half_page);
  LoadTile<kHeadDim>(a.kv.keys, half_page, keys);
  LoadTile<kHeadDim>(a.kv.values, half_page, values);
  if (next.valid > 0) {
    PrefetchGates(a, seq_head, next);
    PrefetchTiles<kHeadDim>(a, next);
  }
  TriggerDependents();
  WaitOnDependencies();
  Softmax softmax;
  if (first >= count) return softmax;
  const Row<kHeadDim> row = LoadRow<kHeadDim>(a, seq_head);
  Gate gate = LoadGate<kHeadDim>(a, seq_head, half_page);
  LoadTileAgain<kHeadDim>(a.kv.keys, half_page, keys);
  LoadTileAgain<kHeadDim>(a.kv.values, half_page, values);
  Keep(seq_head, row, kept);
#pragma unroll 1
  for (int k = first;; k += kHalfPagesAtOnce) {
    const float weight = ScoresToProbs(kept, keys, gate, half_page.valid, softmax);
    // Left here, not at the loop's end: where paths meet, the compiler would wait for loads.
    if (next.valid == 0) {
      AddValues<kHeadDim>(weight, values, softmax);
      return softmax;
    }
    half_page = next;
    gate = LoadGate<kHeadDim>(a, seq_head, half_page);
    LoadTile<kHeadDim>(a.kv.keys, half_page, keys);
    next = HalfPageOf(seq_head, k + 2 * kHalfPagesAtOnce, count);
    AddValues<kHeadDim>(weight, values, softmax);
    LoadTile<kHeadDim>(a.kv.values, half_page, values);
    if (next.valid > 0) PrefetchTiles<kHeadDim>(a, next);
  }
}

template <int kHeadDim>
__global__ void FOX_CLUSTER(kBlocks) __launch_bounds__(kBlockThreads, kHeadDim > 64 ? 1 : 2)
    DecodeClusterKernel(const __grid_constant__ Decode a) {
  __shared__ ClusterShared<kHeadDim> shared;
  ArriveAtClusterRelaxed();  // the first block has started when parts are sent to it
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;
  const int index = static_cast<int>(blockIdx.x) / kBlocks;
  if (LoadCoherent(a.batch.slot + index / a.kv.shape.q_heads) < 0) {
    // Some block must wait, so that the end of this kernel implies that of all before it; it must
    // not hold back the next kernel, which starts when all blocks have let it.
    if (rank != 0) return;
    TriggerDependents();
    WaitOnDependencies();
    return;
  }
  const SeqHead seq_head = LoadSeqHead(a, index);
  const int count = NumHalfPages(seq_head);
  if (rank * kBlockWarps >= count) return;
  const int warp = Warp(), t = static_cast<int>(threadIdx.x);
  shared.warps.Put(warp, Attend<kHeadDim>(a, seq_head, rank * kBlockWarps + warp, count,
                                          shared.seq_heads[warp]));
  __syncthreads();
  float max = 0, sum = 0, out = 0;
  if (t < kHeadDim) shared.warps.Merge(t, max, sum, out);
  if (rank == 0 && t == 0) CountPages(a, seq_head);
  if (count <= kBlockWarps) {
    if (t < kHeadDim) StoreRow<kHeadDim>(a, seq_head, max, sum, out);
    return;
  }
  WaitForCluster();
  if (t < kHeadDim) {
    typename ClusterShared<kHeadDim>::Part& part = shared.blocks[rank];
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
  if (t < kHeadDim) MergeBlocks<kHeadDim>(a, seq_head, shared, blocks);
}

template <int kHeadDim>
cudaError_t LaunchFor(const Decode& arguments, cudaStream_t stream) {
  const int seq_heads = NumSeqHeads(arguments);
  return Launch(DecodeClusterKernel<kHeadDim>, dim3(static_cast<unsigned>(seq_heads * kBlocks)),
                dim3(kBlockThreads), SmemConfig(0, true), stream, arguments);
}

}  // namespace

bool DecodeClusterRuns(int head_dim) {
  return head_dim >= 32 && HasSm90Code(KernelAddress(DecodeClusterKernel<64>));
}

cudaError_t DecodeCluster(const Decode& arguments, cudaStream_t stream) {
  return DispatchHeadDim<32>(arguments.kv.shape.head_dim, [&]<int kHeadDim>() {
    return LaunchFor<kHeadDim>(arguments, stream);
  });
}

}  // namespace fox::cuda
