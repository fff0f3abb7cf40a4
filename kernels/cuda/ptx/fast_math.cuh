// Arithmetic of a few instructions: exp2, log2 and the sigmoid by the SFU
// (relative error near 2^-22, subnormals are zero), and the rounding of pairs.
#pragma once

#include <cstdint>

namespace fox::cuda {

// For softmax in base two: exp(x) = exp2(x log2 e) is one multiplication and one instruction.
inline constexpr double kLog2EDouble = 1.4426950408889634;
inline constexpr float kLog2E = static_cast<float>(kLog2EDouble);
inline constexpr float kLn2 = 0.6931471805599453f;

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

// exp overflows to infinity for large negative x: the sigmoid is then zero. A subnormal exponential
// would be lost in the sum with one anyway.
__device__ __forceinline__ float Sigmoid(float x) {
  return __fdividef(1.0f, __fadd_rn(1.0f, Exp2(-kLog2E * x)));
}

// Two floats as bf16, `low` in the lower half.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

}  // namespace fox::cuda
