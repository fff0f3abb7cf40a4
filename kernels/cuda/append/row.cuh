// One head's row of the projection, spread over head_dim / 8 neighbouring lanes of a warp: token
// shift, RMS norm or norm cap, rotation, and the log gate. By whole warps; a lane without a row
// computes garbage that it does not store. The mathematics is in kernels/cpu/append.cc.
//
// A token's query, key, value and log gate have the same bits in every kernel that computes them,
// because no rounding is left to the compiler, which may or may not fuse a product and a sum.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/primitives/kv_index.cuh"
#include "kernels/cuda/primitives/norm_and_gate.cuh"
#include "kernels/cuda/primitives/vec8.cuh"
#include "kernels/cuda/ptx/fast_math.cuh"
#include "kernels/interface/attention_params.h"
#include "kernels/interface/batch_view.h"

namespace fox::cuda {

// Lanes of a row, one vector each.
template <int kHeadDim>
inline constexpr int kRowLanes = kHeadDim / kVec8;

// Token shift: alpha * before + (1 - alpha) * now.
__device__ __forceinline__ void Shift(Float8& now, const Float8& before, float alpha) {
#pragma unroll
  for (int i = 0; i < kVec8; ++i) {
    now.x[i] = fmaf(alpha, before.x[i], (1.0f - alpha) * now.x[i]);
  }
}

__device__ __forceinline__ float SumSquares(const Float8& o) {
  float square = 0;
#pragma unroll
  for (int i = 0; i < kVec8; ++i) square = fmaf(o.x[i], o.x[i], square);
  return square;
}

// The lane's eight weights of an RMS norm, from `first` on. Without norm, the head's cap in all
// eight, or 0 without caps. `norm` and `caps` may be null.
template <int kHeadDim>
__device__ __forceinline__ Float8 LoadNorm(const void* norm, const float* caps, int64_t first) {
  if (norm != nullptr) return LoadVec8(static_cast<const float*>(norm) + first);
  const float cap = caps == nullptr ? 0 : caps[first / kHeadDim];
  return {{cap, cap, cap, cap, cap, cap, cap, cap}};
}

__device__ __forceinline__ void ScaleBy(Float8& o, float scale) {
#pragma unroll
  for (int i = 0; i < kVec8; ++i) o.x[i] *= scale;
}
// RMS norm: by NormScale of the row, then by `weight`, this lane's eight.
__device__ __forceinline__ void ScaleBy(Float8& o, float scale, const Float8& weight) {
#pragma unroll
  for (int i = 0; i < kVec8; ++i) o.x[i] = o.x[i] * scale * weight.x[i];
}
template <int kHeadDim>
__device__ __forceinline__ void NormalizeBy(Float8& o, const Float8& weight, float eps) {
  ScaleBy(o, NormScale<kHeadDim>(WarpSum<kRowLanes<kHeadDim>>(SumSquares(o)), eps), weight);
}

// A cap's scale. fminf drops the NaN of a row of zeros, which stays.
__device__ __forceinline__ float CapScale(float sum_of_squares, const Float8& cap) {
  return fminf(1.0f, __fmul_rn(cap.x[0], rsqrtf(sum_of_squares)));
}
template <int kHeadDim>
__device__ __forceinline__ void CapNorm(Float8& o, const Float8& cap) {
  ScaleBy(o, CapScale(WarpSum<kRowLanes<kHeadDim>>(SumSquares(o)), cap));
}

// RoPE of one position in this lane's dimensions, times the attention factor. The angle is taken
// modulo 2 pi in float64: positions reach a million, and float32 would leave two digits of it.
struct Rotation {
  float cosine[kVec8];
  float sine[kVec8];  // negative in the lower half
};

__device__ __forceinline__ void SineAndCosine(int64_t position, double frequency, float* sine,
                                              float* cosine) {
  constexpr double kTurn = 0.15915494309189533577;  // 1 / (2 pi)
  const double turns = __dmul_rn(__dmul_rn(static_cast<double>(position), frequency), kTurn);
  sincospif(2.0f * static_cast<float>(turns - rint(turns)), sine, cosine);
}

template <int kHeadDim>
__device__ __forceinline__ Rotation RotationAt(const AppendParams& params, int64_t position,
                                               int sub) {
  constexpr int kHalf = kHeadDim / 2;
  const bool low = sub * kVec8 < kHalf;
  const double* lane_frequency = params.rope_frequency + (low ? sub * kVec8 : sub * kVec8 - kHalf);
  Rotation r;
#pragma unroll
  for (int i = 0; i < kVec8; ++i) {
    float sine;
    SineAndCosine(position, lane_frequency[i], &sine, &r.cosine[i]);
    r.sine[i] = low ? -sine : sine;
  }
  if (params.attention_factor != 1) {  // a branch: the factor would occupy a register throughout
    const auto factor = static_cast<float>(params.attention_factor);
#pragma unroll
    for (int i = 0; i < kVec8; ++i) {
      r.cosine[i] = __fmul_rn(r.cosine[i], factor);
      r.sine[i] = __fmul_rn(r.sine[i], factor);
    }
  }
  return r;
}

// RotationAt where all lanes of the warp have the same position, of whose angles each then computes
// its share: fewer instructions, which a kernel that runs them once fetches from afar.
template <int kHeadDim>
__device__ __forceinline__ Rotation RotationOfWarp(const AppendParams& params, int64_t position,
                                                   int sub) {
  constexpr int kHalf = kHeadDim / 2, kShare = kHalf < kWarp ? 1 : kHalf / kWarp;
  const auto factor = static_cast<float>(params.attention_factor);
  float sines[kShare], cosines[kShare];
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    const double frequency = params.rope_frequency[(Lane() * kShare + i) % kHalf];
    SineAndCosine(position, frequency, &sines[i], &cosines[i]);
    sines[i] = __fmul_rn(sines[i], factor);
    cosines[i] = __fmul_rn(cosines[i], factor);
  }
  const int first = sub * kVec8 % kHalf;
  Rotation r;
#pragma unroll
  for (int i = 0; i < kVec8; ++i) {
    const float sine = FromLane(sines[i % kShare], (first + i) / kShare);
    r.cosine[i] = FromLane(cosines[i % kShare], (first + i) / kShare);
    r.sine[i] = sub * kVec8 < kHalf ? -sine : sine;
  }
  return r;
}

