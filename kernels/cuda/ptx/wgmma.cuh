// Warpgroup matrix products (wgmma, sm_90a): 64 rows by N columns by 16, bf16 in, float32 sums in
// registers, issued by the 128 threads of a warpgroup together and running behind their back.
//
// Fragment of thread t: rows 16 (t / 32) + t % 32 / 4 and 8 further down; d[4 i + e] is column
// 8 i + 2 (t % 4) + e % 2 of the first row (e < 2) or the second. An A fragment of 16 columns is
// four words of two: columns 2 (t % 4) of both rows, then the same 8 columns further on; so sums
// become the A operand of a next product where they lie.
#pragma once

#include <cstdint>

namespace fox::cuda {

// Shared memory swizzle of rows of 128 or 64 bytes, as in matrix descriptors.
enum class Swizzle : uint64_t { k128 = 1, k64 = 2 };

// Matrix descriptor of a swizzled tile; add bytes / 16 to move on. `stride`: bytes between groups
// of 8 rows. `leading`, for transposed operands: bytes between blocks of one swizzle row's width.
__device__ __forceinline__ uint64_t MatrixDescriptor(uint32_t shared_address, uint32_t leading,
                                                     uint32_t stride, Swizzle swizzle) {
  return static_cast<uint64_t>((shared_address & 0x3ffff) >> 4) |
         static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32 |
         static_cast<uint64_t>(swizzle) << 62;
}

// Before the first product, and again after registers of one were touched by other instructions.
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Closes a group of products.
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Returns when at most kPending groups of this warp are unfinished.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving accesses to the sums of running products over this point.
template <int kCount>
__device__ __forceinline__ void WarpgroupFenceOperand(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

#define FOX_SUMS4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FOX_SUMS16(d, i) \
  FOX_SUMS4(d, i), FOX_SUMS4(d, i + 4), FOX_SUMS4(d, i + 8), FOX_SUMS4(d, i + 12)
#define FOX_SUMS32(d) FOX_SUMS16(d, 0), FOX_SUMS16(d, 16)
#define FOX_SUMS64(d) FOX_SUMS32(d), FOX_SUMS16(d, 32), FOX_SUMS16(d, 48)
#define FOX_SUMS128(d) \
  FOX_SUMS64(d), FOX_SUMS16(d, 64), FOX_SUMS16(d, 80), FOX_SUMS16(d, 96), FOX_SUMS16(d, 112)
#define FOX_NEW4(d, i) "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3])
#define FOX_NEW16(d, i) FOX_NEW4(d, i), FOX_NEW4(d, i + 4), FOX_NEW4(d, i + 8), FOX_NEW4(d, i + 12)
#define FOX_NEW32(d) FOX_NEW16(d, 0), FOX_NEW16(d, 16)
#define FOX_NEW64(d) FOX_NEW16(d, 0), FOX_NEW16(d, 16), FOX_NEW16(d, 32), FOX_NEW16(d, 48)
#define FOX_NEW128(d) \
  FOX_NEW64(d), FOX_NEW16(d, 64), FOX_NEW16(d, 80), FOX_NEW16(d, 96), FOX_NEW16(d, 112)
// The first operands of an instruction, where the sums are.
#define FOX_FIRST16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define FOX_FIRST32 \
  FOX_FIRST16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FOX_FIRST64                                                                  \
  FOX_FIRST32                                                                        \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FOX_FIRST128                                                                             \
  FOX_FIRST64                                                                                    \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"             \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"
// `adds`: "eq" to add to the sums, "ne" to begin them. `rest`: the operands after the sums.
#define FOX_WGMMA(adds, shape, sums, rest) \
  "{\n.reg .pred add;\nsetp." adds         \
  ".u32 add, 0, 0;\n"                      \
  "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" sums "}, " rest ";\n}\n"

// d = a b^T with kFirst, else d += a b^T: a [64, 16] and b [N, 16] in shared memory, both with 16
// contiguous; N is 256, 128 or 64. The first of a chain takes nothing from d: sums that ordinary
// instructions write while other products run would make ptxas wait for those.
#define FOX_WGMMA_QK(count, shape, operands)                                              \
  template <bool kFirst>                                                                  \
  __device__ __forceinline__ void WgmmaQk(float(&d)[count], uint64_t a, uint64_t b) {     \
    if constexpr (kFirst) {                                                               \
      asm volatile(FOX_WGMMA("ne", shape, FOX_FIRST##count, operands ", add, 1, 1, 0, 0") \
                   : FOX_NEW##count(d)                                                    \
                   : "l"(a), "l"(b));                                                     \
    } else {                                                                              \
      asm volatile(FOX_WGMMA("eq", shape, FOX_FIRST##count, operands ", add, 1, 1, 0, 0") \
                   : FOX_SUMS##count(d)                                                   \
                   : "l"(a), "l"(b));                                                     \
    }                                                                                     \
  }
FOX_WGMMA_QK(128, "m64n256k16", "%128, %129")
FOX_WGMMA_QK(64, "m64n128k16", "%64, %65")
FOX_WGMMA_QK(32, "m64n64k16", "%32, %33")
#undef FOX_WGMMA_QK

// d = a b with kFirst, else d += a b: a [64, 16] in shared memory with 16 contiguous, b [16, N]
// with N contiguous; N is 32 or 64.
template <bool kFirst>
__device__ __forceinline__ void WgmmaRows(float (&d)[16], uint64_t a, uint64_t b) {
  if constexpr (kFirst) {
    asm volatile(FOX_WGMMA("ne", "m64n32k16", FOX_FIRST16, "%16, %17, add, 1, 1, 0, 1")
                 : FOX_NEW16(d, 0)
                 : "l"(a), "l"(b));
  } else {
    asm volatile(FOX_WGMMA("eq", "m64n32k16", FOX_FIRST16, "%16, %17, add, 1, 1, 0, 1")
                 : FOX_SUMS16(d, 0)
                 : "l"(a), "l"(b));
  }
}

template <bool kFirst>
__device__ __forceinline__ void WgmmaRows(float (&d)[32], uint64_t a, uint64_t b) {
  if constexpr (kFirst) {
    asm volatile(FOX_WGMMA("ne", "m64n64k16", FOX_FIRST32, "%32, %33, add, 1, 1, 0, 1")
                 : FOX_NEW32(d)
                 : "l"(a), "l"(b));
  } else {
    asm volatile(FOX_WGMMA("eq", "m64n64k16", FOX_FIRST32, "%32, %33, add, 1, 1, 0, 1")
                 : FOX_SUMS32(d)
                 : "l"(a), "l"(b));
  }
}

// d += a b: a [64, 16] in registers, the words 4 step to 4 step + 3 of p; b [16, N] in shared
// memory with N contiguous; N is 32, 64 or 128.
template <int kWords>
__device__ __forceinline__ void WgmmaValues(float (&d)[16], const uint32_t (&p)[kWords], int step,
                                            uint64_t b) {
  const int i = 4 * step;
  asm volatile(FOX_WGMMA("eq", "m64n32k16", FOX_FIRST16, "{%16, %17, %18, %19}, %20, add, 1, 1, 1")
               : FOX_SUMS16(d, 0)
               : "r"(p[i]), "r"(p[i + 1]), "r"(p[i + 2]), "r"(p[i + 3]), "l"(b));
}

template <int kWords>
__device__ __forceinline__ void WgmmaValues(float (&d)[32], const uint32_t (&p)[kWords], int step,
                                            uint64_t b) {
  const int i = 4 * step;
  asm volatile(FOX_WGMMA("eq", "m64n64k16", FOX_FIRST32, "{%32, %33, %34, %35}, %36, add, 1, 1, 1")
               : FOX_SUMS32(d)
               : "r"(p[i]), "r"(p[i + 1]), "r"(p[i + 2]), "r"(p[i + 3]), "l"(b));
}

template <int kWords>
__device__ __forceinline__ void WgmmaValues(float (&d)[64], const uint32_t (&p)[kWords], int step,
                                            uint64_t b) {
  const int i = 4 * step;
  asm volatile(FOX_WGMMA("eq", "m64n128k16", FOX_FIRST64, "{%64, %65, %66, %67}, %68, add, 1, 1, 1")
               : FOX_SUMS64(d)
               : "r"(p[i]), "r"(p[i + 1]), "r"(p[i + 2]), "r"(p[i + 3]), "l"(b));
}

// The same, and sums += the row sums of a: b has eight more columns, of ones, in a block of their
// own (`leading` behind the last). Lanes of a quad hold the same: sums[0] of the first row, sums[2]
// of the second.
#define FOX_WGMMA_VALUES_AND_SUMS(count, shape, outputs, first, rest)                    \
  __device__ __forceinline__ void WgmmaValuesAndSums(                                    \
      float(&d)[count], float(&sums)[4], const uint32_t(&p)[32], int step, uint64_t b) { \
    const int i = 4 * step;                                                              \
    asm volatile(FOX_WGMMA("eq", shape, first, rest ", add, 1, 1, 1")                    \
                 : outputs, FOX_SUMS4(sums, 0)                                           \
                 : "r"(p[i]), "r"(p[i + 1]), "r"(p[i + 2]), "r"(p[i + 3]), "l"(b));      \
  }
FOX_WGMMA_VALUES_AND_SUMS(16, "m64n40k16", FOX_SUMS16(d, 0), FOX_FIRST16 ", %16, %17, %18, %19",
                          "{%20, %21, %22, %23}, %24")
FOX_WGMMA_VALUES_AND_SUMS(32, "m64n72k16", FOX_SUMS32(d), FOX_FIRST32 ", %32, %33, %34, %35",
                          "{%36, %37, %38, %39}, %40")
FOX_WGMMA_VALUES_AND_SUMS(64, "m64n136k16", FOX_SUMS64(d), FOX_FIRST64 ", %64, %65, %66, %67",
                          "{%68, %69, %70, %71}, %72")
#undef FOX_WGMMA_VALUES_AND_SUMS

#undef FOX_WGMMA
#undef FOX_FIRST128
#undef FOX_FIRST64
#undef FOX_FIRST32
#undef FOX_FIRST16
#undef FOX_NEW128
#undef FOX_NEW64
#undef FOX_NEW32
#undef FOX_NEW16
#undef FOX_NEW4
#undef FOX_SUMS128
#undef FOX_SUMS64
#undef FOX_SUMS32
#undef FOX_SUMS16
#undef FOX_SUMS4

// Moves registers between the warpgroups of a block whose register count is fixed at launch.
template <int kCount>
__device__ __forceinline__ void WarpgroupRegAlloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void WarpgroupRegDealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace fox::cuda
