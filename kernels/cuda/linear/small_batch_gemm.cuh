// The kernel of SmallBatchGemm: how eight warps of a block multiply its tiles, what becomes of the
// sums, and how one product of a chain hands its outputs to the next. Read small_batch_gemm.cu
// first.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cuda/linear/input_transform.cuh"
#include "kernels/cuda/linear/small_batch_gemm.h"
#include "kernels/cuda/linear/small_batch_gemm_tiles.cuh"
#include "kernels/cuda/primitives/copy_rows.cuh"
#include "kernels/cuda/primitives/flagged_words.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/mma_sm80.cuh"
#include "kernels/cuda/ptx/named_barrier.cuh"

namespace fox::cuda::small_batch_gemm {

// One output of a group of 16: the thread's row of the batch and, in the group, row of W.
struct Output {
  int n = static_cast<int>(threadIdx.x) / kTileRows;
  int m = static_cast<int>(threadIdx.x) % kTileRows;
};

// What is added to an output: zeros where there is nothing, which makes -0 to 0 as cluster_gemm.cuh
// does. Read long before it is used, so no arithmetic here.
struct AddedTerms {
  float bias, previous;

  __device__ __forceinline__ void LoadBias(const SmallBatchGemmArguments& a, int row, int last) {
    const Output o;
    const bool there = a.bias != nullptr && o.n < a.rows && row + o.m < last;
    bias = there ? a.bias[row + o.m] : 0;
  }
  __device__ __forceinline__ void LoadPrevious(const SmallBatchGemmArguments& a, int row,
                                               int last) {
    previous = 0;
    if (!a.accumulate || row >= last) return;
    const Output o;  // past the last row or output its neighbour stands in, unused
    previous = LoadCoherent(a.y_f32 + min(o.n, a.rows - 1) * a.y_stride + min(row + o.m, last - 1));
  }
};

// The classes' sums of an output as a tree; `stride` floats from a warp's to the next one's.
__device__ __forceinline__ float SumOfWarps(const float* partial, int stride) {
  float sum[kConsumerWarps];
#pragma unroll
  for (int w = 0; w < kConsumerWarps; ++w) sum[w] = partial[w * stride];
#pragma unroll
  for (int step = 1; step < kConsumerWarps; step *= 2) {
#pragma unroll
    for (int w = 0; w < kConsumerWarps; w += 2 * step) sum[w] = __fadd_rn(sum[w], sum[w + step]);
  }
  return sum[0];
}

// Every operation is one of cluster_gemm_epilogue.cuh's, in its order. kLeaves: for the next
// product of the chain, too.
template <bool kScaled, bool kLeaves>
__device__ __forceinline__ void StoreValue(const SmallBatchGemmArguments& a,
                                           const SharedLayout& layout, const float* partial,
                                           const AddedTerms& terms, int row, int last,
                                           const uint32_t& epoch) {
  const Output o;
  if (o.n >= a.rows || row + o.m >= last) return;
  float total = SumOfWarps(partial + threadIdx.x, kGroupValues);
  if (kScaled && a.source.apart) {
    const int floats = transform::NormFloats(a.in);
    total = __fmul_rn(total, layout.norms[o.n * floats + floats - 1]);
  }
  const float value = __fadd_rn(terms.previous, __fadd_rn(total, terms.bias));
  if constexpr (kLeaves) {
    StoreFlagged(a.left + o.n * a.out + row + o.m, __float_as_uint(value), epoch);
  }
  const int64_t at = o.n * a.y_stride + row + o.m;
  if (a.y_f32 != nullptr) {
    a.y_f32[at] = value;
  } else {
    a.y_bf16[at] = __float2bfloat16_rn(value);
  }
}

// A multiplying warp's walk over a block's tiles, 16 rows of W at a time from left to right, and
// the block's outputs. The partial sums of 16 rows lie in one of two buffers in turn, so that one
// barrier for them suffices: a buffer is written again only after the next rows' barrier.
template <bool kScaled, bool kLeaves>
class Multiplier {
 public:
  __device__ __forceinline__ Multiplier(const SmallBatchGemmArguments& a,
                                        const SharedLayout& layout, int first, int last,
                                        const uint32_t& epoch)
      : a_(a),
        layout_(layout),
        from_(InputAddress(a, layout, OpaqueThreadIdx())),
        row_(first),
        last_(last),
        epoch_(epoch) {
    const int row = first + static_cast<int>(threadIdx.x);
    if (a.bias != nullptr && row < last) Prefetch(a.bias + row);
  }

