// How a warp of decode attention loads a half page of keys and values: which lane holds what, and
// the loads into registers. Pages are read once, so they take no room in the first-level cache. For
// decode attention only; half pages are defined in splits.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention/decode/splits.cuh"
#include "kernels/cuda/primitives/page_part.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"

namespace fox::cuda::decode {

template <int kHeadDim>
struct Layout {
  static constexpr int kDims = kVec8;                     // of a lane: a page part
  static constexpr int kLanes = kHeadDim / kDims;         // that share a key
  static constexpr int kGroups = kWarp / kLanes;          // keys of one load instruction
  static constexpr int kLoads = kHalfPageKeys / kGroups;  // of a half page's keys; equals kLanes
};

// The gates of a half page: of its page, and of this lane's key; in pages with exponents, also the
// exponents of the key and its value.
struct Gate {
  double base;
  float local;
  int8_t key_exponent, value_exponent;
};

// The key of a half page whose logit is this lane's (see DotProduct).
template <int kHeadDim>
__device__ int LaneKey() {
  using L = Layout<kHeadDim>;
  return Lane() % L::kLanes * L::kGroups + Lane() / L::kLanes;
}

template <int kHeadDim, typename Part>
__device__ Gate LoadGate(const Decode& a, const SeqHead& seq_head, const HalfPage& half_page) {
  const int64_t summary = Summary(a, half_page.page, seq_head);
  const int key = min(LaneKey<kHeadDim>(), max(half_page.valid - 1, 0));
  Gate gate;
  gate.base = LoadCoherent(a.kv.page_cum_log_f + summary);
  gate.local =
      LoadCoherent(a.kv.LogFOffsets<float>(summary) + half_page.half * kHalfPageKeys + key);
  if constexpr (kHasExponents<Part>) {
    const int token = half_page.half * kHalfPageKeys + key;
    gate.key_exponent = LoadCoherent(a.kv.KeyExponent(half_page.page, 0) + token);
    gate.value_exponent = LoadCoherent(a.kv.ValueExponent(half_page.page, 0) + token);
  }
  return gate;
}

// The address of this lane's part of a half page's first rows.
template <int kHeadDim, typename Part>
__device__ const char* TileBegin(const void* pool, const HalfPage& half_page) {
  using L = Layout<kHeadDim>;
  const int64_t row = static_cast<int64_t>(half_page.page) * kPageTokens +
                      half_page.half * kHalfPageKeys + Lane() / L::kLanes;
  constexpr int kBytes = sizeof(Part);
  return static_cast<const char*>(pool) + row * (L::kLanes * kBytes) + Lane() % L::kLanes * kBytes;
}

// tile[i]: this lane's 8 dims of key i * kGroups + lane / kLanes. Memory past the valid keys is
// never read (it may be NaN): the last valid key is loaded instead, with weight zero.
template <int kHeadDim, typename Part>
__device__ void LoadTile(const void* pool, const HalfPage& half_page,
                         Part (&tile)[Layout<kHeadDim>::kLoads]) {
  using L = Layout<kHeadDim>;
  constexpr int kRowBytes = kHeadDim * kElementBytes<Part>;
  const char* first = TileBegin<kHeadDim, Part>(pool, half_page);
  if (half_page.valid == kHalfPageKeys) {
#pragma unroll
    for (int i = 0; i < L::kLoads; ++i)
      tile[i] = LoadOnce<Part>(first + i * L::kGroups * kRowBytes);
  } else {
    const int last = max(half_page.valid - 1, 0) - Lane() / L::kLanes;
#pragma unroll
    for (int i = 0; i < L::kLoads; ++i) {
      tile[i] = LoadOnce<Part>(first + min(i * L::kGroups, last) * kRowBytes);
    }
  }
}

// Loads a half page of the row's own page again, after the row has been written. Where no load but
// the first ones of the tile is under way: the compiler waits for all of them before these.
template <int kHeadDim, typename Part>
__device__ void LoadTileAgain(const void* pool, const HalfPage& half_page,
                              Part (&tile)[Layout<kHeadDim>::kLoads]) {
  using L = Layout<kHeadDim>;
  constexpr int kRowBytes = kHeadDim * kElementBytes<Part>;
  const char* first = TileBegin<kHeadDim, Part>(pool, half_page);
  const int last = max(half_page.valid - 1, 0) - Lane() / L::kLanes;
#pragma unroll
  for (int i = 0; i < L::kLoads; ++i) {
    tile[i] =
        LoadCoherent(reinterpret_cast<const Part*>(first + min(i * L::kGroups, last) * kRowBytes));
  }
}

// Prefetch a half page's gates and exponents, or its keys and values, into the L2.
template <typename Part>
__device__ void PrefetchGates(const Decode& a, const SeqHead& seq_head, const HalfPage& half_page) {
  const int64_t summary = Summary(a, half_page.page, seq_head);
  Prefetch(a.kv.page_cum_log_f + summary);
  Prefetch(a.kv.LogFOffsets<float>(summary) + half_page.half * kHalfPageKeys);
  if constexpr (kHasExponents<Part>) Prefetch(a.kv.KeyExponent(half_page.page, 0));
}

template <int kHeadDim, typename Part>
__device__ void PrefetchTiles(const Decode& a, const HalfPage& half_page) {
  constexpr int kLine = 128, kRowBytes = kHeadDim * kElementBytes<Part>,
                kBytes = kHalfPageKeys * kRowBytes;
  const int64_t begin =
      (static_cast<int64_t>(half_page.page) * kPageTokens + half_page.half * kHalfPageKeys) *
      kRowBytes;
#pragma unroll
  for (int at = 0; at < kBytes; at += kWarp * kLine) {
    const int64_t line = begin + min(at + Lane() * kLine, kBytes - kLine);
    Prefetch(static_cast<const char*>(a.kv.keys) + line);
    Prefetch(static_cast<const char*>(a.kv.values) + line);
  }
}

}  // namespace fox::cuda::decode
