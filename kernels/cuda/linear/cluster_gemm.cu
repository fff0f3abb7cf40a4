// W is the operand of 64 rows of wgmma (where 8 input rows would use an eighth of the tensor
// cores), the input rows are the operand of N = 8, 16, 32 or 64 columns (columns past the last row
// are zeros). A block computes 128 outputs, 64 in each of two warpgroups; for more than 64 rows two
// more warpgroups share its tiles of W. The columns of W are split among a cluster's blocks, whose
// sums are read from each other's shared memory. Two further warps copy by TMA, each into its ring
// of tiles of 64 columns: W from before the previous kernel has ended, x behind it. More than 128
// rows are passes of 128. Rows of W in 8 bits, in tiles of 128 columns, are widened on their way
// into registers, from which wgmma takes them, and their sums are multiplied by the rows' powers of
// two, both exactly; rows of W in bf16 belong to further blocks; here passes have 64 rows.
//
// Bits (cluster_gemm.md): the chunks of 64 columns are eight classes by their index modulo 8; a
// class is summed from left to right, 16 columns at a time, and the classes' sums are added as a
// binary tree, (0 1) (2 3) (4 5) (6 7) first. A block has whole classes, neighbours in the tree, so
// no number of blocks changes it, nor does N (wgmma.cuh), and no sum sees other rows.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/core/check.h"
#include "kernels/cuda/linear/cluster_gemm_epilogue.cuh"
#include "kernels/cuda/linear/fp8_operand.cuh"
#include "kernels/cuda/linear/gemm_kernels.h"
#include "kernels/cuda/primitives/ring.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/named_barrier.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/tensor_map.h"

namespace fox::cuda {
namespace {

using namespace cluster_gemm;

// The work of a block: the outputs of every `tile_step`-th tile from `tile` on, summed over the
// classes [first_class, last_class).
struct BlockWork {
  int tile, tile_step, first_class, last_class;

