// W is the operand of 64 rows of wgmma, the input rows are the one of N = 8, 16, 32 or 64 columns
// (those past the last are zeros). A block computes 128 outputs, 64 in each of two warpgroups; for
// more than 64 rows two more warpgroups share its tiles of W. The columns of W are split among a
// cluster's blocks, whose sums are read from each other's shared memory. Two further warps copy by
// TMA, each into its ring of tiles of 64 columns: W from before the previous kernel has ended, x
// behind it. More than 128 rows are passes of 128.
//
// Bits (cluster_gemm.md): the chunks of 64 columns are eight classes by their index modulo 8; a
// class is summed from left to right, 16 columns at a time, and the classes' sums are added as a
// binary tree, (0 1) (2 3) (4 5) (6 7) first. A block has whole classes, neighbours in the tree, so
// no number of blocks changes it, nor does N (wgmma.cuh), and no sum sees other rows.
#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/cuda/linear/cluster_gemm_epilogue.cuh"
#include "kernels/cuda/linear/gemm_kernels.h"
#include "kernels/cuda/primitives/ring.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/named_barrier.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/tensor_map.h"

namespace fox::cuda {
namespace {

using namespace cluster_gemm;

// What a block computes: the outputs of every `tile_step`-th tile from `tile` on, summed over the
// classes [first_class, last_class).
struct BlockWork {
  int tile, tile_step, first_class, last_class;

  // f(tile, chunk) in the order in which both rings are filled and read.
  template <typename F>
  __device__ __forceinline__ void ForEachChunk(const ClusterGemmArguments& a, const F& f) const {
    for (int t = tile; t < a.tiles; t += tile_step) {
      for (int first = first_class; first < last_class; ++first) {
#pragma unroll 1
        for (int i = 0; i < a.class_chunks; ++i) f(t, first + i * kClasses);
      }
    }
  }
};

template <int kSplits>
__device__ __forceinline__ BlockWork BlockWorkOf() {
  constexpr int kBlockClasses = kClasses / kSplits;
  const int block = static_cast<int>(blockIdx.x), first = block % kSplits * kBlockClasses;
  return {block / kSplits, static_cast<int>(gridDim.x) / kSplits, first, first + kBlockClasses};
}

// One thread. At most `under_way` tiles are on their way: enough to keep the memory busy; more
// would only make all other loads wait, those of the kernel before among them.
[[maybe_unused]] __device__ __forceinline__ void CopyWeights(const ClusterGemmArguments& a,
                                                             const BlockWork& work,
                                                             const Ring& ring) {
  RingPlace at, arrived;
  int started = 0;
  work.ForEachChunk(a, [&](int tile, int chunk) {
    if (started++ >= a.under_way) {
      ring.full[arrived.stage].Wait(arrived.parity);
      arrived.Advance(ring.stages);
    }
    ring.empty[at.stage].Wait(at.parity ^ 1);
    ring.full[at.stage].ArriveAndExpect(kWeightBytes);
    unsigned char* to = ring.At(at.stage);
    const int row = tile * a.tile_rows, col = chunk * kTileCols;
    TmaLoad2D(to, &a.weight_map, col, row, &ring.full[at.stage]);
    TmaLoad2D(to + kWeightBytes / 2, &a.weight_map, col, row + a.half_offset, &ring.full[at.stage]);
    at.Advance(ring.stages);
  });
}

// One thread.
[[maybe_unused]] __device__ __forceinline__ void CopyInputs(const ClusterGemmArguments& a,
                                                            const BlockWork& work,
                                                            const Ring& ring) {
  RingPlace at;
  work.ForEachChunk(a, [&](int, int chunk) {
    ring.empty[at.stage].Wait(at.parity ^ 1);
    ring.full[at.stage].ArriveAndExpect(static_cast<uint32_t>(ring.stage_bytes));
    TmaLoad2D(ring.At(at.stage), &a.x_map, chunk * kTileCols, 0, &ring.full[at.stage]);
    at.Advance(ring.stages);
  });
}

// Once the first `done` classes are summed: adds what thereby is a tree's right half to its left
// one. sums[k] begins as class k's and waits as that of a subtree whose first class is k. With
// kFirstInMemory sums[0] moves to `first`, as soon as it is there, and waits there.
template <int kRows, int kSplits>
__device__ __forceinline__ void AddHalves(int done, float* first,
                                          float (&sums)[kClasses / kSplits][kSumsOfThread<kRows>]) {
  constexpr bool kInMemory = kFirstInMemory<kRows, kSplits>;
  constexpr int kCount = kSumsOfThread<kRows>;
  WarpgroupFenceOperand(sums[done - 1]);
  if (kInMemory && done == 1) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) first[SumPlace<kRows>(i).Offset()] = sums[0][i];
  }
#pragma unroll
  for (int half = 1; half < kClasses / kSplits; half *= 2) {
    if (done % (2 * half) != 0) continue;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool in_memory = kInMemory && done == 2 * half;
      float& left = in_memory ? first[SumPlace<kRows>(i).Offset()] : sums[done - 2 * half][i];
      left = __fadd_rn(left, sums[done - half][i]);
    }
  }
}

