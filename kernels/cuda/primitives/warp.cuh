// Warps, their lanes, and what lanes compute together by shuffles. The order of each sum is part of
// its contract, because the last bits depend on it. All lanes of a warp call together.
#pragma once

namespace fox::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Of the thread in its warp and of the warp in its block, in blocks of one dimension.
__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ __forceinline__ int Warp() { return static_cast<int>(threadIdx.x) / kWarp; }

// combine() over each group of kLanes neighbouring lanes, in all of them: first lanes half a group
// apart, neighbours last.
template <int kLanes = kWarp, typename T, typename Combine>
__device__ __forceinline__ T WarpReduce(T x, Combine combine) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    x = combine(x, __shfl_xor_sync(kAllLanes, x, offset));
  }
  return x;
}

template <int kLanes = kWarp, typename T>
__device__ __forceinline__ T WarpSum(T x) {
  return WarpReduce<kLanes>(x, [](T a, T b) { return a + b; });
}

// The same for a number of lanes that is known at run time only: a power of two.
template <typename T>
__device__ __forceinline__ T WarpSum(T x, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, offset);
  }
  return x;
}

// A NaN loses.
template <int kLanes = kWarp, typename T>
__device__ __forceinline__ T WarpMax(T x) {
  return WarpReduce<kLanes>(x, [](T a, T b) { return fmax(a, b); });
}

// combine() over the lanes that are kStride apart, in all of them: the nearest first.
template <int kStride, typename T, typename Combine>
__device__ __forceinline__ T StridedReduce(T x, Combine combine) {
#pragma unroll
  for (int offset = kStride; offset < kWarp; offset *= 2) {
    x = combine(x, __shfl_xor_sync(kAllLanes, x, offset));
  }
  return x;
}

template <int kStride, typename T>
__device__ __forceinline__ T StridedSum(T x) {
  return StridedReduce<kStride>(x, [](T a, T b) { return a + b; });
}

template <int kStride, typename T>
__device__ __forceinline__ T StridedMax(T x) {
  return StridedReduce<kStride>(x, [](T a, T b) { return fmax(a, b); });
}

// combine() over this lane and those before it: combine(x, x of an earlier lane).
template <typename T, typename Combine>
__device__ __forceinline__ T WarpScan(T x, Combine combine) {
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const T before = __shfl_up_sync(kAllLanes, x, offset);
    if (Lane() >= offset) x = combine(x, before);
  }
  return x;
}

// The sum over this lane and those before it.
template <typename T>
__device__ __forceinline__ T WarpScan(T x) {
  return WarpScan(x, [](T a, T b) { return a + b; });
}

// Over the four lanes that share a row of a tensor core product, neighbours first.
__device__ __forceinline__ float QuadSum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

__device__ __forceinline__ float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

}  // namespace fox::cuda