  // f(tile of outputs, first of its kChunks chunks) in the order in which both rings are filled and
  // read: kTogether classes' chunks from left to right, then those of the next kTogether classes.
  template <int kChunks, int kTogether, typename F>
  __device__ __forceinline__ void ForEachTile(const ClusterGemmArguments& a, const F& f) const {
    for (int t = tile; t < a.tiles; t += tile_step) {
      for (int first = first_class; first < last_class; first += kTogether) {
#pragma unroll 1
        for (int chunk = first; chunk < a.chunks; chunk += kClasses) {
          const int last = min(chunk + kTogether, a.chunks);
#pragma unroll 1
          for (int c = chunk; c < last; c += kChunks) f(t, c);
        }
      }
    }
  }
};

// One thread. At most `under_way` tiles are on their way: enough to keep the memory busy; more
// would only make all other loads wait, the previous kernel's among them.
template <bool kFp8, int kTogether>
__device__ __forceinline__ void CopyWeights(const ClusterGemmArguments& a, const BlockWork& work,
                                            const Ring& ring) {
  RingPlace at, arrived;
  int started = 0;
  work.ForEachTile<kTileChunks<kFp8>, kTogether>(a, [&](int tile, int chunk) {
    if (a.paired && started == a.early_tiles) TriggerDependents();
    if (started++ >= a.under_way) {
      ring.full[arrived.stage].Wait(arrived.parity);
      arrived.Advance(ring.stages);
    }
    ring.empty[at.stage].Wait(at.parity ^ 1);
    ring.full[at.stage].ArriveAndExpect(kWeightBytes);
    unsigned char* to = ring.At(at.stage);
    const int row = tile * a.tile_rows, col = chunk * (kTileCols / kTileChunks<kFp8>);
    TmaLoad2D(to, &a.weight_map, col, row, &ring.full[at.stage]);
    TmaLoad2D(to + kWeightBytes / 2, &a.weight_map, col, row + a.half_offset, &ring.full[at.stage]);
    at.Advance(ring.stages);
  });
}

// Copies the input rows' chunks into their ring, in the order of ForEachTile. One thread. It waits
// for the previous kernel only in front of the first copy, so that the code and the addresses are
// there. A stage's first wait for `empty` returns at once: on a new barrier the phase of parity 1
// has ended (mbarrier.cuh).
template <int kChunks, int kTogether>
[[maybe_unused]] __device__ __forceinline__ void CopyInputs(const ClusterGemmArguments& a,
                                                            const BlockWork& work,
                                                            const Ring& ring) {
  RingPlace at;
  bool waited = false;
  work.ForEachTile<kChunks, kTogether>(a, [&](int, int chunk) {
    ring.empty[at.stage].Wait(at.parity ^ 1);
    ring.full[at.stage].ArriveAndExpect(static_cast<uint32_t>(ring.stage_bytes));
    if (!waited) WaitOnDependencies();
    waited = true;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      TmaLoad2D(ring.At(at.stage) + i * (ring.stage_bytes / kChunks), &a.x_map,
                (chunk + i) * kTileCols, 0, &ring.full[at.stage]);
    }
    at.Advance(ring.stages);
  });
}

// Prefetches the addends and factors of a tile's sums (bias, norm weights, scales): constants,
// which a step's weights have evicted from the L2. One warp.
template <bool kFp8>
__device__ __forceinline__ void PrefetchConstants(const ClusterGemmArguments& a, int tile) {
  const int output = tile * a.tile_rows + Lane() * (kTileOut / kWarp);
  if (output >= a.out) return;
  if (a.bias != nullptr) Prefetch(a.bias + output);
  if (a.normed != nullptr) Prefetch(a.norm_weight + output);
  if (!kFp8) return;
  Prefetch(a.scales + output);
  if (a.gated) Prefetch(a.scales + a.out + output);
}

// Called when the first `done` classes are summed: adds each subtree of the classes that is
// complete thereby to its left neighbour. sums[k] begins as the sum of class k and later holds the
// sum of a subtree whose first class is k. With kFirstInMemory the sum sums[0] is kept in `first`
// as soon as it exists.
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

// Takes tiles from both rings and multiplies them; for the multiplying warps.
template <int kRows, int kSplits, bool kFp8>
struct Reader {
  static constexpr int kBlockClasses = kClasses / kSplits;
  static constexpr int kChunks = kTileChunks<kFp8>;  // of a tile, each of its own class
  static constexpr int kTogether = kClassesTogether<kRows, kSplits, kFp8>;  // of classes
  using Sums = float[kSumsOfThread<kRows>];

  Ring weights, inputs;
  RingPlace at;
  int before = 0;            // stage that the products under way read
  HeldOperand widened = {};  // their operand of W in 8 bits

  // Frees the stage of the products that were under way; they must have read it.
  __device__ __forceinline__ void Release() const {
    if (Lane() == 0) weights.empty[before].Arrive();
  }

  // Starts the products of the next tiles: each chunk's sums = products if `first`, else sums +=
  // products. Earlier products, if any, are done when it returns.
  __device__ __forceinline__ void Start(bool first, bool any_before, Sums* sums) {
    constexpr bool kGroups = kRows > kGroupRows;
    const int warpgroup = Warp() / (kGroupWarps / 2);
    const int half = kGroups ? warpgroup % 2 : warpgroup, group = kGroups ? warpgroup / 2 : 0;
    const unsigned char* w = weights.At(at.stage) + half * (kWeightBytes / 2);
    const uint64_t x = LinesDescriptor(inputs.At(at.stage) + group * kGroupRows * kLineBytes);
    weights.full[at.stage].Wait(at.parity);
    if constexpr (kFp8) {
      const int row = Warp() % (kHalfOut / 16) * 16 + Lane() % 16;
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        MultiplyCodes(first, i, sums[i], widened, w, row, x + i * (kRows * kLineBytes / 16), [&] {
          if (i == 0) inputs.full[at.stage].Wait(at.parity);
        });
      }
    } else {
      inputs.full[at.stage].Wait(at.parity);
      MultiplyLines(first, sums[0], LinesDescriptor(w), x);
      if (any_before) WgmmaWait<1>();
    }
    if (any_before) Release();
    before = at.stage;
    at.Advance(weights.stages);
  }

