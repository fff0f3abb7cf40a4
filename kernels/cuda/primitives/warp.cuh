// Warps, their lanes, and reductions and scans over them, called by all lanes of the warp. The
// order of the additions is part of the contract because callers promise equal bits.
#pragma once

namespace fox::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// The thread's index in its warp and the warp's index in its block, for blocks of one dimension.
__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ __forceinline__ int Warp() { return static_cast<int>(threadIdx.x) / kWarp; }

// The value of another lane of the warp: of `lane` within each group of `width` neighbours, of the
// lane whose index differs in the bits of `mask`, of the lane `distance` below (one's own where
// there is none).
template <typename T>
__device__ __forceinline__ T FromLane(T x, int lane, int width = kWarp) {
  return __shfl_sync(kAllLanes, x, lane, width);
}
template <typename T>
__device__ __forceinline__ T FromLaneXor(T x, int mask) {
  return __shfl_xor_sync(kAllLanes, x, mask);
}
template <typename T>
__device__ __forceinline__ T FromLaneBelow(T x, int distance) {
  return __shfl_up_sync(kAllLanes, x, distance);
}

// The thread's index, opaque to the compiler: values derived from it are recomputed where they are
// needed instead of occupying registers throughout a loop.
__device__ __forceinline__ int OpaqueThreadIdx() {
  int thread = static_cast<int>(threadIdx.x);
  asm volatile("" : "+r"(thread));
  return thread;
}

// Computes a number here and not where it is used, where the compiler would: behind
// WaitOnDependencies(), for example.
__device__ __forceinline__ void ComputeNow(float& x) { asm volatile("" : "+f"(x)); }

// Sum over each group of kLanes neighbouring lanes, in all of them; the farthest lanes first.
template <int kLanes = kWarp, typename T>
__device__ __forceinline__ T WarpSum(T x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

__device__ __forceinline__ float Max(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double Max(double a, double b) { return fmax(a, b); }
__device__ __forceinline__ unsigned Max(unsigned a, unsigned b) { return max(a, b); }

template <int kLanes = kWarp, typename T>
__device__ __forceinline__ T WarpMax(T x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    x = Max(x, __shfl_xor_sync(kAllLanes, x, offset));
  }
  return x;
}

// Sum over the lanes with the same index modulo kStride; the nearest ones first.
template <int kStride>
__device__ __forceinline__ float StridedSum(float x) {
#pragma unroll
  for (int offset = kStride; offset < kWarp; offset *= 2) {
    x += __shfl_xor_sync(kAllLanes, x, offset);
  }
  return x;
}

// Sum over the four lanes that share a row of a tensor core product; neighbours first.
__device__ __forceinline__ float QuadSum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}
__device__ __forceinline__ float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

// The result of add(earlier, x) over this lane and all before it; `add` is associative.
template <typename T, typename Add>
__device__ __forceinline__ T WarpScan(T x, const Add& add) {
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const T earlier = __shfl_up_sync(kAllLanes, x, offset);
    if (Lane() >= offset) x = add(earlier, x);
  }
  return x;
}
// The sum over this lane and all before it.
template <typename T>
__device__ __forceinline__ T WarpScan(T x) {
  return WarpScan(x, [](T earlier, T own) { return own + earlier; });
}

// Adds two lanes whose numbers differ in `bit`: the lane without it gets the sums of the first
// kHalf elements in v, the other lane the sums of the next kHalf.
template <int kHalf, int kCount>
__device__ __forceinline__ void AddHalves(float (&v)[kCount], int bit) {
  const bool upper = (Lane() & bit) != 0;
#pragma unroll
  for (int k = 0; k < kHalf; ++k) {
    const float kept = upper ? v[k + kHalf] : v[k], sent = upper ? v[k] : v[k + kHalf];
    v[k] = kept + FromLaneXor(sent, bit);
  }
}

// WarpSum<kLanes> of each v[i], with the same bits, but each lane gets one of them: lane t of its
// group gets the sum for i = t / (kLanes / kCount). kCount <= kLanes, powers of two; the rest of v
// is lost.
template <int kLanes, int kCount, int kOffset = kLanes / 2, int kHalf = kCount / 2>
__device__ __forceinline__ float SpreadSums(float (&v)[kCount]) {
  if constexpr (kOffset == 0) {
    return v[0];
  } else {
    if constexpr (kHalf == 0) {
      v[0] += FromLaneXor(v[0], kOffset);
    } else {
      AddHalves<kHalf>(v, kOffset);
    }
    return SpreadSums<kLanes, kCount, kOffset / 2, kHalf / 2>(v);
  }
}

// Adds up each v[i] over the 8 lanes with the same lane % 4. Lane t gets, in v[k], the sum of
// v[t / 4 * kCount / 8 + k], k < kCount / 8; the rest of v is lost.
template <int kCount, int kMask = 16, int kHalf = kCount / 2>
__device__ __forceinline__ void ScatterSums(float (&v)[kCount]) {
  static_assert(kCount % 8 == 0);
  AddHalves<kHalf>(v, kMask);
  if constexpr (kMask > 4) ScatterSums<kCount, kMask / 2, kHalf / 2>(v);
}

// The four lanes that share a row of a product exchange words, so that each has 16 contiguous bytes
// to store: word b of lane q of a quad becomes word q of lane b.
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
