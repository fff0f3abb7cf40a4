// The m16n8k16 tensor core product (mma.sync, bf16 or float16 in, float32 sums) and the loads of
// its operands from shared memory (ldmatrix), and operands from e4m3 codes. Portable to compute
// capability 8.0.
#pragma once

#include <cstdint>

namespace fox::cuda {

// Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8,
// 16-byte aligned.
__device__ __forceinline__ void LoadMatrices(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// Two 8x8 matrices, by the addresses of lanes 0 to 15.
__device__ __forceinline__ void LoadMatrices(uint32_t (&m)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(m[0]), "=r"(m[1])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void LoadTransposed(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ uint32_t MultiplyBf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
  return product;
}

// Two e4m3 numbers from their bits in the place of bf16's, exactly.
__device__ __forceinline__ uint32_t WidenPair(uint32_t bits) {
  return MultiplyBf16x2(bits, 0x7b807b80u);  // 2^120
}

// Widens the lower two of four codes, or the upper two. An e4m3 number's bits in the place of
// bf16's are 2^-120 times it, subnormal or not.
__device__ __forceinline__ uint32_t WidenCodes(uint32_t codes, bool upper) {
  const uint32_t high = __byte_perm(codes, 0, upper ? 0x3424 : 0x1404);  // bytes of two halves
  const uint32_t small = (high & 0x80008000u) | (high >> 4 & 0x07f007f0u);
  return WidenPair(small);
}

// c[16, 8] += a[16, 16] b[16, 8]. With g = lane / 4 and t = lane % 4 a thread holds c[g][2t],
// c[g][2t + 1], c[g + 8][2t], c[g + 8][2t + 1].
__device__ __forceinline__ void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same of float16.
__device__ __forceinline__ void MultiplyAddFloat16(float (&c)[4], const uint32_t (&a)[4],
                                                   uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace fox::cuda