  // sums[0] (or `memory`, see AddHalves) = the warpgroup's sums over the kBlockClasses classes from
  // `first_class` on, of `chunks` chunks in all, whose tiles have then been read. The next classes'
  // first products run while finished classes' sums are added, but in 8 bits: there are no
  // registers for both.
  __device__ __forceinline__ void Multiply(int first_class, int chunks, float* memory,
                                           Sums (&sums)[kBlockClasses]) {
#pragma unroll
    for (int k = 0; k < kBlockClasses; k += kTogether) {
      if (k > 0 && kFp8) {
        WgmmaWait<0>();
        AddHalvesUpTo(k, memory, sums);
      }
      Start(true, k > 0, sums + k);
      if (k > 0 && !kFp8) AddHalvesUpTo(k, memory, sums);
#pragma unroll
      for (int j = kChunks; j < kTogether; j += kChunks) Start(true, true, sums + k + j);
#pragma unroll 1
      for (int left = chunks - kClasses - first_class - k; left > 0; left -= kClasses) {
#pragma unroll
        for (int j = 0; j < kTogether; j += kChunks) {
          if (j == 0 || j < left) Start(false, true, sums + k + j);
        }
      }
    }
    WgmmaWait<0>();
    AddHalvesUpTo(kBlockClasses, memory, sums);
    Release();
  }

  // AddHalves for each of the kTogether classes that are the last of `done`.
  __device__ __forceinline__ void AddHalvesUpTo(int done, float* memory,
                                                Sums (&sums)[kBlockClasses]) {
#pragma unroll
    for (int i = kTogether - 1; i >= 0; --i) AddHalves<kRows, kSplits>(done - i, memory, sums);
  }
};

// A block of a product or, in a cluster, of a part of it.
template <int kRows, int kSplits, bool kGated, bool kFp8>
__device__ __forceinline__ void RunBlock(const ClusterGemmArguments& a, int block) {
  constexpr int kChunks = kTileChunks<kFp8>, kTogether = kClassesTogether<kRows, kSplits, kFp8>;
  extern __shared__ unsigned char memory[];
  __shared__ Mbarrier barriers[3][kMaxStages];
  __shared__ float scales[kRows];
  if (!a.paired) TriggerDependents();
  unsigned char* aligned = memory + (kAlignment - SharedAddress(memory) % kAlignment) % kAlignment;
  const Ring weights{aligned, kWeightBytes, a.stages, barriers[0], barriers[1]};
  const Ring inputs{aligned + a.stages * kWeightBytes, kRows * kLineBytes * kChunks, a.stages,
                    barriers[2], barriers[1]};
  const int first_class = block % kSplits * (kClasses / kSplits);
  const BlockWork work{block / kSplits, static_cast<int>(gridDim.x) / kSplits, first_class,
                       first_class + kClasses / kSplits};
  const int warp = FromLane(Warp(), 0);
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&a.weight_map);
    PrefetchTensorMap(&a.x_map);
    weights.Init(1, kConsumerWarps<kRows>);
    for (int s = 0; s < a.stages; ++s) inputs.full[s].Init(1);
    PublishBarriers();
  }
  __syncthreads();
  if (warp == kConsumerWarps<kRows>) {
    if (Lane() == 0) CopyWeights<kFp8, kTogether>(a, work, weights);
    __syncwarp();
    return;
  }
  if (warp == kConsumerWarps<kRows> + 1) {
    PrefetchConstants<kFp8>(a, work.tile);
    if (Lane() == 0) CopyInputs<kChunks, kTogether>(a, work, inputs);
    __syncwarp();
    return;
  }
  Reader<kRows, kSplits, kFp8> reader{weights, inputs, {}};
  if constexpr (kSplits == 1) {
    static_assert(!kGated && !kFp8);
    WaitOnDependencies();
    FindScales(a, scales);
#pragma unroll 1
    for (int tile = work.tile; tile < a.tiles; tile += work.tile_step) {
      float sums[kClasses][kSumsOfThread<kRows>];
      reader.Multiply(first_class, a.chunks, nullptr, sums);
      SyncThreads<kConsumers<kRows>>();  // the scales are there
#pragma unroll
      for (int i = 0; i < kSumsOfThread<kRows>; ++i) {
        const SumPlace<kRows> place(i);
        if (place.n >= a.rows) continue;
        StoreOutput(a, place.n, tile * kTileOut + place.m, __fmul_rn(sums[0][i], scales[place.n]));
      }
    }
  } else {  // one tile
    ThreadOutputs<kRows, kSplits, kGated, kFp8> outputs;
    if (outputs.kEarly) outputs.LoadConstants(a, work.tile);
    WaitOnDependencies();
    if (outputs.kEarly) outputs.LoadPrevious(a, work.tile);
    FindScales(a, scales);
    // Beside the rings, or over them.
    float* tile_sums =
        reinterpret_cast<float*>(kFirstInMemory<kRows, kSplits> ? inputs.At(a.stages) : aligned);
    float sums[kClasses / kSplits][kSumsOfThread<kRows>];
    reader.Multiply(first_class, a.chunks, tile_sums, sums);
    MergeAndStore(a, work.tile, tile_sums, scales, sums[0], outputs);
  }
}

