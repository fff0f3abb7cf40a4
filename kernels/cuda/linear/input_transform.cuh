// The row transforms of linear layers as device code for 256 threads of a block: used by the kernel
// that transforms rows on their own (input_transform.cu) and by the product that does it itself
// (linear/small_batch_gemm.cu). A row's result does not depend on the rows beside it.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/core/check.h"
#include "kernels/cuda/primitives/norm_and_gate.cuh"
#include "kernels/cuda/primitives/vec8.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"
#include "kernels/cuda/ptx/named_barrier.cuh"
#include "kernels/linear_params.h"

namespace fox::cuda {

// Threads that transform together: the first of their block.
inline constexpr int kTransformThreads = 256;

// The transform's inputs as the device needs them. Rows are 16-byte aligned, widths multiples of 8.
struct TransformArguments {
  const void* in = nullptr;
  int64_t in_stride = 0;  // elements
  int in_cols = 0;
  int out_cols = 0;
  const float* weight = nullptr;  // [in_cols] or null: ones
  float eps = 0;
  bool apart = false;  // kRmsNorm: rows are left without their scale
  Activation act = Activation::kSigmoid;
};

namespace transform {

using Kind = InputTransform::Kind;
using Unit = Float8;  // what a thread handles at a time
inline constexpr int kUnit = kVec8;
inline constexpr int kLanes = kWarp;
inline constexpr int kWarps = kTransformThreads / kLanes;

// A unit as it lies in memory.
template <typename T>
struct RawUnit {
  uint4 words[kUnit * sizeof(T) / sizeof(uint4)];
};

template <typename T>
__device__ __forceinline__ RawUnit<T> LoadRaw(const T* p) {
  RawUnit<T> raw;
#pragma unroll
  for (size_t i = 0; i < sizeof(raw.words) / sizeof(uint4); ++i) {
    raw.words[i] = reinterpret_cast<const uint4*>(p)[i];
  }
  return raw;
}

__device__ __forceinline__ Unit Widened(const RawUnit<float>& raw) {
  const uint4 a = raw.words[0], b = raw.words[1];
  return {{__uint_as_float(a.x), __uint_as_float(a.y), __uint_as_float(a.z), __uint_as_float(a.w),
           __uint_as_float(b.x), __uint_as_float(b.y), __uint_as_float(b.z), __uint_as_float(b.w)}};
}

__device__ __forceinline__ Unit Widened(const RawUnit<__nv_bfloat16>& raw) {
  return Widen(raw.words[0]);
}

template <typename T>
__device__ __forceinline__ Unit LoadUnit(const T* p) {
  return Widened(LoadRaw(p));
}

__device__ __forceinline__ Unit Normalized(Unit unit, float scale, const Unit& weight) {
#pragma unroll
  for (int i = 0; i < kUnit; ++i) unit.x[i] = unit.x[i] * scale * weight.x[i];
  return unit;
}

__device__ __forceinline__ Unit Weighted(Unit unit, const Unit& weight) {
#pragma unroll
  for (int i = 0; i < kUnit; ++i) unit.x[i] = __fmul_rn(unit.x[i], weight.x[i]);
  return unit;
}

__device__ __forceinline__ Unit LoadWeight(const float* weight, int unit) {
  if (weight == nullptr) return {{1, 1, 1, 1, 1, 1, 1, 1}};
  return LoadUnit(weight + unit * kUnit);
}

// unit * act(gate).
__device__ __forceinline__ Unit Gated(Unit unit, const Unit& gate, Activation act) {
#pragma unroll
  for (int i = 0; i < kUnit; ++i) unit.x[i] = cuda::Gated(unit.x[i], gate.x[i], act);
  return unit;
}

// The order of a norm's sum of squares, wherever it is taken (cluster_gemm.cuh takes it of rows
// that are still its own): of four neighbours in a chain; of 128 columns as a tree of such groups,
// neighbours first; of a row from left to right.
__device__ __forceinline__ float SumOfFour(float a, float b, float c, float d) {
  return fmaf(d, d, fmaf(c, c, fmaf(b, b, __fmul_rn(a, a))));
}

inline constexpr int kSumCols = static_cast<int>(NormedRows::kSumCols);
inline constexpr int kSumUnits = kSumCols / kUnit;
__host__ __device__ constexpr int SumCount(int cols) { return (cols + kSumCols - 1) / kSumCols; }

// Over the kSumUnits lanes that hold 128 columns, zeros past the row's end; in all of them.
__device__ __forceinline__ float SumOf128(const Unit& unit) {
  const auto& x = unit.x;
  float sum = __fadd_rn(SumOfFour(x[0], x[1], x[2], x[3]), SumOfFour(x[4], x[5], x[6], x[7]));
#pragma unroll
  for (int offset = 1; offset < kSumUnits; offset *= 2) {
    sum = __fadd_rn(sum, FromLaneXor(sum, offset));
  }
  return sum;
}

// What NormRows leaves of a row: SumCount sums of squares, then what the row is multiplied by.
__host__ __device__ constexpr int NormFloats(int cols) { return SumCount(cols) + 1; }

__device__ __forceinline__ void FindScale(const TransformArguments& s, float* row) {
  const int count = SumCount(s.in_cols);
  float sum = 0;
#pragma unroll 4
  for (int i = 0; i < count; ++i) sum = __fadd_rn(sum, row[i]);
  row[count] = RowNormScale(sum, s.in_cols, s.eps);
}

// A thread's first unit of the rows that are to be normed: where it is and its weights, which may
// be loaded long before the rows are there.
template <typename In>
struct FirstUnit {
  const In* at;
  Unit weight;