// Rotates halves: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin).
template <int kHeadDim>
__device__ __forceinline__ void Rotate(Float8& o, const Rotation& r) {
#pragma unroll
  for (int i = 0; i < kVec8; ++i) {
    const float other = FromLaneXor(o.x[i], kRowLanes<kHeadDim> / 2);
    o.x[i] = fmaf(o.x[i], r.cosine[i], other * r.sine[i]);
  }
}

__device__ __forceinline__ __nv_bfloat16* ProjectionRow(const AppendParams& params, int64_t row) {
  return params.projection.Row<__nv_bfloat16>(row);
}

// The logit of a head's gate: its address in a row of the projection (some other where there is
// none), and its value. Without branches, which would wait for other loads.
__device__ __forceinline__ bool HasGateLogit(const AppendParams& params) {
  return params.has_gate && params.fgate_column >= 0;
}
__device__ __forceinline__ const __nv_bfloat16* GateLogitAt(const AppendParams& params, int64_t row,
                                                            int head) {
  return ProjectionRow(params, row) + (HasGateLogit(params) ? params.fgate_column + head : 0);
}
__device__ __forceinline__ float GateLogit(const AppendParams& params, __nv_bfloat16 projected) {
  return HasGateLogit(params) ? __bfloat162float(projected) : 0;
}
__device__ __forceinline__ float GateBias(const AppendParams& params, int head) {
  return params.fgate_bias == nullptr ? 0 : static_cast<const float*>(params.fgate_bias)[head];
}

// log f of one head. float32: 1e-7 relative, as good as the projection's sum in float64.
__device__ __forceinline__ float LogGate(const AppendParams& params, float logit) {
  if (!params.has_gate) return 0;
  const float rest = log1pf(expf(-fabsf(logit)));
  const float value = logit < 0 ? __fsub_rn(logit, rest) : -rest;
  const float least = static_cast<float>(params.min_log_gate);
  return value < least ? least : value;
}

// A kv head's part of the raw last rows of (slot, layer): `rows` is last_k or last_v, indexed by
// PagedKv::After, or page_end_k or page_end_v, indexed by slot.
__device__ __forceinline__ float* LastRow(const PagedKv& kv, void* rows, int slot, int layer,
                                          int kv_head) {
  return static_cast<float*>(rows) + kv.ListIndex(slot, layer, kv_head) * kv.shape.head_dim;
}

}  // namespace fox::cuda
