// The row transforms of linear layers as device code for 256 threads of a block: used by the kernel
// that transforms rows on their own (row_ops.cu) and by the product that does it itself
// (linear/gemv.cu). A row's result does not depend on the rows beside it. For .cu files only.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/core/check.h"
#include "kernels/op_params.h"

namespace fox::cuda {

// Threads that transform together: the first of their block.
inline constexpr int kTransformThreads = 256;

// The transform's inputs as the device needs them. Rows are 16-byte aligned, widths multiples of 8.
struct RowSource {
  const void* in = nullptr;
  int64_t in_stride = 0;  // elements
  int in_cols = 0;
  int out_cols = 0;
  const float* weight = nullptr;        // [in_cols] or null: ones (kOutputGate: no norm)
  const __nv_bfloat16* gate = nullptr;  // [rows, in_cols] or null
  int64_t gate_stride = 0;
  float eps = 0;
  int head_dim = 0;
  bool silu = false;
};

namespace transform {

using Kind = RowTransform::Kind;
inline constexpr int kUnit = 8;  // elements that a thread handles at a time
inline constexpr int kLanes = 32;
inline constexpr int kWarps = kTransformThreads / kLanes;

struct Unit {
  float x[kUnit];
};

// A unit as it lies in memory.
template <typename T>
struct RawUnit {
  uint4 words[kUnit * sizeof(T) / sizeof(uint4)];
};

// Plain loads: rows may have been written by the previous kernel while this one was running.
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
  const uint32_t words[4] = {raw.words[0].x, raw.words[0].y, raw.words[0].z, raw.words[0].w};
  Unit unit;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    unit.x[2 * i] = __uint_as_float(words[i] << 16);
    unit.x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
  return unit;
}

template <typename T>
__device__ __forceinline__ Unit LoadUnit(const T* p) {
  return Widened(LoadRaw(p));
}

__device__ __forceinline__ void StoreUnit(const Unit& unit, __nv_bfloat16* p) {
  union {
    __nv_bfloat162 pairs[4];
    uint4 bits;
  } packed;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    packed.pairs[i] = __floats2bfloat162_rn(unit.x[2 * i], unit.x[2 * i + 1]);
  }
  *reinterpret_cast<uint4*>(p) = packed.bits;
}

__device__ __forceinline__ float SumSquares(const Unit& unit) {
  float sum = 0;
#pragma unroll
  for (float x : unit.x) sum = fmaf(x, x, sum);
  return sum;
}

__device__ __forceinline__ Unit Normalised(Unit unit, float scale, const Unit& weight) {
#pragma unroll
  for (int i = 0; i < kUnit; ++i) unit.x[i] = unit.x[i] * scale * weight.x[i];
  return unit;
}

__device__ __forceinline__ Unit LoadWeight(const float* weight, int unit) {
  if (weight == nullptr) return {{1, 1, 1, 1, 1, 1, 1, 1}};
  return LoadUnit(weight + unit * kUnit);
}

// unit * act(gate). exp overflows to infinity for large negative gates: the sigmoid is then zero.
__device__ __forceinline__ Unit Gated(Unit unit, const Unit& gate, bool silu) {
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    const float sigmoid = __fdividef(1.0f, 1.0f + __expf(-gate.x[i]));
    unit.x[i] *= silu ? gate.x[i] * sigmoid : sigmoid;
  }
  return unit;
}

// Every sums[r] becomes its sum over the threads, in one fixed order.
template <int kRows>
__device__ __forceinline__ void BlockSums(float (&sums)[kRows]) {
  __shared__ float partial[kWarps][kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], offset);
    }
    if (threadIdx.x % kLanes == 0) partial[threadIdx.x / kLanes][r] = sums[r];
  }
  asm volatile("bar.sync 1, %0;" ::"n"(kTransformThreads) : "memory");
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    sums[r] = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sums[r] += partial[w][r];
  }
}

// A thread's first unit of each row (all of them in rows of up to 2048) stays in registers between
// the sum and the scaling; further ones are read again, from cache.
template <typename In, int kRows>
__device__ __forceinline__ void NormRows(const RowSource& s, int64_t first_row, int rows,
                                         __nv_bfloat16* out, int64_t out_stride) {
  const int thread = static_cast<int>(threadIdx.x);
  const int units = s.in_cols / kUnit;
  const In* in = static_cast<const In*>(s.in) + first_row * s.in_stride;
  Unit held[kRows] = {};
  Unit weight = {};
  float sums[kRows] = {};
  if (thread < units) {
    weight = LoadWeight(s.weight, thread);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < rows) held[r] = LoadUnit(in + r * s.in_stride + thread * kUnit);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) sums[r] = SumSquares(held[r]);
