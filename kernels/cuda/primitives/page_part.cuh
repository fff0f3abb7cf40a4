// A page part: eight dimensions of a key or value as a lane loads and stores them, 16 bytes of bf16
// (uint4) or 8 codes (uint2, kernels/core/e4m3.h). Kernels have its type as a template parameter:
// all differences between pages in bf16 and in 8 bits are here. Pages in 8 bits have exponents, one
// for each token's key and one for its value.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "kernels/core/e4m3.h"
#include "kernels/cuda/primitives/vec8.cuh"
#include "kernels/cuda/primitives/warp.cuh"
#include "kernels/cuda/ptx/mma_sm80.cuh"
#include "kernels/paging/paged_kv.h"

namespace fox::cuda {

template <typename Part>
inline constexpr bool kHasExponents = std::is_same_v<Part, uint2>;
template <typename Part>
inline constexpr int kElementBytes = sizeof(Part) / kVec8;

// body.operator()<Part>() for pages of this type.
template <typename Body>
auto DispatchPart(DType dtype, const Body& body) {
  return dtype == DType::kE4M3 ? body.template operator()<uint2>()
                               : body.template operator()<uint4>();
}

// To bf16; codes without their exponent.
__device__ __forceinline__ const uint4& WidenPart(const uint4& part) { return part; }
__device__ __forceinline__ uint4 WidenPart(const uint2& codes) {
  return {WidenCodes(codes.x, false), WidenCodes(codes.x, true), WidenCodes(codes.y, false),
          WidenCodes(codes.y, true)};
}
// Four codes without their exponent as pairs of float16, which holds all codes: the lower two, and
// the upper two. Cards that convert codes take an instruction a pair instead of five.
__device__ __forceinline__ uint2 WidenToFloat16(uint32_t codes) {
  uint2 pairs;
#if __CUDA_ARCH__ >= 890
  // Halves of a register, which the instruction takes as they lie: a shift would be one more.
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}\n"
      : "=r"(pairs.x), "=r"(pairs.y)
      : "r"(codes));
#else
  // A code's bits in the place of float16's are 2^-8 times it, subnormal or not.
  const auto widen = [](uint32_t high) {  // codes in the upper byte of each half
    const uint32_t small = (high & 0x80008000u) | (high >> 1 & 0x3f803f80u);
    const __half2 pair = __hmul2(reinterpret_cast<const __half2&>(small), __float2half2_rn(256.0f));
    return reinterpret_cast<const uint32_t&>(pair);
  };
  pairs = {widen(__byte_perm(codes, 0, 0x1404)), widen(__byte_perm(codes, 0, 0x3424))};
#endif
  return pairs;
}
// Codes without their exponent as float32. By way of float16 where cards convert codes to it, in
// two instructions a pair instead of seven.
__device__ __forceinline__ Float8 Widen(const uint2& codes) {
#if __CUDA_ARCH__ >= 890
  const uint32_t words[2] = {codes.x, codes.y};
  Float8 o;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint2 pairs = WidenToFloat16(words[i]);
    const float2 first = __half22float2(reinterpret_cast<const __half2&>(pairs.x));
    const float2 second = __half22float2(reinterpret_cast<const __half2&>(pairs.y));
    o.x[4 * i] = first.x;
    o.x[4 * i + 1] = first.y;
    o.x[4 * i + 2] = second.x;
    o.x[4 * i + 3] = second.y;
  }
  return o;
#else
  return Widen(WidenPart(codes));
#endif
}
// WidenPart with the exponent. Exact.
__device__ __forceinline__ uint4 WidenPart(const uint2& codes, int exponent) {
  const uint32_t power = BitCast<uint32_t>(PowerOfTwo(exponent)) >> 16, two = power << 16 | power;
  const uint4 o = WidenPart(codes);
  return {MultiplyBf16x2(o.x, two), MultiplyBf16x2(o.y, two), MultiplyBf16x2(o.z, two),
          MultiplyBf16x2(o.w, two)};
}

// Rounds a row that is spread over kLanes neighbouring lanes: this lane's codes, and the exponent.
template <int kLanes>
__device__ __forceinline__ uint2 EncodePart(const Float8& o, int& exponent) {
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < kVec8; ++i) largest = max(largest, BitCast<uint32_t>(o.x[i]) & 0x7fffffffu);
  exponent = E4M3Exponent(WarpMax<kLanes>(largest));
  if (exponent == kNoExponent) return {0, 0};
  const float scale = PowerOfTwo(-exponent);
  uint32_t codes[2] = {};
#pragma unroll
  for (int i = 0; i < kVec8; i += 2) {
    const float low = o.x[i] * scale, high = o.x[i + 1] * scale;
#if __CUDA_ARCH__ >= 890
    uint16_t pair;  // NearestE4M3 of both
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
#else
    const uint32_t pair = NearestE4M3(low) | NearestE4M3(high) << 8;
#endif
    codes[i / 4] |= static_cast<uint32_t>(pair) << i % 4 * 8;
  }
  return {codes[0], codes[1]};
}

// A page's keys as rows of head_dim: this lane's eight of token `token`, from dimension `dim` on.
template <int kHeadDim, typename Part>
struct PageKeys {
  const Part* first;
  const int8_t* exponents;  // of the page's keys

  __device__ PageKeys(const PagedKv& kv, int32_t page)
      : first(static_cast<const Part*>(kv.keys) +
              static_cast<int64_t>(page) * (kPageTokens * kHeadDim / kVec8)),
        exponents(kHasExponents<Part> ? kv.KeyExponent(page, 0) : nullptr) {}

  __device__ __forceinline__ uint4 Bits(int token, int dim) const {
    const Part part = first[(token * kHeadDim + dim) / kVec8];
    if constexpr (kHasExponents<Part>)
      return WidenPart(part, exponents[token]);
    else
      return part;
  }
};

}  // namespace fox::cuda
