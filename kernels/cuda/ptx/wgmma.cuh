// Warpgroup matrix products (wgmma, sm_90a): 64 rows by N columns by 16, bf16 in, float32 sums in
// registers, issued by the 128 threads of a warpgroup together and running behind their back.
//
// Fragment of thread t: rows 16 (t / 32) + t % 32 / 4 and 8 further down; d[4 i + e] is column
// 8 i + 2 (t % 4) + e % 2 of the first row (e < 2) or the second. An A fragment of 16 columns is
// four words of two: columns 2 (t % 4) of both rows, then the same 8 columns further on; so sums
// become the A operand of a next product where they lie.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/shared_memory.cuh"

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

// Keeps the compiler from moving accesses to the sums of running products, or to operands that they
// read, over this point.
template <int kCount>
__device__ __forceinline__ void WarpgroupFenceOperand(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void WarpgroupFenceOperand(uint32_t (&words)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(words[i])::"memory");
}

// The sums of an instruction: FOX_SUMSn adds to n of them, FOX_NEWn begins them, FOX_FIRSTn names
// them in the instruction, as its first operands.
#define FOX_SUMS4_AT(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FOX_SUMS16_AT(d, i) \
  FOX_SUMS4_AT(d, i), FOX_SUMS4_AT(d, i + 4), FOX_SUMS4_AT(d, i + 8), FOX_SUMS4_AT(d, i + 12)
#define FOX_SUMS4(d) FOX_SUMS4_AT(d, 0)
#define FOX_SUMS8(d) FOX_SUMS4(d), FOX_SUMS4_AT(d, 4)
#define FOX_SUMS16(d) FOX_SUMS16_AT(d, 0)
#define FOX_SUMS32(d) FOX_SUMS16(d), FOX_SUMS16_AT(d, 16)
#define FOX_SUMS64(d) FOX_SUMS32(d), FOX_SUMS16_AT(d, 32), FOX_SUMS16_AT(d, 48)
#define FOX_SUMS128(d)                                                             \
  FOX_SUMS64(d), FOX_SUMS16_AT(d, 64), FOX_SUMS16_AT(d, 80), FOX_SUMS16_AT(d, 96), \
      FOX_SUMS16_AT(d, 112)
#define FOX_NEW4_AT(d, i) "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3])
#define FOX_NEW16_AT(d, i) \
  FOX_NEW4_AT(d, i), FOX_NEW4_AT(d, i + 4), FOX_NEW4_AT(d, i + 8), FOX_NEW4_AT(d, i + 12)
#define FOX_NEW4(d) FOX_NEW4_AT(d, 0)
#define FOX_NEW8(d) FOX_NEW4(d), FOX_NEW4_AT(d, 4)
#define FOX_NEW16(d) FOX_NEW16_AT(d, 0)
#define FOX_NEW32(d) FOX_NEW16(d), FOX_NEW16_AT(d, 16)
#define FOX_NEW64(d) FOX_NEW32(d), FOX_NEW16_AT(d, 32), FOX_NEW16_AT(d, 48)
#define FOX_NEW128(d) \
  FOX_NEW64(d), FOX_NEW16_AT(d, 64), FOX_NEW16_AT(d, 80), FOX_NEW16_AT(d, 96), FOX_NEW16_AT(d, 112)
#define FOX_FIRST4 "%0, %1, %2, %3"
#define FOX_FIRST8 FOX_FIRST4 ", %4, %5, %6, %7"
#define FOX_FIRST16 FOX_FIRST8 ", %8, %9, %10, %11, %12, %13, %14, %15"
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
#define FOX_WGMMA(adds, n, sums, rest) \
  "{\n.reg .pred add;\nsetp." adds     \
  ".u32 add, 0, 0;\n"                  \
  "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" sums "}, " rest ";\n}\n"
