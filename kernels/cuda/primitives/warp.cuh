// Warps and their lanes, and results over the four of them that share a row of a tensor core
// product. For .cu files only.
#pragma once

namespace fox::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Of the thread in its warp and of the warp in its block, in blocks of one dimension.
__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ __forceinline__ int Warp() { return static_cast<int>(threadIdx.x) / kWarp; }

__device__ __forceinline__ float QuadSum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

__device__ __forceinline__ float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

}  // namespace fox::cuda
