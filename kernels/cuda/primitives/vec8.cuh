// Float8: eight consecutive elements of a row, a thread's unit of work: 16 bytes of bf16.
// Loads are plain ones: rows may have been written by the previous kernel while this one was
// running. For .cu files only.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace fox::cuda {

inline constexpr int kVec8 = 8;
struct Float8 {
  float x[kVec8];
};

__device__ __forceinline__ Float8 Widen(const uint4& bits) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
  Float8 o;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    o.x[2 * i] = __uint_as_float(words[i] << 16);
    o.x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
  return o;
}
__device__ __forceinline__ Float8 LoadVec8(const __nv_bfloat16* from) {
  return Widen(*reinterpret_cast<const uint4*>(from));
}
__device__ __forceinline__ Float8 LoadVec8(const float* from) {
  const float4 low = reinterpret_cast<const float4*>(from)[0];
  const float4 high = reinterpret_cast<const float4*>(from)[1];
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

__device__ __forceinline__ uint4 ToBf16x8(const Float8& o) {
  union {
    __nv_bfloat162 pairs[4];
    uint4 bits;
  } packed;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    packed.pairs[i] = __floats2bfloat162_rn(o.x[2 * i], o.x[2 * i + 1]);
  }
  return packed.bits;
}
// In one store: the compiler may split the assignment of a uint4 into four.
__device__ __forceinline__ void StoreWhole(const uint4& bits, __nv_bfloat16* to) {
  __stcg(reinterpret_cast<uint4*>(to), bits);
}
__device__ __forceinline__ void StoreVec8(const Float8& o, __nv_bfloat16* to) {
  *reinterpret_cast<uint4*>(to) = ToBf16x8(o);
}
__device__ __forceinline__ void StoreVec8(const Float8& o, float* to) {
  reinterpret_cast<float4*>(to)[0] = {o.x[0], o.x[1], o.x[2], o.x[3]};
  reinterpret_cast<float4*>(to)[1] = {o.x[4], o.x[5], o.x[6], o.x[7]};
}

}  // namespace fox::cuda