  __device__ __forceinline__ FirstUnit(const TransformArguments& s, int64_t first_row, int)
      : at(static_cast<const In*>(s.in) + first_row * s.in_stride + threadIdx.x * kUnit), weight{} {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < s.in_cols / kUnit) weight = LoadWeight(s.weight, thread);
  }
};

// Synchronises; apart, the scales are found meanwhile and known behind the next barrier. norms:
// [rows, NormFloats] in shared memory. Rows that are scaled here are read twice.
template <typename In, int kRows>
__device__ __forceinline__ void NormRows(const TransformArguments& s, const FirstUnit<In>& first,
                                         int rows, __nv_bfloat16* out, int64_t out_stride,
                                         float* norms) {
  const int thread = static_cast<int>(threadIdx.x);
  const int units = s.in_cols / kUnit, floats = NormFloats(s.in_cols);
  const In* at = first.at;
#pragma unroll 1
  for (int begin = 0; begin < units; begin += kTransformThreads) {  // for the whole block
    const int u = begin + thread;
    const bool there = u < units;
    Unit x[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (there && r < rows) x[r] = LoadUnit(at + r * s.in_stride);
    }
    at += kTransformThreads * kUnit;
    Unit weight = first.weight;
    if (s.apart && there && u != thread) weight = LoadWeight(s.weight, u);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      if (s.apart && there) StoreVec8(Weighted(x[r], weight), out + r * out_stride + u * kUnit);
      const float sum = SumOf128(x[r]);
      if (there && u % kSumUnits == 0) norms[r * floats + u / kSumUnits] = sum;
    }
  }
  SyncThreads<kTransformThreads>();
  if (Warp() == kWarps - 1 && Lane() < rows) FindScale(s, norms + Lane() * floats);
  if (s.apart) return;
  SyncThreads<kTransformThreads>();
#pragma unroll 1
  for (int r = 0; r < rows; ++r) {
#pragma unroll 1
    for (int u = thread; u < units; u += kTransformThreads) {
      const Unit unit = LoadUnit(first.at + r * s.in_stride + (u - thread) * kUnit);
      const Unit weight = u == thread ? first.weight : LoadWeight(s.weight, u);
      StoreVec8(Normalized(unit, norms[r * floats + floats - 1], weight),
                out + r * out_stride + u * kUnit);
    }
  }
  SyncThreads<kTransformThreads>();
}

// kBatch units of the transforms that need no sum over the row, all of them loaded before the first
// is used, for each load takes long. Units are numbered through the rows; past the last one
// (`total`) it stands in, so that no branch within a warp makes the compiler wait for a load.
template <Kind kind, typename In, int kRows, int kBatch>
class UnitBatch {
 public:
  __device__ __forceinline__ UnitBatch(const TransformArguments& s, int64_t first_row,
                                       int out_stride)
      : in_(static_cast<const In*>(s.in) + first_row * s.in_stride), out_stride_(out_stride) {}

  // The units first + i * kTransformThreads, `first` counted from the thread: where they are.
  __device__ __forceinline__ void Find(const TransformArguments& s, int first, int total) {
    const int units = s.out_cols / kUnit;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int block_first = first + i * kTransformThreads;
      const int at = min(block_first + static_cast<int>(threadIdx.x), total - 1);
      int row = 0;
#pragma unroll
      for (int r = 1; r < kRows; ++r) row += at >= r * units ? 1 : 0;
      const int column = (at - row * units) * kUnit;
      from_[i] = row * static_cast<int>(s.in_stride) + column;
      to[i] = row * out_stride_ + column;
    }
  }

  __device__ __forceinline__ void Load(const TransformArguments& s, int first, int total) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i * kTransformThreads >= total) break;  // for the whole block
      x_[i] = LoadRaw(in_ + from_[i]);
      if constexpr (kind == Kind::kGatedAct) other_[i] = LoadRaw(in_ + from_[i] + s.out_cols);
    }
  }

  __device__ __forceinline__ Unit Transformed(const TransformArguments& s, int i) const {
    Unit x = Widened(x_[i]);
    if constexpr (kind == Kind::kGatedAct) x = Gated(Widened(other_[i]), x, s.act);
    return x;
  }

  int to[kBatch];  // where the units belong

 private:
  const In* const in_;
  const int out_stride_;
  int from_[kBatch];
  RawUnit<In> x_[kBatch], other_[kBatch];
};