  // When the kernel before has ended.
  __device__ __forceinline__ void LoadPrevious() { terms_.LoadPrevious(a_, row_, last_); }
  // When the input rows are there.
  __device__ __forceinline__ void Begin() {
    terms_.LoadBias(a_, row_, last_);
#pragma unroll
    for (int pair = 0; pair < kChunkSteps / 2; ++pair) LoadInput(pair, 0);
  }

  __device__ __forceinline__ bool AtEnd() const { return row_ >= last_; }

  // Adds the products of the warp's chunk of the next tile, stores the outputs of its rows if it is
  // their last, and goes on.
  __device__ __forceinline__ void Multiply(Fragments& w) {
    const int next = col_ + kTileCols < a_.in ? col_ + kTileCols : 0;
    if (col_ + kTileCols <= a_.in) {
      MultiplyChunk<true>(w, next);
    } else {
      MultiplyChunk<false>(w, next);
    }
    col_ = next;
    if (next == 0) Store();
  }

 private:
  __device__ __forceinline__ static uint32_t InputAddress(const SmallBatchGemmArguments& a,
                                                          const SharedLayout& layout, int thread) {
    const int lane = thread % kWarp, warp = thread / kWarp;
    return SharedAddress(layout.input) + min(lane % 8, a.rows - 1) * InputStride(a.in) +
           warp * kChunkCols * 2 + lane / 8 * 16;
  }

  // Two products' input.
  __device__ __forceinline__ void LoadInput(int pair, int col) {
    LoadMatrices(x_[pair], from_ + (col + pair * 2 * kStep) * 2);
  }

  // Input is replaced by that of the tile at column `next` as soon as it is used.
  template <bool kWhole>
  __device__ __forceinline__ void MultiplyChunk(Fragments& w, int next) {
    static_assert(kChunkSteps % 2 == 0);
    const int columns = a_.in - col_ - Warp() * kChunkCols;
#pragma unroll
    for (int i = 0; i < kChunkSteps; ++i) {
      const int at = i % 2 * 2;
      if (!kWhole && columns < (i + 1) * kStep) w[i][2] = w[i][3] = 0;  // half of it is W's
      if (kWhole || columns > i * kStep) MultiplyAdd(c_, w[i], x_[i / 2][at], x_[i / 2][at + 1]);
      if (i % 2 == 1) LoadInput(i / 2, next);
    }
  }

  // The outputs of 16 rows of W; the next ones' sums begin.
  __device__ __forceinline__ void Store() {
    const int lane = Lane();
    float* partial = layout_.partial + buffer_ * kConsumerWarps * kGroupValues;
    if (lane % 4 < kMaxRows / 2) {
      float* mine = partial + Warp() * kGroupValues + lane % 4 * 2 * kTileRows + lane / 4;
      mine[0] = c_[0];
      mine[kTileRows] = c_[1];
      mine[kTileRows / 2] = c_[2];
      mine[kTileRows + kTileRows / 2] = c_[3];
    }
    SyncThreads<kConsumers>();
    StoreValue<kScaled, kLeaves>(a_, layout_, partial, terms_, row_, last_, epoch_);
    row_ += kTileRows;
    terms_.LoadBias(a_, row_, last_);
    terms_.LoadPrevious(a_, row_, last_);
    buffer_ ^= 1;
    c_[0] = c_[1] = c_[2] = c_[3] = 0;
  }

  const SmallBatchGemmArguments& a_;
  const SharedLayout& layout_;
  const uint32_t from_;  // the lane's row and column of the input
  int row_, col_ = 0;
  const int last_;
  const uint32_t& epoch_;
  int buffer_ = 0;
  AddedTerms terms_;
  uint32_t x_[kChunkSteps / 2][4];
  float c_[4] = {};
};

// A warp's chunks of the next tiles, in registers: of a block's first ones before the input is
// there, so that their stages are filled again meanwhile; later the tile kTiles further on is
// loaded while one is multiplied.
template <int kTiles>
struct HeldTiles {
  Fragments w[kTiles];

