// Reads and writes the CPU backend's pages: keys are stored dimension by dimension ([head_dim,
// 64]), so that 64 scores are computed in parallel; values token by token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/core/check.h"
#include "kernels/core/e4m3.h"
#include "kernels/cpu/isa/isa_kernels.h"
#include "kernels/paging/acp.h"
#include "kernels/paging/paged_kv.h"

namespace fox {

inline float WidenElement(BFloat16 x) { return static_cast<float>(x); }
inline float WidenElement(float x) { return x; }
inline double WidenElement(double x) { return x; }

// An element of a page of 8 bits.
struct E4M3 {
  uint8_t code;
};

template <typename P>
P* KeysOf(const PagedKv& kv, int32_t page) {
  return static_cast<P*>(kv.keys) + static_cast<int64_t>(page) * kv.shape.head_dim * kPageTokens;
}
template <typename P>
P* ValuesOf(const PagedKv& kv, int32_t page) {
  return static_cast<P*>(kv.values) + static_cast<int64_t>(page) * kv.shape.head_dim * kPageTokens;
}

// Rounds a key or value of one token to the page's type; the exponent is of 8 bits alone.
template <typename T>
int Round(const T* in, int count, T* out) {
  std::copy_n(in, count, out);
  return 0;
}
inline int Round(const float* in, int count, BFloat16* out) {
  SelectIsaKernels().narrow(in, count, &out->bits);
  return 0;
}
inline int Round(const float* in, int count, E4M3* out) {
  static_assert(sizeof(E4M3) == 1);  // GCC takes &out->code for the address of one byte alone
  return EncodeE4M3(in, count, reinterpret_cast<uint8_t*>(out));
}

// A page's keys, [head_dim, 64].
template <typename P, typename T>
void WidenKeys(const PagedKv& kv, int32_t page, T* out) {
  const P* keys = KeysOf<P>(kv, page);
  const int d = kv.shape.head_dim;
  if constexpr (std::is_same_v<P, E4M3>) {
    SelectIsaKernels().widen_e4m3(
        {&keys->code, kv.KeyExponent(page, 0), d, kPageTokens, /*by_column=*/true}, kPageTokens,
        out);
  } else if constexpr (std::is_same_v<P, BFloat16>) {
    SelectIsaKernels().widen(&keys->bits, static_cast<int64_t>(d) * kPageTokens, out);
  } else {
    std::copy_n(keys, d * kPageTokens, out);
  }
}

// The values of its first `count` tokens, rows of head_dim at a distance of `stride`.
template <typename P, typename T>
void WidenValues(const PagedKv& kv, int32_t page, int count, int stride, T* out) {
  const P* values = ValuesOf<P>(kv, page);
  const int d = kv.shape.head_dim;
  if constexpr (std::is_same_v<P, E4M3>) {
    SelectIsaKernels().widen_e4m3(
        {&values->code, kv.ValueExponent(page, 0), count, d, /*by_column=*/false}, stride, out);
  } else {
    const int rows = stride == d ? 1 : count, length = stride == d ? count * d : d;
    for (int j = 0; j < rows; ++j) {
      if constexpr (std::is_same_v<P, BFloat16>) {
        SelectIsaKernels().widen(&values[j * d].bits, length, out + j * stride);
      } else {
        std::copy_n(values + j * d, length, out + j * stride);
      }
    }
  }
}

// key [head_dim] of one token of a page.
template <typename P, typename T>
void ReadKey(const PagedKv& kv, int32_t page, int token, T* key) {
  const P* keys = KeysOf<P>(kv, page) + token;
  for (int m = 0; m < kv.shape.head_dim; ++m, keys += kPageTokens) {
    if constexpr (std::is_same_v<P, E4M3>) {
      const int exponent = *kv.KeyExponent(page, token);
      key[m] = static_cast<T>(WidenElement(E4M3Value(keys->code, exponent)));
    } else {
      key[m] = static_cast<T>(WidenElement(*keys));
    }
  }
}

// PageThreshold of one head at the end of a full page: what Evict drops pages by, and what
// attention knows dropped pages by. `summary`: SummaryIndex of that page and head; T: the wide
// type.
template <typename T>
double PageEndThreshold(AcpMode acp, const PagedKv& kv, int64_t summary, double self_logit_bound,
                        double max_logit_bound) {
  const double c_end = UpperCumulativeGate(
      kv.page_cum_log_f[summary], static_cast<double>(kv.LogFOffsets<T>(summary)[kPageTokens - 1]));
  return PageThreshold(acp, kv.log_denominator_bound[summary], c_end, self_logit_bound,
                       max_logit_bound);
}

// Calls body with (wide type, page type) values for the cache's dtype.
template <typename Body>
void DispatchPageType(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF64:
      body(double{}, double{});
      break;
    case DType::kF32:
      body(float{}, float{});
      break;
    case DType::kE4M3:
      body(float{}, E4M3{});
      break;
    default:
      FOX_CHECK(dtype == DType::kBF16);
      body(float{}, BFloat16{});
  }
}

}  // namespace fox
