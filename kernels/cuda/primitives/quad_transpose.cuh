// QuadTranspose: the four lanes that share a row of a product exchange words, so that each has 16
// contiguous bytes to store.
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/warp.cuh"

namespace fox::cuda {

// Word b of lane q of a quad becomes word q of lane b.
__device__ __forceinline__ uint4 QuadTranspose(const uint32_t (&w)[4], int quad_lane) {
  const bool odd = quad_lane % 2 != 0, upper = quad_lane / 2 != 0;
  const uint32_t from0 = FromLaneXor(odd ? w[0] : w[1], 1);
  const uint32_t from1 = FromLaneXor(odd ? w[2] : w[3], 1);
  // Words of an even lane and its neighbour, in blocks odd and 2 + odd.
  const uint2 low{odd ? from0 : w[0], odd ? w[1] : from0};
  const uint2 high{odd ? from1 : w[2], odd ? w[3] : from1};
  const uint2 kept = upper ? high : low, sent = upper ? low : high;
  const uint2 got{FromLaneXor(sent.x, 2), FromLaneXor(sent.y, 2)};
  return upper ? uint4{got.x, got.y, kept.x, kept.y} : uint4{kept.x, kept.y, got.x, got.y};
}

}  // namespace fox::cuda