// The first blocks compute the outputs of W's rows in bf16, which read twice the bytes and
// therefore must not come last; the other blocks those of 8 bits.
struct Parts {
  ClusterGemmArguments fp8, rest;
};

// For at most kRows rows, W's columns split among kSplits blocks; then a cluster has one tile.
// kGated: y = act(gate) * value of the product's halves.
template <int kRows, int kSplits, bool kGated, bool kFp8>
__global__ void FOX_CLUSTER(kSplits)
    __launch_bounds__(kThreads<kRows>, (kBlocksOfAnSm<kRows, kSplits, kFp8>)) ClusterGemmKernel(
        const __grid_constant__ std::conditional_t<kFp8, Parts, ClusterGemmArguments> a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const int block = static_cast<int>(blockIdx.x);
  if constexpr (!kFp8) {
    RunBlock<kRows, kSplits, kGated, false>(a, block);
  } else if (kGated || block >= a.rest.tiles * kSplits) {
    RunBlock<kRows, kSplits, kGated, true>(a.fp8, block - a.rest.tiles * kSplits);
  } else if constexpr (!kGated) {
    RunBlock<kRows, kSplits, kGated, false>(a.rest, block);
  }
#else
  __trap();  // compiled for something else: nothing may pass for its result
#endif
}

// Bytes of both rings of a block. Measured faster than leaving room for the next product's block on
// the same SM.
constexpr int kRingBytes = 210 * 1024;
// All shared memory of a block that shares its SM.
constexpr int kPairedBytes = 112 * 1024;
// True if blocks that each take an SM may be more than the SMs can hold: the blocks of a cluster
// lie in one of the device's parts, whose last SMs may be too few for another.
bool Crowded(int blocks, int multiprocessors) { return blocks * 10 > multiprocessors * 9; }
// Tiles of W that a paired block has not yet requested when it triggers.
constexpr int kTilesBehindTrigger = 8;
// Least shared memory of a block. More than half of an SM's: two blocks of a product must not share
// one while another is free. Few rows in bf16 gain more from the room for other kernels' blocks.
template <int kRows, bool kFp8>
constexpr int kLeastBytes = kFp8 || kRows >= 64 ? 115 * 1024 : 0;
// Bytes of W that a block has on its way.
constexpr int kBytesUnderWay = 64 * 1024;
template <bool kFp8>
constexpr int kPassRows = kFp8 ? 64 : 128;