// A product of `a`, which the instruction takes as `words`, and of b in shared memory. The first of
// a chain takes nothing from d: sums that ordinary instructions write while other products run
// would make ptxas wait for those.
#define FOX_WGMMA_CHAIN(Name, a, words, n, count, operands, transposed)                      \
  template <bool kFirst>                                                                     \
  __device__ __forceinline__ void Name(float(&d)[count], a, uint64_t b) {                    \
    if constexpr (kFirst) {                                                                  \
      asm volatile(FOX_WGMMA("ne", n, FOX_FIRST##count, operands ", add, 1, 1, " transposed) \
                   : FOX_NEW##count(d)                                                       \
                   : words, "l"(b));                                                         \
    } else {                                                                                 \
      asm volatile(FOX_WGMMA("eq", n, FOX_FIRST##count, operands ", add, 1, 1, " transposed) \
                   : FOX_SUMS##count(d)                                                      \
                   : words, "l"(b));                                                         \
    }                                                                                        \
  }
#define FOX_DESCRIPTOR "l"(a)
#define FOX_SHARED(Name, n, count, operands, transposed) \
  FOX_WGMMA_CHAIN(Name, uint64_t a, FOX_DESCRIPTOR, n, count, operands, transposed)

// d = a b^T with kFirst, else d += a b^T: a [64, 16] and b [N, 16] in shared memory, both with 16
// contiguous. That the order in which the sixteen terms of a sum are added does not depend on N is
// said by no document; products of decode rows rely on it (cluster_gemm.cu), and a test shows it.
#define FOX_WGMMA_QK(n, count, operands) FOX_SHARED(WgmmaQk, n, count, operands, "0, 0")
FOX_WGMMA_QK("8", 4, "%4, %5")
FOX_WGMMA_QK("16", 8, "%8, %9")
FOX_WGMMA_QK("32", 16, "%16, %17")
FOX_WGMMA_QK("64", 32, "%32, %33")
FOX_WGMMA_QK("128", 64, "%64, %65")
FOX_WGMMA_QK("256", 128, "%128, %129")

// WgmmaQk with a in registers.
#define FOX_FRAGMENT "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
#define FOX_WGMMA_HELD(n, count, operands) \
  FOX_WGMMA_CHAIN(WgmmaQk, const uint32_t(&a)[4], FOX_FRAGMENT, n, count, operands, "0")
FOX_WGMMA_HELD("8", 4, "{%4, %5, %6, %7}, %8")
FOX_WGMMA_HELD("16", 8, "{%8, %9, %10, %11}, %12")
FOX_WGMMA_HELD("32", 16, "{%16, %17, %18, %19}, %20")
FOX_WGMMA_HELD("64", 32, "{%32, %33, %34, %35}, %36")
FOX_WGMMA_HELD("128", 64, "{%64, %65, %66, %67}, %68")
FOX_WGMMA_HELD("256", 128, "{%128, %129, %130, %131}, %132")

// A product of a and b in shared memory, but a b instead of a b^T: b [16, N] with N contiguous.
FOX_SHARED(WgmmaRows, "32", 16, "%16, %17", "0, 1")
FOX_SHARED(WgmmaRows, "64", 32, "%32, %33", "0, 1")

// d += a b: a [64, 16] in registers, the words 4 step to 4 step + 3 of p; b [16, N] in shared
// memory with N contiguous.
#define FOX_WGMMA_VALUES(n, count, operands)                                                \
  template <int kWords>                                                                     \
  __device__ __forceinline__ void WgmmaValues(float(&d)[count], const uint32_t(&p)[kWords], \
                                              int step, uint64_t b) {                       \
    const int i = 4 * step;                                                                 \
    asm volatile(FOX_WGMMA("eq", n, FOX_FIRST##count, operands ", add, 1, 1, 1")            \
                 : FOX_SUMS##count(d)                                                       \
                 : "r"(p[i]), "r"(p[i + 1]), "r"(p[i + 2]), "r"(p[i + 3]), "l"(b));         \
  }
FOX_WGMMA_VALUES("32", 16, "{%16, %17, %18, %19}, %20")
FOX_WGMMA_VALUES("64", 32, "{%32, %33, %34, %35}, %36")
FOX_WGMMA_VALUES("128", 64, "{%64, %65, %66, %67}, %68")

// d += a b as above, and sums += the row sums of a: b has eight more columns, of ones, in a block
// of their own (`leading` behind the last). The lanes of a quad hold equal sums: sums[0] of the
// first row, sums[2] of the second.
#define FOX_WGMMA_VALUES_AND_SUMS(n, count, first, rest)                                 \
  __device__ __forceinline__ void WgmmaValuesAndSums(                                    \
      float(&d)[count], float(&sums)[4], const uint32_t(&p)[32], int step, uint64_t b) { \
    const int i = 4 * step;                                                              \
    asm volatile(FOX_WGMMA("eq", n, FOX_FIRST##count first, rest ", add, 1, 1, 1")       \
                 : FOX_SUMS##count(d), FOX_SUMS4(sums)                                   \
                 : "r"(p[i]), "r"(p[i + 1]), "r"(p[i + 2]), "r"(p[i + 3]), "l"(b));      \
  }
FOX_WGMMA_VALUES_AND_SUMS("40", 16, ", %16, %17, %18, %19", "{%20, %21, %22, %23}, %24")
FOX_WGMMA_VALUES_AND_SUMS("72", 32, ", %32, %33, %34, %35", "{%36, %37, %38, %39}, %40")
FOX_WGMMA_VALUES_AND_SUMS("136", 64, ", %64, %65, %66, %67", "{%68, %69, %70, %71}, %72")

// Starts c = a b^T, with `first`, else c += a b^T, over 64 columns: rows of a and b are swizzled
// lines of 128 bytes. Over one line of each after the other, columns are added from left to right.
template <int kCount>
__device__ __forceinline__ void MultiplyLines(bool first, float (&c)[kCount], uint64_t a,
                                              uint64_t b) {
  WgmmaFence();
#pragma unroll
  for (int at = 0; at < 8; at += 2) {  // in units of descriptors: 16 columns
    if (first && at == 0) {
      WgmmaQk<true>(c, a, b);
    } else {
      WgmmaQk<false>(c, a + at, b + at);
    }
  }
  WgmmaCommit();
}
// MultiplyLines over 32 columns, with a's fragments of two products in registers.
template <int kCount>
__device__ __forceinline__ void MultiplyHeld(bool first, float (&c)[kCount],
                                             const uint32_t (&a)[2][4], uint64_t b) {
  WgmmaFence();
  if (first) {
    WgmmaQk<true>(c, a[0], b);
  } else {
    WgmmaQk<false>(c, a[0], b);
  }
  WgmmaQk<false>(c, a[1], b + 2);
  WgmmaCommit();
}
__device__ __forceinline__ uint64_t LinesDescriptor(const unsigned char* lines) {
  return MatrixDescriptor(SharedAddress(lines), 16, 8 * 128, Swizzle::k128);
}

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
