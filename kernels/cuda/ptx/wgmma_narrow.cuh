// Warpgroup matrix products with few columns, d = or += a b^T: a [64, 16] and b [N, 16] in shared
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
#define FOX_NEW4(d, i) "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3])
#define FOX_NEW8(d, i) FOX_NEW4(d, i), FOX_NEW4(d, i + 4)
#define FOX_NEW16(d, i) FOX_NEW8(d, i), FOX_NEW8(d, i + 8)
#define FOX_FIRST4 "%0, %1, %2, %3"
#define FOX_FIRST8 FOX_FIRST4 ", %4, %5, %6, %7"
#define FOX_FIRST16 FOX_FIRST8 ", %8, %9, %10, %11, %12, %13, %14, %15"
// `adds`: "eq" to add to the sums, "ne" to begin them.
#define FOX_WGMMA(adds, shape, sums, a, b)                                     \
  "{\n.reg .pred add;\nsetp." adds                                             \
  ".u32 add, 0, 0;\n"                                                          \
  "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" sums "}, " a ", " b \
  ", add, 1, 1, 0, 0;\n}\n"
#define FOX_NARROW(count, shape, a_at, b_at)                                              \
  template <bool kFirst>                                                                  \
  __device__ __forceinline__ void WgmmaNarrow(float(&d)[count], uint64_t a, uint64_t b) { \
    if constexpr (kFirst) {                                                               \
      asm volatile(FOX_WGMMA("ne", shape, FOX_FIRST##count, a_at, b_at)                   \
                   : FOX_NEW##count(d, 0)                                                 \
                   : "l"(a), "l"(b));                                                     \
    } else {                                                                              \
      asm volatile(FOX_WGMMA("eq", shape, FOX_FIRST##count, a_at, b_at)                   \
                   : FOX_SUMS##count(d, 0)                                                \
                   : "l"(a), "l"(b));                                                     \
    }                                                                                     \
  }

// d = a b^T with kFirst, which takes nothing from d (see WgmmaQk), else d += a b^T.
FOX_NARROW(4, "m64n8k16", "%4", "%5")
FOX_NARROW(8, "m64n16k16", "%8", "%9")
FOX_NARROW(16, "m64n32k16", "%16", "%17")

template <bool kFirst>
__device__ __forceinline__ void WgmmaNarrow(float (&d)[32], uint64_t a, uint64_t b) {
  WgmmaQk<kFirst>(d, a, b);
}

#undef FOX_NARROW
#undef FOX_WGMMA
#undef FOX_FIRST16
#undef FOX_FIRST8
#undef FOX_FIRST4
#undef FOX_NEW16
#undef FOX_NEW8
#undef FOX_NEW4
#undef FOX_SUMS16
#undef FOX_SUMS8
#undef FOX_SUMS4

}  // namespace fox::cuda
