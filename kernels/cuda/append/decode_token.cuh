// A lane of AppendDecodeKernel processes a part of one token's row. This file has the parts, their
// addresses in the projection and in the pages, and the loads of the sequence's state before the
// token.
#pragma once

#include <cstddef>

#include "kernels/cuda/append/row.cuh"
#include "kernels/cuda/primitives/page_part.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"

namespace fox::cuda::append_decode {

// One token of one kv head.
struct Token {
  int slot;
  int kv_head;
  int group;  // query heads of the kv head
  int64_t row;
  int64_t position;
  int drafts;       // distance behind the sequence's first row: 0 unless it is a draft
  int pos_in_page;  // in its page
  int32_t page;     // id
};

// Addresses of one lane's input in the projection; if it has none, or the row is not shifted,
// another readable address.
struct RowPlace {
  const uint4* now;
  const __nv_bfloat16* shift;  // logit of the share of the last row
  const __nv_bfloat16* gate;   // GateLogitAt of the query head in the lane's place of the group
};
struct RowInput {
  uint4 now;
  __nv_bfloat16 shift, gate;
};

// One lane's state from earlier steps.
struct State {
  int32_t page;   // the token's
  Float8 before;  // the row of the token before; zeros before the first token
  double c;       // cumulative log gate, and that before the page's first key: of the query head in
  double base;    // the lane's place of the group
};

// Where one lane's results go; null: nowhere. Addresses in pages are those in page 0.
struct Outputs {
  std::byte* row;      // the lane's part: in a page, or the query in the projection
  int64_t page_bytes;  // from one page's row to the next; 0 for queries
  int8_t* exponent;    // of the part, if it has one; in all of its lanes
  float* last;         // the raw key or value, if it is shifted
  float* page_end;     // the same, if the token ends a page
  double* base;        // of the query head in the lane's place of the group
  float* offset;
  double* c;
};
template <typename T>
__device__ __forceinline__ T* InPage(T* in_first, int32_t page, int elements) {
  return in_first + static_cast<int64_t>(page) * elements;
}

// A token's parts are rows of head_dim: 0 is the key, 1 the value, 2 + g query g of the group. A
// lane may have a part that does not exist.
__device__ __forceinline__ bool IsQuery(int part) { return part >= 2; }
__device__ __forceinline__ bool HasPart(const Token& token, int part) {
  return part < 2 + token.group;
}

// The query head in the lane's place of the group; past the group's end, its last one.
__device__ __forceinline__ int LaneHead(const Token& token) {
  return token.kv_head * token.group + min(Lane(), token.group - 1);
}

// Index of this lane's first dimension of the part's head in an array [heads * head_dim].
template <int kHeadDim>
__device__ __forceinline__ int64_t DimsOf(const Token& token, int part) {
  const int head = IsQuery(part) ? token.kv_head * token.group + part - 2 : token.kv_head;
  const int sub = static_cast<int>(threadIdx.x) % kRowLanes<kHeadDim>;
  return static_cast<int64_t>(head) * kHeadDim + sub * kVec8;
}

__device__ __forceinline__ const void* NormOf(const AppendParams& params, int part) {
  return IsQuery(part) ? params.q_norm : part == 0 ? params.k_norm : nullptr;
}
__device__ __forceinline__ const float* CapsOf(const AppendParams& params, int part) {
  return IsQuery(part) ? params.q_cap : part == 0 ? params.k_cap : nullptr;
}

// Constants: may be called before WaitOnDependencies().
template <int kHeadDim>
__device__ __forceinline__ Float8 LoadWeights(const AppendParams& params, const Token& token,
                                              int part) {
  if (!HasPart(token, part)) return {};
  return LoadNorm<kHeadDim>(NormOf(params, part), CapsOf(params, part),
                            DimsOf<kHeadDim>(token, part));
}

__device__ __forceinline__ int64_t ColumnOf(const AppendParams& params, int part) {
  return IsQuery(part) ? params.q_column : part == 0 ? params.k_column : params.v_column;
}
__device__ __forceinline__ int64_t ShiftColumnOf(const AppendParams& params, int part) {
  return IsQuery(part) ? -1 : part == 0 ? params.k_shift_column : params.v_shift_column;
}

// This lane's dimensions of a kept raw row of keys or values.
template <int kHeadDim>
__device__ __forceinline__ float* KeptOf(const AppendParams& params, const PagedKv& kv,
                                         const Token& token, int slot, void* rows) {
  const int sub = static_cast<int>(threadIdx.x) % kRowLanes<kHeadDim>;
  return LastRow(kv, rows, slot, params.layer, token.kv_head) + sub * kVec8;
}
// This lane's dimensions of the raw last row after `tokens` tokens.
template <int kHeadDim>
__device__ __forceinline__ float* LastOf(const AppendParams& params, const PagedKv& kv,
                                         const Token& token, int part, int64_t tokens) {
  return KeptOf<kHeadDim>(params, kv, token, kv.After(token.slot, tokens),
                          part == 0 ? kv.last_k : kv.last_v);
}

// c before the step: of the query head in the lane's place of the group, which exists.
__device__ __forceinline__ const double* CumLogFOf(const AppendParams& params, const PagedKv& kv,
                                                   const Token& token) {
  const int before = kv.After(token.slot, token.position - token.drafts);
  return kv.cum_log_f + kv.HeadIndex(before, params.layer, token.kv_head * token.group + Lane());
}

// Prefetches a token's state into the second-level cache, from which the step's weights have
// evicted it. Reads only a page id, as a hint: may be called before WaitOnDependencies().
template <int kHeadDim>
__device__ __forceinline__ void PrefetchState(const AppendParams& params, const PagedKv& kv,
                                              const Token& token) {
  const int lane = Lane(), group = token.group;
  const int part = lane / kRowLanes<kHeadDim>;
  if (!IsQuery(part) && ShiftColumnOf(params, part) >= 0) {
    Prefetch(LastOf<kHeadDim>(params, kv, token, part, token.position));
  }
  if (lane >= group) return;
  Prefetch(CumLogFOf(params, kv, token));
  const int32_t page = __ldcg(kv.Table(kv.ListIndex(token.slot, params.layer, token.kv_head)) +
                              token.position / kPageTokens);
  if (page < 0 || page >= kv.shape.num_pages) return;
  Prefetch(kv.page_cum_log_f + static_cast<int64_t>(page) * group + lane);
}

template <int kHeadDim>
__device__ __forceinline__ RowPlace PlaceOf(const AppendParams& params, const Token& token,
                                            int part) {
  const __nv_bfloat16* row = ProjectionRow(params, token.row);
  RowPlace place{reinterpret_cast<const uint4*>(row), row,
                 GateLogitAt(params, token.row, LaneHead(token))};
  if (!HasPart(token, part)) return place;
  place.now =
      reinterpret_cast<const uint4*>(row + ColumnOf(params, part) + DimsOf<kHeadDim>(token, part));
  const int64_t shift_column = ShiftColumnOf(params, part);
  if (shift_column >= 0) place.shift = row + shift_column + token.kv_head;
  return place;
}
// Loads the lane's input behind the wait, by LoadCoherent, because the compiler may move loads that
// are not volatile in front of the wait: it moves CUDA's __ldcg of a bf16.
__device__ __forceinline__ RowInput LoadInput(const RowPlace& place) {
  return {LoadCoherent(place.now), LoadCoherent(place.shift), LoadCoherent(place.gate)};
}

// Bypasses the first-level cache: may be called before WaitOnDependencies() where
// AppendOverlap::reads_early allows it.
template <int kHeadDim>
__device__ __forceinline__ State LoadState(const AppendParams& params, const PagedKv& kv,
                                           const Token& token, int part) {
  const int g = Lane();
  State state{};
  state.page = __ldcg(kv.Table(kv.ListIndex(token.slot, params.layer, token.kv_head)) +
                      token.position / kPageTokens);
  if (g < token.group) state.c = __ldcg(CumLogFOf(params, kv, token));
  if (!IsQuery(part) && ShiftColumnOf(params, part) >= 0 && token.position > 0 &&
      token.drafts == 0) {
    const float4* last =
        reinterpret_cast<const float4*>(LastOf<kHeadDim>(params, kv, token, part, token.position));
    const float4 low = __ldcg(last), high = __ldcg(last + 1);
    state.before = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  }
  return state;
}
// The rest of the state, which waits for the page.
__device__ __forceinline__ void LoadBase(const PagedKv& kv, const Token& token, State& state) {
  state.base = state.c;
  if (Lane() < token.group && token.pos_in_page > token.drafts) {
    state.base = __ldcg(InPage(kv.page_cum_log_f + Lane(), state.page, token.group));
  }
}

// `first`: the warp has the key, the value and the gates.
template <int kHeadDim, typename Part>
__device__ __forceinline__ Outputs OutputsOf(const AppendParams& params, const PagedKv& kv,
                                             const Token& token, const RowPlace& place, int part,
                                             bool first) {
  Outputs to{};
  if (HasPart(token, part)) {
    to.row = reinterpret_cast<std::byte*>(const_cast<uint4*>(place.now));
    if (!IsQuery(part)) {
      constexpr int kVectorBytes = kHasExponents<Part> ? sizeof(uint2) : sizeof(uint4);
      const int vector = token.pos_in_page * kRowLanes<kHeadDim> + Lane() % kRowLanes<kHeadDim>;
      void* const pool = part == 0 ? kv.keys : kv.values;
      to.row = static_cast<std::byte*>(pool) + vector * kVectorBytes;
      to.page_bytes = kPageTokens * kRowLanes<kHeadDim> * kVectorBytes;
      if (kHasExponents<Part>) {
        to.exponent = kv.KeyExponent(0, part * kPageTokens + token.pos_in_page);
      }
      if (ShiftColumnOf(params, part) >= 0) {
        to.last = LastOf<kHeadDim>(params, kv, token, part, token.position + 1);
        if (token.pos_in_page == kPageTokens - 1) {
          void* const page_end = part == 0 ? kv.page_end_k : kv.page_end_v;
          to.page_end = KeptOf<kHeadDim>(params, kv, token, token.slot, page_end);
        }
      }
    }
  }
  if (first && Lane() < token.group) {
    const int after = kv.After(token.slot, token.position + 1);
    to.base = kv.page_cum_log_f + Lane();
    to.offset = kv.LogFOffsets<float>(Lane()) + token.pos_in_page;
    to.c = kv.cum_log_f + kv.HeadIndex(after, params.layer, token.kv_head * token.group + Lane());
  }
  ComputeNow(to.row);
  if (kHasExponents<Part>) ComputeNow(to.exponent);
  ComputeNow(to.last);
  ComputeNow(to.page_end);
  ComputeNow(to.base);
  ComputeNow(to.offset);
  ComputeNow(to.c);
  return to;
}

// Advances a draft's state by the rows before it, which are in the projection.
__device__ __forceinline__ void AddRowsBefore(const AppendParams& params, const Token& token,
                                              const RowPlace& place, float gate_bias, bool shifts,
                                              State& state) {
  const int64_t stride = params.projection.row_stride;
#pragma unroll 1  // other steps skip this code
  for (int64_t r = token.drafts; r > 0; --r) {
    const float logit = GateLogit(params, LoadCoherent(place.gate - r * stride));
    state.c += static_cast<double>(LogGate(params, logit + gate_bias));
  }
  if (!shifts) return;
  const auto* now = reinterpret_cast<const __nv_bfloat16*>(place.now);
  state.before = Widen(LoadCoherent(reinterpret_cast<const uint4*>(now - stride)));
}

}  // namespace fox::cuda::append_decode