#pragma unroll 1
  for (int u = thread + kTransformThreads; u < units; u += kTransformThreads) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < rows) sums[r] += SumSquares(LoadUnit(in + r * s.in_stride + u * kUnit));
    }
  }
  BlockSums(sums);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    sums[r] = rsqrtf(sums[r] / static_cast<float>(s.in_cols) + s.eps);
    if (r < rows && thread < units) {
      StoreUnit(Normalised(held[r], sums[r], weight), out + r * out_stride + thread * kUnit);
    }
  }
#pragma unroll 1
  for (int u = thread + kTransformThreads; u < units; u += kTransformThreads) {
    weight = LoadWeight(s.weight, u);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) continue;
      const Unit unit = LoadUnit(in + r * s.in_stride + u * kUnit);
      StoreUnit(Normalised(unit, sums[r], weight), out + r * out_stride + u * kUnit);
    }
  }
}

// Units of the transforms that need no sum over the row, in the order (row, unit): a thread has
// every 256th. It loads kBatch of them before it uses the first, for each load takes long. The
// lanes of a head (head_dim / 8, a power of two) are neighbours in a warp; all its lanes stay
// together, and those past the last row read and write nothing.
template <Kind kind, typename In, int kBatch>
class UnitBatch {
 public:
  __device__ __forceinline__ UnitBatch(const RowSource& s, int rows)
      : s_(s), rows_(rows), unit_(static_cast<int>(threadIdx.x)) {
    Wrap();
  }

  __device__ __forceinline__ void Load(int64_t first_row) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      row[i] = row_;
      unit[i] = unit_;
      if (row_ < rows_) {
        const In* in = static_cast<const In*>(s_.in) + (first_row + row_) * s_.in_stride;
        x_[i] = LoadRaw(in + unit_ * kUnit);
        if constexpr (kind == Kind::kGatedAct) {
          other_[i] = LoadRaw(in + s_.out_cols + unit_ * kUnit);
        }
        if constexpr (kind == Kind::kOutputGate) {
          const __nv_bfloat16* gate = s_.gate + (first_row + row_) * s_.gate_stride;
          if (s_.gate != nullptr) gate_[i] = LoadRaw(gate + unit_ * kUnit);
          if (s_.weight != nullptr) weight_[i] = LoadRaw(s_.weight + unit_ * kUnit);
        }
      }
      unit_ += kTransformThreads;
      Wrap();
    }
  }

  __device__ __forceinline__ Unit Transformed(int i) const {
    Unit x = Widened(x_[i]);
    if constexpr (kind == Kind::kGatedAct) x = Gated(Widened(other_[i]), x, s_.silu);
    if constexpr (kind == Kind::kOutputGate) {
      if (s_.weight != nullptr) {
        float sum = SumSquares(x);
        for (int offset = s_.head_dim / kUnit / 2; offset > 0; offset /= 2) {
          sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        }
        const float scale = rsqrtf(sum / static_cast<float>(s_.head_dim) + s_.eps);
        x = Normalised(x, scale, Widened(weight_[i]));
      }
      if (s_.gate != nullptr) x = Gated(x, Widened(gate_[i]), s_.silu);
    }
    return x;
  }

  // Where the units loaded last belong.
  int row[kBatch], unit[kBatch];

 private:
  __device__ __forceinline__ void Wrap() {
    const int units = s_.out_cols / kUnit;
    while (unit_ >= units && row_ < rows_) {
      unit_ -= units;
      ++row_;
    }
  }

  const RowSource& s_;
  int rows_;
  int row_ = 0, unit_;
  RawUnit<In> x_[kBatch] = {}, other_[kBatch] = {};
  RawUnit<__nv_bfloat16> gate_[kBatch] = {};
  RawUnit<float> weight_[kBatch] = {};
};

template <Kind kind, typename In, int kBatch>
__device__ __forceinline__ void TransformUnits(const RowSource& s, int64_t first_row, int rows,
                                               __nv_bfloat16* out, int64_t out_stride) {
  UnitBatch<kind, In, kBatch> batch(s, rows);
  const int total = rows * (s.out_cols / kUnit);
#pragma unroll 1
  for (int base = 0; base < total; base += kBatch * kTransformThreads) {
    batch.Load(first_row);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (base + i * kTransformThreads >= total) break;  // for the whole block
      const Unit x = batch.Transformed(i);
      if (batch.row[i] < rows)
        StoreUnit(x, out + batch.row[i] * out_stride + batch.unit[i] * kUnit);
    }
  }
}

}  // namespace transform