// The multiplying warps' way through both rings.
template <int kRows, int kSplits>
struct Reader {
  static constexpr int kBlockClasses = kClasses / kSplits;
  using Sums = float[kSumsOfThread<kRows>];

  Ring weights, inputs;
  RingPlace weight_at, input_at;
  int weight_before = 0, input_before = 0;  // stages of the products under way

  // The products under way have read these.
  __device__ __forceinline__ void Release() const {
    if (Lane() != 0) return;
    weights.empty[weight_before].Arrive();
    inputs.empty[input_before].Arrive();
  }

  // Starts the products of the next tiles: c = them if `first`, else c += them. Those under way
  // before, if any, are done when it returns.
  __device__ __forceinline__ void Start(bool first, bool any_before, Sums& c) {
    constexpr bool kGroups = kRows > kGroupRows;
    const int warpgroup = Warp() / (kGroupWarps / 2);
    const int half = kGroups ? warpgroup % 2 : warpgroup, group = kGroups ? warpgroup / 2 : 0;
    const uint64_t w = LinesDescriptor(weights.At(weight_at.stage) + half * kHalfOut * kLineBytes);
    const uint64_t x = LinesDescriptor(inputs.At(input_at.stage) + group * kGroupRows * kLineBytes);
    weights.full[weight_at.stage].Wait(weight_at.parity);
    inputs.full[input_at.stage].Wait(input_at.parity);
    MultiplyLines(first, c, w, x);
    if (any_before) {
      WgmmaWait<1>();
      Release();
    }
    weight_before = weight_at.stage;
    input_before = input_at.stage;
    weight_at.Advance(weights.stages);
    input_at.Advance(inputs.stages);
  }

  // sums[0] (`memory`: AddHalves) = the warpgroup's sums over kBlockClasses classes of `chunks`
  // tiles, which then have been read. A class's products run before the sums of the one before are
  // added to others.
  __device__ __forceinline__ void Multiply(int chunks, float* memory, Sums (&sums)[kBlockClasses]) {
#pragma unroll
    for (int k = 0; k < kBlockClasses; ++k) {
      Start(true, k > 0, sums[k]);
      if (k > 0) AddHalves<kRows, kSplits>(k, memory, sums);
#pragma unroll 1
      for (int i = 1; i < chunks; ++i) Start(false, true, sums[k]);
    }
    WgmmaWait<0>();
    AddHalves<kRows, kSplits>(kBlockClasses, memory, sums);
    Release();
  }
};

// Two, where the registers for sums suffice: a block of another kernel may share the SM.
template <int kRows, int kSplits>
constexpr int kBlocksOfAnSm = kRows / 2 * std::bit_width(unsigned{kClasses / kSplits}) <= 48 ? 2
                                                                                             : 1;

// For at most kRows rows, W's columns split among kSplits blocks; then a cluster has one tile.
// kGated: y = act(gate) * value of the product's halves.
template <int kRows, int kSplits, bool kGated>
__global__ void FOX_CLUSTER(kSplits)
    __launch_bounds__(kThreads<kRows>, (kBlocksOfAnSm<kRows, kSplits>))
        ClusterGemmKernel(const __grid_constant__ ClusterGemmArguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  __shared__ Mbarrier barriers[4][kMaxStages];
  __shared__ float scales[kRows];
  TriggerDependents();
  unsigned char* aligned = memory + (kAlignment - SharedAddress(memory) % kAlignment) % kAlignment;
  const Ring weights{aligned, kWeightBytes, a.weight_stages, barriers[0], barriers[1]};
  const Ring inputs{aligned + a.weight_stages * kWeightBytes, kRows * kLineBytes, a.x_stages,
                    barriers[2], barriers[3]};
  const BlockWork work = BlockWorkOf<kSplits>();
  const int warp = FromLane(Warp(), 0);
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&a.weight_map);
    PrefetchTensorMap(&a.x_map);
    weights.Init(1, kConsumerWarps<kRows>);
    inputs.Init(1, kConsumerWarps<kRows>);
    PublishBarriers();
  }
  __syncthreads();
  if (warp == kConsumerWarps<kRows>) {
    if (a.late_weight) WaitOnDependencies();
    if (Lane() == 0) CopyWeights(a, work, weights);
    __syncwarp();
    return;
  }
  WaitOnDependencies();
  if (warp == kConsumerWarps<kRows> + 1) {
    if (Lane() == 0) CopyInputs(a, work, inputs);
    __syncwarp();
    return;
  }
  FindScales(a, scales);
  Reader<kRows, kSplits> reader{weights, inputs, {}, {}};
  // Beside the rings, or over them.
  float* tile_sums =
      reinterpret_cast<float*>(kFirstInMemory<kRows, kSplits> ? inputs.At(a.x_stages) : aligned);