// Stages of the rings in a block's shared memory; the bytes that they and the sums need.
template <int kRows, int kSplits, bool kFp8>
int ChooseStages(bool paired, ClusterGemmArguments* a) {
  if (a->tiles == 0) return 0;
  constexpr int kChunks = kTileChunks<kFp8>;
  constexpr int kStageBytes = kWeightBytes + kRows * kLineBytes * kChunks;
  constexpr int kSums = kSplits == 1 ? 0 : kRows * kSumStride * static_cast<int>(sizeof(float));
  // Tiles of W that a block reads for an output tile, at most: as if all classes had as many chunks
  // as the first.
  const int tiles = CeilDiv(a->chunks, kClasses) * kClasses / kSplits / kChunks;
  constexpr bool kBeside = kFirstInMemory<kRows, kSplits>;  // the sums, else over the rings
  const int most = paired ? kPairedBytes : kMaxBytes;
  const int room = std::min(kRingBytes, most - kAlignment - (kBeside ? kSums : 0));
  a->paired = paired;
  a->early_tiles = std::max(tiles - kTilesBehindTrigger, 0);
  a->stages = std::min({room / kStageBytes, tiles, kMaxStages});
  a->under_way = std::min(kBytesUnderWay / kWeightBytes, a->stages);
  const int rings = a->stages * kStageBytes;
  return (kBeside ? rings + kSums : std::max(rings, kSums)) + kAlignment;
}

template <int kRows, int kSplits, bool kGated, bool kFp8>
cudaError_t LaunchClusterGemm(Parts& p, int multiprocessors, cudaStream_t stream) {
  const auto kernel = ClusterGemmKernel<kRows, kSplits, kGated, kFp8>;
  const cudaError_t ready = AllowDynamicSmem<kMaxBytes, kHopperSmem>(KernelAddress(kernel));
  if (ready != cudaSuccess) return ready;
  const int tiles = p.fp8.tiles + p.rest.tiles;
  const int blocks = kSplits == 1 ? std::min(tiles, multiprocessors) : tiles * kSplits;
  const bool paired =
      kSplits > 1 && kBlocksOfAnSm<kRows, kSplits, kFp8> > 1 && Crowded(blocks, multiprocessors);
  const int bytes = std::max({ChooseStages<kRows, kSplits, true>(paired, &p.fp8),
                              ChooseStages<kRows, kSplits, false>(paired, &p.rest),
                              paired ? kPairedBytes : kLeastBytes<kRows, kFp8>});
  const SmemConfig smem(static_cast<size_t>(bytes), true);
  const dim3 grid(static_cast<unsigned>(blocks)), threads(kThreads<kRows>);
  if constexpr (kFp8) {
    return Launch(kernel, grid, threads, smem, stream, p);
  } else {
    return Launch(kernel, grid, threads, smem, stream, p.rest);
  }
}

template <int kRows, bool kGated, bool kFp8>
cudaError_t LaunchFor(Parts& p, int multiprocessors, cudaStream_t stream) {
  // At least two blocks share the columns if halves are gated or rows are normed, which happens in
  // shared memory, where a single block does not put its sums; and if one block's registers cannot
  // hold all classes of two groups of rows, or of 64 rows beside widened codes.
  constexpr int kLeast = kGated || kFp8 || kRows > kGroupRows ? 2 : 1;
  // Blocks over the columns: as many as keep most SMs busy. With fewer classes than by two a block
  // in 8 bits has registers for a neighbour.
  const int tiles = p.fp8.tiles + p.rest.tiles;
  int splits = p.rest.normed != nullptr ? 2 : kLeast;
  while (2 * splits <= kMaxSplits<kFp8> && 2 * splits * tiles <= multiprocessors) splits *= 2;
  if (kFp8 && kRows <= 32 && Crowded(tiles * splits, multiprocessors)) splits = kMaxSplits<kFp8>;
  switch (splits) {
    case 1:
      return LaunchClusterGemm<kRows, kLeast, kGated, kFp8>(p, multiprocessors, stream);
    case 2:
      return LaunchClusterGemm<kRows, 2, kGated, kFp8>(p, multiprocessors, stream);
    case 4:
      return LaunchClusterGemm<kRows, 4, kGated, kFp8>(p, multiprocessors, stream);
    default:
      return LaunchClusterGemm<kRows, kMaxSplits<kFp8>, kGated, kFp8>(p, multiprocessors, stream);
  }
}

