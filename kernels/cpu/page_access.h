// Reads and writes the CPU backend's pages: keys are stored dimension by dimension ([head_dim,
// 64]), so that 64 scores are computed in parallel; values token by token.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa/isa_kernels.h"
#include "kernels/paged_kv.h"

namespace fox {

inline float WidenElement(BFloat16 x) { return static_cast<float>(x); }
inline float WidenElement(float x) { return x; }
inline double WidenElement(double x) { return x; }

template <typename P>
P* KeysOf(const PagedKv& kv, int32_t page) {
  return static_cast<P*>(kv.keys) + static_cast<int64_t>(page) * kv.shape.head_dim * kPageTokens;
}
template <typename P>
P* ValuesOf(const PagedKv& kv, int32_t page) {
  return static_cast<P*>(kv.values) + static_cast<int64_t>(page) * kv.shape.head_dim * kPageTokens;
}
// Gate offsets of one query head of the page's group: [64].
template <typename T>
T* LogFOffsetsOf(const PagedKv& kv, int32_t page, int head_in_group) {
  return static_cast<T*>(kv.log_f_offset) +
         (static_cast<int64_t>(page) * kv.shape.group() + head_in_group) * kPageTokens;
}

// The page's summaries: index into page_cum_log_f, log_mass_bound, log_denominator_bound and
// max_key_norm.
inline int64_t SummaryIndex(const PagedKv& kv, int32_t page, int head_in_group) {
  return static_cast<int64_t>(page) * kv.shape.group() + head_in_group;
}

// key [head_dim] of one token of a page.
template <typename P, typename T>
void ReadKey(const PagedKv& kv, int32_t page, int token, T* key) {
  const P* keys = KeysOf<P>(kv, page) + token;
  for (int m = 0; m < kv.shape.head_dim; ++m) {
    key[m] = static_cast<T>(WidenElement(keys[static_cast<int64_t>(m) * kPageTokens]));
  }
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
    default:
      body(float{}, BFloat16{});
  }
}

}  // namespace fox