#pragma unroll 1
  for (int tile = work.tile; tile < a.tiles; tile += work.tile_step) {
    float sums[kClasses / kSplits][kSumsOfThread<kRows>];
    reader.Multiply(a.class_chunks, tile_sums, sums);
    const auto& c = sums[0];
    if constexpr (kSplits == 1) {
      static_assert(!kGated);
      SyncThreads<kConsumers<kRows>>();  // the scales are there
#pragma unroll
      for (int i = 0; i < kSumsOfThread<kRows>; ++i) {
        const SumPlace<kRows> place(i);
        if (place.n >= a.rows) continue;
        StoreOutput(a, place.n, tile * kTileOut + place.m, __fmul_rn(c[i], scales[place.n]));
      }
    } else {
      MergeAndStore<kRows, kSplits, kGated>(a, tile, tile_sums, scales, c);
    }
  }
#else
  __trap();  // compiled for something else: nothing may pass for its result
#endif
}

// Both rings of a block. Measured faster than room for the next product's block on the same SM.
constexpr int kRingBytes = 210 * 1024;
// Tiles of W that a block has on their way, 16 KiB each.
constexpr int kTilesUnderWay = 4;
constexpr int kPassRows = 128;

// Blocks over the columns: as many as keep most SMs busy, a power of two from `least` on.
int SplitsOf(const ClusterGemmArguments& a, int least, int multiprocessors) {
  int splits = least;
  while (2 * splits <= kMaxSplits && 2 * splits * a.tiles <= multiprocessors) splits *= 2;
  return splits;
}

// Divides a block's shared memory between the two rings; the bytes that they and the sums need.
template <int kRows, int kSplits>
int ChooseStages(ClusterGemmArguments* a) {
  constexpr int kInputBytes = kRows * kLineBytes;
  // A cluster has one tile.
  const int wanted =
      kSplits == 1 ? kMaxStages : std::min(a->class_chunks * kClasses / kSplits, kMaxStages);
  const int least = std::min(kMinStages, wanted);
  const int sums = kSplits == 1 ? 0 : kRows * kSumStride * static_cast<int>(sizeof(float));
  constexpr bool kBeside = kFirstInMemory<kRows, kSplits>;  // the sums, else over the rings
  const int room = kBeside ? kMaxBytes - kAlignment - sums : kRingBytes;
  const int input_room = room / (kInputBytes < kWeightBytes ? 4 : 2);
  a->x_stages = std::clamp(input_room / kInputBytes, least, wanted);
  a->weight_stages = std::clamp((room - a->x_stages * kInputBytes) / kWeightBytes, least, wanted);
  a->under_way = std::min(kTilesUnderWay, a->weight_stages);
  const int rings = a->weight_stages * kWeightBytes + a->x_stages * kInputBytes;
  return (kBeside ? rings + sums : std::max(rings, sums)) + kAlignment;
}

template <int kRows, int kSplits, bool kGated>
cudaError_t LaunchClusterGemm(ClusterGemmArguments& a, int multiprocessors, cudaStream_t stream) {
  const auto kernel = ClusterGemmKernel<kRows, kSplits, kGated>;
  const cudaError_t ready = AllowDynamicSmem<kMaxBytes, kHopperSmem>(KernelAddress(kernel));
  if (ready != cudaSuccess) return ready;
  const int bytes = ChooseStages<kRows, kSplits>(&a);
  const int blocks = kSplits == 1 ? std::min(a.tiles, multiprocessors) : a.tiles * kSplits;
  return Launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads<kRows>),
                SmemConfig(static_cast<size_t>(bytes), true), stream, a);
}