  // The first `count` of them.
  __device__ __forceinline__ void Take(TileReader& reader, int count = kTiles) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (n < count) reader.Take(w[n]);
    }
  }

  template <typename Multiplier>
  __device__ __forceinline__ void MultiplyAll(Multiplier& multiplier, TileReader& reader) {
#pragma unroll 1
    while (true) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if (multiplier.AtEnd()) return;
        multiplier.Multiply(w[n]);
        reader.Take(w[n]);
      }
    }
  }
};

// One row's product with both halves of W, four tiles side by side, whose chains of products then
// run side by side; its act(gate) * value as cluster_gemm_epilogue.cuh computes it, for the next
// product alone: two to a flagged word. `w`: the first two tiles.
__device__ __forceinline__ void MultiplyGated(const SmallBatchGemmArguments& a,
                                              const SharedLayout& layout, int first, int last,
                                              const uint32_t& epoch, Fragments (&w)[2],
                                              TileReader& reader) {
  constexpr int kPassOutputs = kSideBySide * kHalfRows;
  constexpr int kPassValues = kSideBySide * kTileRows;
  static_assert(2 * kConsumerWarps * kPassValues * sizeof(float) <= kPartialBytes);
  const int thread = OpaqueThreadIdx(), lane = thread % kWarp, warp = thread / kWarp;
  const uint32_t from = SharedAddress(layout.input) + warp * kChunkCols * 2 + lane / 8 * 16;
  const auto groups_of = [&](int row) {
    return (min(kPassOutputs, last - row) + kHalfRows - 1) / kHalfRows;
  };
  int buffer = 0;
#pragma unroll 1
  for (int row = first; row < last; row += kPassOutputs) {
    const int groups = groups_of(row);
    float c[kSideBySide][4] = {};
#pragma unroll 1
    for (int col = 0; col < a.in; col += kTileCols) {
      uint32_t x[kChunkSteps / 2][4];
#pragma unroll
      for (int i = 0; i < kChunkSteps / 2; ++i)
        LoadMatrices(x[i], from + (col + i * 2 * kStep) * 2);
      const int columns = a.in - col - warp * kChunkCols;
#pragma unroll
      for (int g = 0; g < kSideBySide; g += 2) {
#pragma unroll
        for (int i = 0; i < kChunkSteps; ++i) {
          if (columns <= i * kStep) break;
          const int at = i % 2 * 2;
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            if (columns < (i + 1) * kStep) w[k][i][2] = w[k][i][3] = 0;  // half of it is W's
            MultiplyAdd(c[g + k], w[k][i], x[i / 2][at], x[i / 2][at + 1]);
          }
        }
        const int next = (g + 2) % kSideBySide;
        const int there =
            g + 2 < kSideBySide || col + kTileCols < a.in ? groups : groups_of(row + kPassOutputs);
        if (next < there) reader.Take(w[0]);
        if (next + 1 < there) reader.Take(w[1]);
      }
    }
    float* const partial = layout.partial + buffer * kConsumerWarps * kPassValues;
    buffer ^= 1;
    if (lane % 4 == 0) {
#pragma unroll
      for (int g = 0; g < kSideBySide; ++g) {
        float* mine = partial + warp * kPassValues + g * kTileRows + lane / 4;
        mine[0] = c[g][0];
        mine[kHalfRows] = c[g][2];
      }
    }
    SyncThreads<kConsumers>();
    if (thread >= kPassValues) continue;  // whole warps
    float total = SumOfWarps(partial + thread, kPassValues);
    total = __fmul_rn(total, layout.norms[transform::NormFloats(a.in) - 1]);
    const float g = __bfloat162float(__float2bfloat16_rn(total));
    const float v = FromLaneXor(g, kHalfRows);
    const float sigmoid = Sigmoid(g);
    const float value = __fadd_rn(v * (a.act == Activation::kSilu ? g * sigmoid : sigmoid), 0);
    const float next = FromLaneXor(value, 1);
    const int m = thread % kTileRows;
    const int output = row + thread / kTileRows * kHalfRows + m;
    if (m >= kHalfRows || m % 2 != 0 || output >= last) continue;
    StoreFlagged(a.left + output / 2, PackBf16(value, next), epoch);
  }
}