template <bool kGated, bool kFp8>
cudaError_t LaunchFor(int rows, Parts& p, int multiprocessors, cudaStream_t stream) {
  const auto launch = rows <= 8    ? LaunchFor<8, kGated, kFp8>
                      : rows <= 16 ? LaunchFor<16, kGated, kFp8>
                      : rows <= 32 ? LaunchFor<32, kGated, kFp8>
                      : rows <= 64 ? LaunchFor<64, kGated, kFp8>
                                   : LaunchFor<kPassRows<kFp8>, kGated, kFp8>;
  return launch(p, multiprocessors, stream);
}

// The tiles of W's rows of the outputs.
template <bool kFp8>
cudaError_t SetTiles(ClusterGemmArguments* a) {
  a->tile_rows = a->gated ? kHalfOut : kTileOut;
  a->half_offset = a->gated ? a->out : kHalfOut;
  a->tiles = CeilDiv(a->out, a->tile_rows);
  if (a->tiles == 0) return cudaSuccess;
  const void* const weight = kFp8 ? static_cast<const void*>(a->codes) : a->weight;
  const int64_t cols = kFp8 ? Fp8Stride(a->in) / 2 : a->in;  // of 16 bits
  return EncodeMatrixMap(const_cast<void*>(weight), int64_t{a->out} * (a->gated ? 2 : 1), cols,
                         cols, kHalfOut, kTileCols, &a->weight_map);
}

// True if rows of y may be accessed by four elements.
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
  return TakesRegisters(KernelAddress(ClusterGemmKernel<64, 1, false, false>), kRegisters);
}

cudaError_t ClusterGemm(const DeferredNorm& x, const LinearParams& params, const DeferredNorm& next,
                        int multiprocessors, cudaStream_t stream) {
  const bool fp8 = OnDevice(params.weight).fp8().rows > 0;
  const int64_t rows = x.rows.rows;
  const int64_t first = std::min<int64_t>(fp8 ? kPassRows<true> : kPassRows<false>, rows);
  FOX_CHECK(rows >= 1 && rows == params.out.rows);
  FOX_CHECK(x.rows.dtype == DType::kBF16 && x.rows.cols == params.weight.in());
  FOX_CHECK(x.rows.row_stride % 8 == 0);
  ClusterGemmArguments a{};
  static_cast<GemmArguments&>(a) = MakeGemmArguments(params.Rows(0, first));
  const int box_rows = std::max(8, static_cast<int>(std::bit_ceil(static_cast<unsigned>(first))));
  cudaError_t error = EncodeMatrixMap(x.rows.data, first, x.rows.cols, x.rows.row_stride, box_rows,
                                      kTileCols, &a.x_map);
  a.chunks = std::max(CeilDiv(a.in, kTileCols), kClasses);
  a.vectors = HasVectors(params.out);
  if (params.norm) {
    a.input_sums = x.sums;
    a.eps = static_cast<float>(params.norm->eps);
  }
  if (params.next_norm) SetNextNorm(*params.next_norm, next, &a);
  Parts parts{a, a};
  parts.fp8.out = static_cast<int>(std::min<int64_t>(OnDevice(params.weight).fp8().rows, a.out));
  parts.rest.SkipOutputs(parts.fp8.out);
  parts.rest.vectors = a.vectors && parts.fp8.out % 4 == 0;
  FOX_CHECK(!fp8 || parts.rest.out == 0 || (!a.gated && a.normed == nullptr));
  if (error == cudaSuccess) error = SetTiles<true>(&parts.fp8);
  if (error == cudaSuccess) error = SetTiles<false>(&parts.rest);
  if (error != cudaSuccess) return error;
  const auto launch = a.gated ? (fp8 ? LaunchFor<true, true> : LaunchFor<true, false>)
                              : (fp8 ? LaunchFor<false, true> : LaunchFor<false, false>);
  error = launch(a.rows, parts, multiprocessors, stream);
  if (error != cudaSuccess || first == rows) return error;
  return ClusterGemm(x.From(first), params.Rows(first, rows - first), next.From(first),
                     multiprocessors, stream);
}

}  // namespace fox::cuda
