// Arithmetic of a few instructions: exp2, log2 and the sigmoid by the SFU
// (relative error near 2^-22, subnormals are zero), and the rounding of pairs.
#pragma once

#include <cstdint>

namespace fox::cuda {

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float Log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// exp overflows to infinity for large negative x: the sigmoid is then zero.
__device__ __forceinline__ float Sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// Two floats as bf16, `low` in the lower half.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

}  // namespace fox::cuda