// The columns between the end of an input row and that of a product, zeros in W too.
__device__ __forceinline__ void ClearInputEnds(const SmallBatchGemmArguments& a,
                                               const SharedLayout& layout) {
  const int row = static_cast<int>(threadIdx.x);
  if (a.in % kStep == 0 || row >= a.rows) return;
  *reinterpret_cast<uint4*>(layout.input + row * InputStride(a.in) + a.in * 2) = {};
}

// What the kinds of transforms read: norms the residual stream, all others activations.
template <InputTransform::Kind kind>
using InputOf = std::conditional_t<kind == InputTransform::Kind::kRmsNorm, float, __nv_bfloat16>;

// A product's input as the one before leaves it: a float32 of the residual stream to a flagged
// word, eight of them a unit.
__device__ __forceinline__ transform::Unit TakeUnit(const uint64_t* from, const uint32_t& epoch) {
  uint32_t bits[transform::kUnit];
  LoadFlagged(from, epoch, bits);
  transform::Unit unit;
#pragma unroll
  for (int i = 0; i < transform::kUnit; ++i) unit.x[i] = __uint_as_float(bits[i]);
  return unit;
}

// The same of rows that are already what the product multiplies: two columns to a flagged word.
__device__ __forceinline__ uint4 TakeRawUnit(const uint64_t* from, const uint32_t& epoch) {
  uint32_t x[transform::kUnit / 2];
  LoadFlagged(from, epoch, x);
  return {x[0], x[1], x[2], x[3]};
}

// Lays out rows whose unit u of row r is load(r, u).
template <typename Load>
__device__ __forceinline__ void LayOutRows(const SmallBatchGemmArguments& a, __nv_bfloat16* input,
                                           int stride, const Load& load) {
  const int units = a.in / transform::kUnit;
  for (int at = static_cast<int>(threadIdx.x); at < a.rows * units; at += kConsumers) {
    const int r = at / units, u = at % units;
    *reinterpret_cast<uint4*>(input + r * stride + u * transform::kUnit) = load(r, u);
  }
}

// Where a product is in its launch.
enum class Place { kAlone, kFirst, kInside };

// The multiplying warps' part of one product, for at most kRows rows; `at`: its first tile, returns
// that of the next. `wait` returns when all that came before the launch is there.
template <InputTransform::Kind kind, int kRows, Place place, bool kGated, bool kLast, typename Wait>
__device__ __forceinline__ PipelineState MultiplyProduct(const SmallBatchGemmArguments& a,
                                                         const SharedLayout& layout,
                                                         PipelineState at, const uint32_t& epoch,
                                                         const Wait& wait) {
  constexpr bool kNorms = kind == InputTransform::Kind::kRmsNorm;
  // As many as registers allow.
  constexpr int kHeld = place != Place::kAlone ? (kNorms ? 2 : 1)
                        : kRows == 1           ? (kNorms ? 2 : 3)
                                               : (kNorms ? 1 : 2);
  const auto [first, last] = BlockOutputs(a);
  const int tiles = (last - first + kTileOutputs<kGated> - 1) / kTileOutputs<kGated> *
                    ((a.in + kTileCols - 1) / kTileCols);
  HeldTiles<kHeld> held;
  // In a chain no addresses are kept from one product to the next.
  const int thread = OpaqueThreadIdx();
  TileReader reader = place == Place::kAlone
                          ? TileReader(a, layout, tiles, at, Lane(), Warp())
                          : TileReader(a, layout, tiles, at, thread % kWarp, thread / kWarp);
  Multiplier<kNorms, !kGated && !kLast> multiplier(a, layout, first, last, epoch);
  ClearInputEnds(a, layout);
  __nv_bfloat16* const input = reinterpret_cast<__nv_bfloat16*>(layout.input);
  const int stride = InputStride(a.in) / 2;
  if constexpr (kNorms) {
    const transform::Unit weight = transform::FirstWeight(a.source);
    // A block with few outputs has no second tile beside the first.
    held.Take(reader, kGated && last - first <= kHalfRows ? 1 : kHeld);
    wait();
    multiplier.LoadPrevious();
    if constexpr (place == Place::kInside) {
      const auto load = [&](int r, int u) {
        return TakeUnit(a.taken + r * a.in + u * transform::kUnit, epoch);
      };
      TransformArguments apart = a.source;
      apart.apart = true;
      transform::NormRows<kRows>(apart, weight, load, a.rows, input, stride, layout.norms);
    } else {
      transform::NormRows<InputOf<kind>, kRows>(a.source, weight, 0, a.rows, input, stride,
                                                layout.norms);
    }
  } else {
    held.Take(reader);
    wait();
    multiplier.LoadPrevious();
    if constexpr (place == Place::kInside) {
      LayOutRows(a, input, stride, [&](int r, int u) {
        return TakeRawUnit(a.taken + (r * a.in + u * transform::kUnit) / 2, epoch);
      });
    } else if constexpr (place == Place::kFirst) {
      // Past the first-level cache: it was emptied when this kernel was launched, which may be
      // before the chain in front of it read its own rows there.
      const auto* rows = static_cast<const __nv_bfloat16*>(a.source.in);
      LayOutRows(a, input, stride, [&](int r, int u) {
        return LoadCoherent(
            reinterpret_cast<const uint4*>(rows + r * a.source.in_stride + u * transform::kUnit));
      });
    } else {
      TransformRowsInBlock<kind, InputOf<kind>, kRows>(a.source, 0, a.rows, input, stride, nullptr);
    }
    SyncThreads<kConsumers>();
  }
  if constexpr (kGated) {
    MultiplyGated(a, layout, first, last, epoch, held.w, reader);
  } else {
    multiplier.Begin();
    held.MultiplyAll(multiplier, reader);
  }
  return reader.at();
}