// `batch` has found the first units.
template <Kind kind, typename In, int kRows, int kBatch>
__device__ __forceinline__ void TransformUnits(const TransformArguments& s,
                                               UnitBatch<kind, In, kRows, kBatch>& batch, int rows,
                                               __nv_bfloat16* out) {
  const int total = rows * (s.out_cols / kUnit);
#pragma unroll 1
  for (int first = 0;;) {
    batch.Load(s, first, total);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int block_first = first + i * kTransformThreads;
      if (block_first >= total) break;  // for the whole block
      const Unit x = batch.Transformed(s, i);
      if (block_first + static_cast<int>(threadIdx.x) < total) {
        StoreVec8(x, out + batch.to[i]);
      }
    }
    first += kBatch * kTransformThreads;
    if (first >= total) return;
    batch.Find(s, first, total);
  }
}

}  // namespace transform

// The transform of rows [first_row, first_row + rows), rows <= kRows, by the first
// kTransformThreads threads of the block. Made before WaitOnDependencies(), it has all that can be
// known by then: behind the wait, the rows are one load away.
template <InputTransform::Kind kind, typename In, int kRows>
class TransformInBlock {
 public:
  __device__ __forceinline__ TransformInBlock(const TransformArguments& s, int64_t first_row,
                                              int rows, int out_stride)
      : s_(s), rows_(rows), out_stride_(out_stride), first_(s, first_row, out_stride) {
    if constexpr (!kNorms) first_.Find(s, 0, rows * (s.out_cols / transform::kUnit));
  }

  // out[r] = transform(in[first_row + r]); out (16-byte aligned rows) in global or shared memory;
  // norms: NormRows's, for kRmsNorm alone. After WaitOnDependencies(); the caller synchronises
  // before it reads `out`.
  __device__ __forceinline__ void Run(__nv_bfloat16* out, float* norms) {
    if constexpr (kNorms) {
      transform::NormRows<In, kRows>(s_, first_, rows_, out, out_stride_, norms);
    } else {
      transform::TransformUnits(s_, first_, rows_, out);
    }
  }

 private:
  static constexpr bool kNorms = kind == InputTransform::Kind::kRmsNorm;
  static constexpr int kBatch = kRows > 1 ? 4 : 2;  // as many loads at a time as registers allow

  const TransformArguments& s_;
  const int rows_, out_stride_;
  std::conditional_t<kNorms, transform::FirstUnit<In>,
                     transform::UnitBatch<kind, In, kRows, kBatch>>
      first_;
};

// Checks what the device code relies on. REQUIRES: see TransformArguments.
inline TransformArguments MakeTransformArguments(const MatrixView& in, const InputTransform& t) {
  using Kind = InputTransform::Kind;
  constexpr int64_t kAlign = 16;
  TransformArguments s;
  FOX_CHECK(in.dtype == DType::kF32 || in.dtype == DType::kBF16);
  FOX_CHECK(reinterpret_cast<uintptr_t>(in.data) % kAlign == 0);
  FOX_CHECK(in.row_stride * static_cast<int64_t>(SizeOf(in.dtype)) % kAlign == 0);
  s.in = in.data;
  s.in_stride = in.row_stride;
  s.in_cols = static_cast<int>(in.cols);
  s.out_cols = t.kind == Kind::kGatedAct ? s.in_cols / 2 : s.in_cols;
  FOX_CHECK(s.out_cols > 0 && s.out_cols % transform::kUnit == 0);
  s.act = t.act;
  s.eps = static_cast<float>(t.eps);
  if (t.kind != Kind::kRmsNorm) return s;
  s.weight = static_cast<const float*>(t.weight);
  FOX_CHECK(reinterpret_cast<uintptr_t>(s.weight) % kAlign == 0);
  s.apart = t.apart;
  return s;
}

// body.operator()<kind, In>() for the kind and the input's type.
template <typename Body>
auto DispatchTransform(InputTransform::Kind kind, DType in, const Body& body) {
  using Kind = InputTransform::Kind;
  const auto typed = [&]<Kind k>() {
    return in == DType::kF32 ? body.template operator()<k, float>()
                             : body.template operator()<k, __nv_bfloat16>();
  };
  switch (kind) {
    case Kind::kRmsNorm:
      return typed.template operator()<Kind::kRmsNorm>();
    case Kind::kGatedAct:
      return typed.template operator()<Kind::kGatedAct>();
    default:
      return typed.template operator()<Kind::kNone>();
  }
}

}  // namespace fox::cuda