// Brings the constants of the transform into the L2, by kThreads threads; before WaitForPrevious().
template <int kThreads = kTransformThreads>
__device__ __forceinline__ void PrefetchTransform(const RowSource& s) {
  constexpr int kLineFloats = 32;
  if (s.weight == nullptr) return;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) * kLineFloats; i < s.in_cols;
       i += kThreads * kLineFloats) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(s.weight + i)));
  }
}

// out[r] = transform(in[first_row + r]) for r < rows <= kRows, by the first kTransformThreads
// threads of the block; out (16-byte aligned rows) in global or shared memory. After
// WaitForPrevious(); the caller synchronises before it reads `out`. Once a kernel.
template <RowTransform::Kind kind, typename In, int kRows>
__device__ __forceinline__ void TransformRowsInBlock(const RowSource& s, int64_t first_row,
                                                     int rows, __nv_bfloat16* out,
                                                     int64_t out_stride) {
  if constexpr (kind == RowTransform::Kind::kRmsNorm) {
    transform::NormRows<In, kRows>(s, first_row, rows, out, out_stride);
  } else {
    // As many loads at a time as registers allow.
    constexpr int kBatch = kRows > 1 && kind != RowTransform::Kind::kOutputGate ? 4 : 2;
    transform::TransformUnits<kind, In, kBatch>(s, first_row, rows, out, out_stride);
  }
}

// Checks what the device code relies on. REQUIRES: see RowSource.
inline RowSource SourceOf(const MatrixView& in, const RowTransform& t) {
  using Kind = RowTransform::Kind;
  constexpr int64_t kAlign = 16;
  const auto aligned = [](const MatrixView& m) {
    return reinterpret_cast<uintptr_t>(m.data) % kAlign == 0 &&
           m.row_stride * static_cast<int64_t>(SizeOf(m.dtype)) % kAlign == 0;
  };
  RowSource s;
  FOX_CHECK((in.dtype == DType::kF32 || in.dtype == DType::kBF16) && aligned(in));
  s.in = in.data;
  s.in_stride = in.row_stride;
  s.in_cols = static_cast<int>(in.cols);
  s.out_cols = t.kind == Kind::kGatedAct ? s.in_cols / 2 : s.in_cols;
  FOX_CHECK(s.out_cols > 0 && s.out_cols % transform::kUnit == 0);
  s.silu = t.silu;
  s.eps = static_cast<float>(t.eps);
  if (t.kind != Kind::kRmsNorm && t.kind != Kind::kOutputGate) return s;
  s.weight = static_cast<const float*>(t.weight);
  FOX_CHECK(reinterpret_cast<uintptr_t>(s.weight) % kAlign == 0);
  if (t.kind == Kind::kRmsNorm) return s;
  if (s.weight != nullptr) {
    s.head_dim = t.head_dim;
    const bool power_of_two = (t.head_dim & (t.head_dim - 1)) == 0;
    FOX_CHECK(t.head_dim >= transform::kUnit &&
              t.head_dim <= transform::kUnit * transform::kLanes && power_of_two &&
              s.in_cols % t.head_dim == 0);
  }
  if (!t.gate.empty()) {
    FOX_CHECK(t.gate.dtype == DType::kBF16 && aligned(t.gate) && t.gate.rows >= in.rows);
    s.gate = static_cast<const __nv_bfloat16*>(t.gate.data);
    s.gate_stride = t.gate.row_stride;
  }
  return s;
}

// body.operator()<kind, In>() for the kind and the input's type at hand.
template <typename Body>
auto DispatchTransform(RowTransform::Kind kind, DType in, const Body& body) {
  using Kind = RowTransform::Kind;
  const auto typed = [&]<Kind k>() {
    return in == DType::kF32 ? body.template operator()<k, float>()
                             : body.template operator()<k, __nv_bfloat16>();
  };
  switch (kind) {
    case Kind::kRmsNorm:
      return typed.template operator()<Kind::kRmsNorm>();
    case Kind::kOutputGate:
      return typed.template operator()<Kind::kOutputGate>();
    case Kind::kGatedAct:
      return typed.template operator()<Kind::kGatedAct>();
    default:
      return typed.template operator()<Kind::kNone>();
  }
}

}  // namespace fox::cuda
