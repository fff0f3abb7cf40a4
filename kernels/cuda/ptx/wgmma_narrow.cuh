// Warpgroup matrix products with few columns, d += a b^T: a [64, 16] and b [N, 16] in shared
// memory, both with 16 contiguous; N = 8, 16, 32 or 64 by the number of sums. Read wgmma.cuh first.
//
// What products rely on whose bits must not depend on the number of rows (cluster_gemm.cu): the
// order in which the sixteen terms of a sum are added does not depend on N. No document says so; a
// test shows it.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/wgmma.cuh"

namespace fox::cuda {

#define FOX_SUMS4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FOX_SUMS8(d, i) FOX_SUMS4(d, i), FOX_SUMS4(d, i + 4)
#define FOX_SUMS16(d, i) FOX_SUMS8(d, i), FOX_SUMS8(d, i + 8)
#define FOX_WGMMA_ADD(shape, sums, a, b)                                       \
  "{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"                               \
  "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" sums "}, " a ", " b \
  ", add, 1, 1, 0, 0;\n}\n"

__device__ __forceinline__ void WgmmaAdd(float (&d)[4], uint64_t a, uint64_t b) {
  asm volatile(FOX_WGMMA_ADD("m64n8k16", "%0, %1, %2, %3", "%4", "%5")
               : FOX_SUMS4(d, 0)
               : "l"(a), "l"(b));
}

__device__ __forceinline__ void WgmmaAdd(float (&d)[8], uint64_t a, uint64_t b) {
  asm volatile(FOX_WGMMA_ADD("m64n16k16", "%0, %1, %2, %3, %4, %5, %6, %7", "%8", "%9")
               : FOX_SUMS8(d, 0)
               : "l"(a), "l"(b));
}

__device__ __forceinline__ void WgmmaAdd(float (&d)[16], uint64_t a, uint64_t b) {
  asm volatile(FOX_WGMMA_ADD("m64n32k16",
                             "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15",
                             "%16", "%17")
               : FOX_SUMS16(d, 0)
               : "l"(a), "l"(b));
}

__device__ __forceinline__ void WgmmaAdd(float (&d)[32], uint64_t a, uint64_t b) {
  WgmmaQk<false>(d, a, b);
}

#undef FOX_WGMMA_ADD
#undef FOX_SUMS16
#undef FOX_SUMS8
#undef FOX_SUMS4

}  // namespace fox::cuda
