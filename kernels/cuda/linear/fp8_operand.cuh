// Rows of W as the operand that a warpgroup holds in registers (wgmma.cuh): from lines of 128 bytes
// in shared memory, swizzled by TMA, of codes, widened on their way, or of bf16. For kernels that
// multiply weights of 8 bits without a widened copy. Bits are those of MultiplyLines.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/fp8_rows.h"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/mma_sm80.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace fox::cuda {

// The operand of 64 columns: [half][16 columns]. Products under way read it, so it lives as long as
// they run.
using HeldOperand = uint32_t[2][2][4];

// Address of a lane's 16 bytes for LoadMatrices: the unit `unit`, in lanes from 16 on the next, of
// line `row`. Unit `unit ^ k` of even k is at the address ^ 16 k.
__device__ __forceinline__ uint32_t AddressInLine(const unsigned char* lines, int row, int unit) {
  return SharedAddress(lines) + row * 128 + ((unit + Lane() / 16) ^ row % 8) * 16;
}

// Starts c = W x^T if `first`, else c += W x^T, over 64 columns, the lower or upper half `chunk` of
// lines of 128 codes; W without its rows' scales. `row`: the line, from `lines` on, of the warp's
// row t % 16 in lane t. Calls `wait` before x is read. Each half is widened while the half before
// is multiplied: WgmmaWait<1> leaves only that one running, so the registers that it does not read
// may be overwritten. When it returns, earlier calls' products are done.
template <int kCount, typename Wait>
__device__ __forceinline__ void MultiplyCodes(bool first, int chunk, float (&c)[kCount],
                                              HeldOperand& held, const unsigned char* lines,
                                              int row, uint64_t x, const Wait& wait) {
  const uint32_t from = AddressInLine(lines, row, chunk * 4);
  uint32_t words[2][4];
  LoadMatrices(words[0], from);
  LoadMatrices(words[1], from ^ 32);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    WgmmaWait<1>();
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t(&to)[4] = held[half][step];
      WarpgroupFenceOperand(to);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[i] = WidenPair(Fp8Pair(words[half][step * 2 + i % 2], i >= 2));
      }
    }
    if (half == 0) wait();
    MultiplyHeld(first && half == 0, c, held[half], x + half * 4);
  }
}

// MultiplyCodes of lines of 64 bf16.
template <int kCount, typename Wait>
__device__ __forceinline__ void MultiplyHeldLines(bool first, float (&c)[kCount], HeldOperand& held,
                                                  const unsigned char* lines, int row, uint64_t x,
                                                  const Wait& wait) {
  const uint32_t from = AddressInLine(lines, row, 0);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    WgmmaWait<1>();
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      WarpgroupFenceOperand(held[half][step]);
      LoadMatrices(held[half][step], from ^ static_cast<uint32_t>((half * 2 + step) * 32));
    }
    if (half == 0) wait();
    MultiplyHeld(first && half == 0, c, held[half], x + half * 4);
  }
}

}  // namespace fox::cuda