template <int kRows, bool kGated>
cudaError_t LaunchFor(ClusterGemmArguments& a, int multiprocessors, const MatrixView& x,
                      cudaStream_t stream) {
  const cudaError_t encoded =
      EncodeMatrixMap(x.data, x.rows, x.cols, x.row_stride, kRows, kTileCols, &a.x_map);
  if (encoded != cudaSuccess) return encoded;
  // Halves meet, and rows are normed, in shared memory, where a block alone does not lay its sums;
  // nor has it registers for all classes of two groups of rows.
  constexpr bool kNeverAlone = kGated || kRows > kGroupRows;
  switch (SplitsOf(a, kNeverAlone || a.normed != nullptr ? 2 : 1, multiprocessors)) {
    case 1:
      if constexpr (!kNeverAlone) {
        return LaunchClusterGemm<kRows, 1, kGated>(a, multiprocessors, stream);
      }
      return cudaErrorInvalidValue;
    case 2:
      return LaunchClusterGemm<kRows, 2, kGated>(a, multiprocessors, stream);
    case 4:
      return LaunchClusterGemm<kRows, 4, kGated>(a, multiprocessors, stream);
    default:
      return LaunchClusterGemm<kRows, 8, kGated>(a, multiprocessors, stream);
  }
}

template <bool kGated>
auto LauncherOf(int64_t rows) {
  return rows <= 8    ? LaunchFor<8, kGated>
         : rows <= 16 ? LaunchFor<16, kGated>
         : rows <= 32 ? LaunchFor<32, kGated>
         : rows <= 64 ? LaunchFor<64, kGated>
                      : LaunchFor<kPassRows, kGated>;
}

// Whether rows of y may be accessed by four elements.
bool HasVectors(const MatrixView& y) {
  const size_t bytes = 4 * SizeOf(y.dtype);
  return reinterpret_cast<uintptr_t>(y.data) % bytes == 0 && y.row_stride % 4 == 0;
}

void SetNextNorm(const RmsNorm& norm, const DeferredNorm& next, ClusterGemmArguments* a) {
  static_assert(DeferredNorm::kSumCols == kTileOut);
  const MatrixView& rows = next.rows;
  FOX_CHECK(a->accumulate && a->out % 4 == 0 && rows.cols == a->out && HasVectors(rows));
  a->normed = static_cast<__nv_bfloat16*>(rows.data);
  a->normed_stride = rows.row_stride;
  a->output_sums = next.sums;
  a->norm_weight = static_cast<const float*>(norm.weight);
}

}  // namespace

bool HasClusterGemm() {
  constexpr int kRegisters = 40;  // fewer than the kernel's, more than a trap's
  return TakesRegisters(KernelAddress(ClusterGemmKernel<64, 1, false>), kRegisters);
}

cudaError_t ClusterGemm(const DeferredNorm& x, const LinearParams& params, const DeferredNorm& next,
                        int multiprocessors, cudaStream_t stream) {
  const int64_t rows = x.rows.rows, first = std::min<int64_t>(kPassRows, rows);
  FOX_CHECK(rows >= 1 && rows == params.out.rows);
  FOX_CHECK(x.rows.dtype == DType::kBF16 && x.rows.cols == params.weight.in());
  FOX_CHECK(x.rows.row_stride % 8 == 0);
  ClusterGemmArguments a{};
  static_cast<GemmArguments&>(a) = MakeGemmArguments(params.Rows(0, first));
  const cudaError_t encoded =
      EncodeMatrixMap(const_cast<__nv_bfloat16*>(a.weight), params.weight.out(), a.in, a.in,
                      kHalfOut, kTileCols, &a.weight_map);
  if (encoded != cudaSuccess) return encoded;
  a.tile_rows = a.gated ? kHalfOut : kTileOut;
  a.half_offset = a.gated ? a.out : kHalfOut;
  a.tiles = CeilDiv(a.out, a.tile_rows);
  a.class_chunks = CeilDiv(a.in, kTileCols * kClasses);
  a.vectors = HasVectors(params.out);
  if (params.norm) {
    a.input_sums = x.sums;
    a.eps = static_cast<float>(params.norm->eps);
  }
  if (params.next_norm) SetNextNorm(*params.next_norm, next, &a);
  const auto launch = a.gated ? LauncherOf<true>(a.rows) : LauncherOf<false>(a.rows);
  const cudaError_t error = launch(a, multiprocessors, x.rows.Rows(0, first), stream);
  if (error != cudaSuccess || first == rows) return error;
  return ClusterGemm(x.From(first), params.Rows(first, rows - first), next.From(first),
                     multiprocessors, stream);
}

}  // namespace fox::cuda