// The products of one launch, for at most kRows rows: each but the first takes what the one before
// leaves. It triggers after its wait if it is a chain or begins with a norm.
template <int kRows, InputTransform::Kind... kinds>
__global__ void __launch_bounds__(kThreads, 2)
    SmallBatchGemmKernel(const __grid_constant__ ChainArguments<sizeof...(kinds)> chain) {
  using Kind = InputTransform::Kind;
  constexpr int kProducts = sizeof...(kinds);
  constexpr bool kChained = kProducts > 1;
  constexpr Kind kKinds[] = {kinds..., Kind::kNone};
  constexpr bool kDrains = kChained || kKinds[0] == kDrainingKind;
  // Whether the product is gated for the next one.
  constexpr auto kGated = [](int n) { return kChained && kKinds[n + 1] == Kind::kGatedAct; };
  extern __shared__ __align__(128) unsigned char shared[];
  if (!kDrains) TriggerDependents();
  const SharedLayout layout = LayoutOf(shared, chain.products[0]);
  if (threadIdx.x == kConsumers) {
#pragma unroll 1
    for (int s = 0; s < chain.products[0].stages; ++s) {
      layout.full[s].Init(kCopyWarps * BulkCopyRowsArrivals());
      layout.empty[s].Init(kConsumerWarps);
    }
    PublishBarriers();
    FenceAsyncProxy();
  }
  __syncthreads();
  constexpr auto kAll = std::make_integer_sequence<int, kProducts>();
  if (threadIdx.x >= kConsumers) {
    CopyState state;
    [&]<int... n>(std::integer_sequence<int, n...>) {
      (CopyWeights<kGated(n)>(chain.products[n], layout, state), ...);
    }
    (kAll);
    return;
  }
  PipelineState at;
  uint32_t epoch = 0;
  const auto multiply = [&]<int n>() {
    constexpr Place place = !kChained ? Place::kAlone : n == 0 ? Place::kFirst : Place::kInside;
    const auto wait = [&] {
      if (n > 0) return;
      WaitOnDependencies();
      if (kDrains) TriggerDependents();  // not before: see kDrainingKind
      if (kChained) epoch = LoadCoherent(chain.epoch) + 1;
    };
    at = MultiplyProduct<kKinds[n], kRows, place, kGated(n), n + 1 == kProducts>(
        chain.products[n], layout, at, epoch, wait);
  };
  [&]<int... n>(std::integer_sequence<int, n...>) { (multiply.template operator()<n>(), ...); }
  (kAll);
  // All blocks have left what this one has taken, so they have read the epoch before. Past the
  // first-level cache, which may hold an older one; kept since then it would cost a register.
  if (kChained && blockIdx.x == 0 && threadIdx.x == 0) *chain.epoch = LoadCoherent(chain.epoch) + 1;
}

}  // namespace fox::cuda::small_batch_gemm
